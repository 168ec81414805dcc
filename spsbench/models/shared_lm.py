"""A small model that was trained for one target, under that target's own embedding table and output head."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from spsbench.errors import UsageError
from spsbench.models.onnx_lm import OnnxLM
from spsbench.models.shared_weights import SharedWeights
from spsbench.models.torch_lm import TorchLM
from spsbench.models.trained import TrainedDraft


def onnx_under(target: OnnxLM, draft: TrainedDraft, config: Any, vocab_size: int, bits: int | None) -> OnnxLM:
    """The model over ONNX Runtime, on its target's threads.

    Args:
        config: of the draft, with its target's vocabulary.
        vocab_size: number of logits that both share.
    """
    ids = draft.ids_below(config.vocab_size if draft.vocabulary is None else vocab_size)
    return OnnxLM(
        config,
        SharedWeights(draft, target.stored, ids),
        vocab_size,
        target.threads,
        cache(lambda: torch_under(target.reference(), draft, config, vocab_size, torch.float32, "--draft")),
        bits=bits,
        vocabulary=None if draft.vocabulary is None else torch.from_numpy(ids),
    )


def torch_under(
    target: TorchLM, draft: TrainedDraft, config: Any, vocab_size: int, dtype: torch.dtype | None, flag: str
) -> TorchLM:
    """The model over transformers' own forward; of one dtype with its target it shares the very tensors."""
    if draft.vocabulary is not None and getattr(config, "final_logit_softcapping", None):
        raise UsageError(
            f"{config.model_type} caps its logits, so that a draft of it proposes every token.",
            flag=flag,
            remedy="Train one without a separate vocabulary.",
        )
    dtype = dtype or target.dtype
    model = _layers(draft, config, dtype).to(target.device)
    model.set_input_embeddings(_in(target.model.get_input_embeddings(), dtype))
    head = target.model.get_output_embeddings()
    if draft.vocabulary is not None:
        ids = torch.from_numpy(draft.ids_below(vocab_size)).to(target.device)
        head = SomeTokens(head, ids)
    model.set_output_embeddings(_in(head, dtype))
    model.config.vocab_size = config.vocab_size
    return SharingTorchLM(model.eval(), vocab_size)


class SomeTokens(nn.Module):
    """Some rows of an output head, with the logits of all tokens: minus infinity for the others.

    Args:
        head: a linear layer [V, hidden].
        ids: [m] which rows, ascending.
    """

    def __init__(self, head: Any, ids: Tensor) -> None:
        super().__init__()
        self._size = len(head.weight)
        self.ids: Tensor
        self.register_buffer("ids", ids, persistent=False)
        self.weight = nn.Parameter(head.weight.detach()[ids], requires_grad=False)
        bias = getattr(head, "bias", None)
        self.bias = None if bias is None else nn.Parameter(bias.detach()[ids], requires_grad=False)

    def forward(self, states: Tensor) -> Tensor:
        """[..., V] of [..., hidden]; a new tensor each time, as a captured graph needs it."""
        some = linear(states, self.weight, self.bias)
        rows = some.new_full((*some.shape[:-1], self._size), float("-inf"))
        return rows.index_copy_(-1, self.ids, some)


class SharingTorchLM(TorchLM):
    """A model whose embedding table is another one's, and whose head may have rows for some tokens only."""

    def __init__(self, model: Any, vocab_size: int | None = None) -> None:
        super().__init__(model, vocab_size)
        head = model.get_output_embeddings()
        self.vocabulary = head.ids if isinstance(head, SomeTokens) else None

    @property
    def parameters(self) -> int:
        """Of its layers and of its rows of the head; the embedding table is its target's."""
        table = self.model.get_input_embeddings().weight
        tied = table is self.model.get_output_embeddings().weight
        return super().parameters - (0 if tied else table.numel())


def _layers(draft: TrainedDraft, config: Any, dtype: torch.dtype) -> Any:
    """The layers and the final norm as stored, between an embedding and a head of one row to be replaced."""
    from transformers import AutoModelForCausalLM

    own = copy.deepcopy(config)
    own.vocab_size, own.tie_word_embeddings = 1, False
    model = AutoModelForCausalLM.from_config(own, dtype=dtype)
    ends = {id(end.weight) for end in (model.get_input_embeddings(), model.get_output_embeddings())}
    names = [name for name, part in model.named_parameters() if id(part) not in ends]
    state = {name: torch.from_numpy(draft.stored.read(name).copy()) for name in names}
    model.load_state_dict(state, strict=False)
    return model


def _in(part: Any, dtype: torch.dtype) -> Any:
    """A module in a dtype: itself if it has it."""
    return part if part.weight.dtype == dtype else copy.deepcopy(part).to(dtype)

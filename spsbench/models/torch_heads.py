"""Trained heads as torch modules, for GPUs and for targets that ONNX Runtime does not cover."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from spsbench.models.cache import RewindCache
from spsbench.models.causal_lm import text_config
from spsbench.models.torch_lm import TorchLM
from spsbench.models.trained import TrainedDraft, layer_config
from spsbench.models.vocabulary import VocabularyRows

_LAYERS = "model."


class TorchChain:
    """See ``Chain``."""

    def __init__(self, draft: TrainedDraft, target: TorchLM) -> None:
        self._table = target.model.get_input_embeddings().weight
        width = self._table.shape[1]
        self._fc = _read(draft, "fc.weight", (width, 2 * width), target)
        self._body = _body(draft, target)
        self._score = _OutputHead(draft, target)
        self._cache = RewindCache()

    @property
    def length(self) -> int:
        """Number of cached entries."""
        return self._cache.length

    def extend(self, tokens: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """See ``Chain.extend``."""
        states = linear(torch.cat([self._table[tokens], features], dim=-1), self._fc)
        output = self._body(inputs_embeds=states.unsqueeze(0), past_key_values=self._cache, use_cache=True)
        feature = output.last_hidden_state[0, -1:]
        return self._score(feature), feature

    def rollback(self, length: int) -> None:
        """See ``Chain.rollback``."""
        self._cache.rollback(length)

    def forward_bytes(self) -> int:
        """Bytes of weights that a call reads."""
        layers = sum(part.nbytes for name, part in self._body.named_parameters() if "embed" not in name)
        return int(self._fc.nbytes + layers + self._score.nbytes)

    def fresh(self) -> TorchChain:
        """The same weights with its own cache."""
        other = copy.copy(self)
        other._cache = RewindCache()
        return other


class TorchHeads:
    """See ``Heads``; the arguments are those of ``TorchChain``, of a draft of the kind ``medusa``."""

    def __init__(self, draft: TrainedDraft, target: TorchLM) -> None:
        self.count = draft.heads
        width = target.embedding_shape[1]
        names = [f"heads.{number}" for number in range(draft.heads)]
        self._weight = torch.cat([_read(draft, f"{name}.weight", (width, width), target) for name in names])
        self._bias = torch.cat([_read(draft, f"{name}.bias", (width,), target) for name in names])
        self._score = _OutputHead(draft, target)

    def __call__(self, feature: Tensor, places: int) -> Tensor:
        """See ``Heads``."""
        width = places * feature.shape[-1]
        added = silu(linear(feature, self._weight[:width], self._bias[:width]))
        return self._score(feature + added.view(places, -1))

    def forward_bytes(self) -> int:
        """Bytes of weights that a call reads."""
        return int(self._weight.nbytes + self._bias.nbytes + self._score.nbytes)


class _OutputHead:
    """Some rows of the target's output head, and its logits among those of all tokens."""

    def __init__(self, draft: TrainedDraft, target: TorchLM) -> None:
        head = target.model.get_output_embeddings()
        size = target.vocab_size
        ids = torch.from_numpy(draft.ids_below(size)).to(target.device)
        whole = len(ids) == size
        self._weight = head.weight[:size] if whole else head.weight[ids]
        self._bias = None if getattr(head, "bias", None) is None else head.bias[ids]
        self._scale = 1.0 / float(getattr(text_config(target.config), "logits_scaling", 1.0))
        self._spread = VocabularyRows(ids, size)

    @property
    def nbytes(self) -> int:
        return int(self._weight.nbytes)

    def __call__(self, states: Tensor) -> Tensor:
        logits = linear(states, self._weight, self._bias)
        return self._spread(logits if self._scale == 1.0 else logits * self._scale)


def _read(draft: TrainedDraft, name: str, shape: tuple[int, ...], target: TorchLM) -> Tensor:
    found = draft.stored.read(name)
    if found.shape != shape:
        raise ValueError(f"{name} has the shape {found.shape}, not {shape}")
    return torch.from_numpy(found.copy()).to(target.device, target.dtype)


def _body(draft: TrainedDraft, target: TorchLM) -> Any:
    """The decoder layers and the final norm, as transformers computes them; they get states, not tokens."""
    from transformers import AutoModel

    config = layer_config(draft)
    config.vocab_size, config.pad_token_id = 1, None
    if config.hidden_size != target.embedding_shape[1]:
        raise ValueError(
            f"its layer is {config.hidden_size} wide, the target's states are {target.embedding_shape[1]}"
        )
    body = AutoModel.from_config(config, dtype=target.dtype)
    state = {
        name: _read(draft, f"{_LAYERS}{name}", tuple(part.shape), target)
        for name, part in body.state_dict().items()
        if not name.startswith("embed_tokens")
    }
    body.load_state_dict(state, strict=False)
    return body.to(target.device).eval()

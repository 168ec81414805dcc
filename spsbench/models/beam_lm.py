"""A model that scores a tree of tokens after one prompt: what beam search and drafts that are trees need.

Batch size 1: the prompt is cached once for all branches, every token of the tree has one column after it, and
a mask lets each token attend to the prompt and to its own ancestors. Positions are by depth. Other layouts
and why this one: docs/decisions.md, 0038.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol
from unittest.mock import patch

import torch
from torch import Tensor

from spsbench.base.errors import UsageError, first_line
from spsbench.decode.beam import Node
from spsbench.decode.protocols import LanguageModel
from spsbench.models.causal_lm import CausalLM, attention_window, proposable, tolerance
from spsbench.models.faults import refuse_fault
from spsbench.models.live_tree import Branches, Columns, LiveTree
from spsbench.models.onnx_lm import OnnxLM
from spsbench.models.placement import PlacedLM
from spsbench.models.recurrent import StateCache
from spsbench.models.rewind import RewindCache
from spsbench.models.seq2seq_lm import Encoded, EncoderDecoder, Seq2SeqLM
from spsbench.models.tensor_parallel import SplitLM
from spsbench.models.torch_lm import TorchLM


class BeamLM:
    """A ``TreeModel`` over a model's forward; of a decoder alone, over its own cache and features too.

    Attributes:
        window: the attention window that branches may exceed; None where there is none, or they may not.
    """

    def __init__(self, lm: TorchLM | OnnxLM) -> None:
        self._lm, self.vocab_size, self.dtype = lm, lm.vocab_size, lm.dtype
        self.window = attention_window(lm.config) if isinstance(lm, OnnxLM) else None
        self.border = lm.border
        self.name = type(lm.model).__name__ if isinstance(lm, TorchLM) else lm.config.model_type
        self._layout = _layout_of(lm)
        self._tree = LiveTree(0)

    @torch.inference_mode()
    def begin(self, prompt: Sequence[int]) -> None:
        """See ``TreeModel.begin``; runs the encoder where there is one."""
        self._tree = LiveTree(self._layout.begin(prompt))

    @torch.inference_mode()
    def score(self, nodes: Sequence[Node]) -> Tensor:
        fresh = self._tree.add(nodes)
        ids = torch.tensor([node.token for node in fresh], device=self._lm.device)
        logits = self._layout.score(ids, self._tree.prefix, self._tree.last(len(fresh)))
        if fresh == list(nodes):
            return logits[:, : self.vocab_size]
        place = {node: index for index, node in enumerate(fresh)}
        return logits[[place[node] for node in nodes], : self.vocab_size]

    @torch.inference_mode()
    def keep(self, nodes: Sequence[Node]) -> None:
        self._layout.keep(*self._tree.keep(nodes))

    @torch.inference_mode()
    def in_line(self, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """[V] logits after a prompt and tokens, by one forward without cache or tree."""
        ids = torch.tensor([*prompt, *tokens], device=self._lm.device)
        return proposable(self._lm, self._lm.score_uncached(ids, last=1))[0]

    @torch.inference_mode()
    def scored(self, nodes: Sequence[Node]) -> list[Tensor]:
        """Score as ``score`` does; return copies of the logits of the tokens that the model can propose."""
        return [*proposable(self._lm, self.score(nodes)).clone()]


_TREE, _SAMPLING = "--tree", "--sampling"


def tree_of(lm: LanguageModel) -> BeamLM:
    """Make a model score trees, with its own cache; refuse where it cannot, or not exactly."""
    if not isinstance(lm, TorchLM | OnnxLM):
        raise _refusal(type(lm).__name__, "its forward takes no mask", _TREE)
    _require_columns(lm)
    scorer = BeamLM(lm)
    require_exact_tree(scorer, _TREE)
    lm.rollback(0)
    return scorer


def _require_columns(lm: TorchLM | OnnxLM) -> None:
    """Refuse a model whose memory has no column for each node of a tree."""
    name = str(lm.config.model_type)
    if isinstance(lm, EncoderDecoder):
        raise _refusal(name, "it is an encoder-decoder", _TREE)
    if isinstance(lm, SplitLM | PlacedLM):
        raise _refusal(name, "its layers are spread over devices", _TREE)
    if lm.rolled_back_by != "length":
        why = "its running state follows one line of tokens, and has no column for a branch"
        raise _refusal(name, why, _TREE)
    if isinstance(lm, TorchLM) and isinstance(lm.cache, StateCache):
        raise _refusal(name, "the keys of its index are in the order of a line", _TREE)
    window = attention_window(lm.config)
    if window is not None and window < lm.context_window and not isinstance(lm, OnnxLM):
        why = f"over {lm.backend} its attention window of {window} tokens would not follow the branches"
        raise _refusal(name, why, _TREE)


@torch.inference_mode()
def require_exact_tree(lm: BeamLM, flag: str = _SAMPLING) -> None:
    """Score a small tree, keep one branch and go on; compare with a forward of each branch in line.

    It catches models that ignore a mask or positions, and caches whose columns cannot be moved. The prompt
    exceeds a small attention window.
    """
    window = lm.window if lm.window and lm.window <= _WIDEST_WINDOW else 0
    prompt = [token % lm.vocab_size for token in range(3, 8 + window)]
    if lm.border is not None:
        prompt += [*lm.border.ending, *lm.border.start]
    root = Node(prompt[-1])
    one, other = root.child(1), root.child(2)
    tip = other.child(3)
    beside, below = other.child(5), tip.child(4)
    try:
        lm.begin(prompt)
        rows = lm.scored([root, one, other, tip])
        lm.keep([tip])  # one branch goes, and the columns after it move
        rows += lm.scored([beside, below])
        nodes = (root, one, other, tip, beside, below)
        lines = torch.stack([lm.in_line(prompt, node.tokens()) for node in nodes]).double()
    except Exception as error:
        refuse_fault(error, f" while {lm.name} was tested with a tree")
        reason = first_line(error, kind=True)
        raise _refusal(lm.name, reason, flag) from error
    worst = float((torch.stack(rows).double() - lines).abs().max() / lines.abs().max().clamp(min=1e-9))
    if not worst <= tolerance(lm.dtype):
        raise _refusal(lm.name, f"logits differ by {worst:.2g} of their scale from those in line", flag)


_WIDEST_WINDOW = 256


class _Layout(Protocol):
    """How the forward of a backend is given a tree."""

    def begin(self, prompt: Sequence[int]) -> int:
        """Forget the last sequence and read the prompt but its last token.

        Return how many columns it takes.
        """
        ...

    def score(self, ids: Tensor, prefix: int, branches: Branches) -> Tensor:
        """Append ids [n], which all see the first ``prefix`` columns; [n, V or more] logits."""
        ...

    def keep(self, start: int, columns: Columns) -> None:
        """Move columns to ``start`` and after it, where the cache then ends."""
        ...


class _Onnx:
    def __init__(self, lm: OnnxLM) -> None:
        self._lm, self.keep = lm, lm.keep

    def begin(self, prompt: Sequence[int]) -> int:
        return len(prompt) - len(self._lm.begin(prompt))

    def score(self, ids: Tensor, prefix: int, branches: Branches) -> Tensor:
        return self._lm.score(ids, len(ids), branches)


def _layout_of(lm: TorchLM | OnnxLM) -> _Layout:
    if isinstance(lm, OnnxLM):
        return _Onnx(lm)
    return _encoder_decoder(lm) if isinstance(lm, Seq2SeqLM) else _DecoderOnly(lm)


class _DecoderOnly:
    """Positions and mask are arguments."""

    def __init__(self, lm: TorchLM) -> None:
        self._lm = lm

    def begin(self, prompt: Sequence[int]) -> int:
        return len(prompt) - len(self._lm.begin(prompt))

    def score(self, ids: Tensor, prefix: int, branches: Branches) -> Tensor:
        positions = torch.from_numpy(branches.positions[-len(ids) :]).to(ids.device)
        mask = additive(branches, prefix, self._lm)
        return self._lm.score_tree(ids, positions, mask)

    def keep(self, start: int, columns: Columns) -> None:
        self._lm.keep(start, torch.from_numpy(columns).to(self._lm.device))


Placed = Callable[[Any, Tensor, Tensor], AbstractContextManager[Any]]
"""A decoder with these positions and distances while the block lasts."""


class _EncoderDecoder:
    """The decoder takes no positions: they are put where it makes its own of the cache's length."""

    def __init__(self, lm: Seq2SeqLM, placed: Placed) -> None:
        self._lm, self._placed = lm, placed
        self._cache = RewindCache()
        self._encoded: Encoded | None = None

    def begin(self, prompt: Sequence[int]) -> int:
        cut = self._lm.border.source_length(prompt)
        device = self._lm.device
        self._cache = RewindCache()
        self._encoded = Encoded(self._lm.model, prompt[:cut], self._cache)
        read = prompt[cut:-1]
        # The last token is read even if alone, for the keys of the cross-attention, and forgotten.
        self._encoded.decode(torch.tensor([list(read) or list(prompt[-1:])], device=device))
        self._cache.rollback(len(read))
        return len(read)

    def score(self, ids: Tensor, prefix: int, branches: Branches) -> Tensor:
        assert self._encoded is not None, "a sequence begins with begin()"
        tree = torch.from_numpy(branches.positions).to(ids.device)
        columns = torch.cat([torch.arange(prefix, device=ids.device), tree])
        positions = tree[-len(ids) :]
        with self._placed(self._lm.model.get_decoder(), positions, columns - positions.unsqueeze(1)):
            return self._encoded.decode(ids.unsqueeze(0), additive(branches, prefix, self._lm))

    def keep(self, start: int, columns: Columns) -> None:
        self._cache.move(start, torch.from_numpy(columns).to(self._lm.device))


def _encoder_decoder(lm: Seq2SeqLM) -> _EncoderDecoder:
    decoder = lm.model.get_decoder()
    if hasattr(decoder, "embed_positions"):
        return _EncoderDecoder(lm, _learned)
    block = getattr(decoder, "block", None)
    if block is not None and hasattr(block[0].layer[0].SelfAttention, "_relative_position_bucket"):
        return _EncoderDecoder(lm, _relative)
    raise _refusal(type(lm.model).__name__, "its decoder's positions cannot be set", _SAMPLING)


def _learned(decoder: Any, positions: Tensor, distances: Tensor) -> AbstractContextManager[Any]:
    """Add a table of learned positions, as in BART."""
    original = decoder.embed_positions.forward

    def forward(ids: Tensor, *inline: Any, **others: Any) -> Any:
        return original(ids, position_ids=positions)

    return patch.object(decoder.embed_positions, "forward", forward)


def _relative(decoder: Any, positions: Tensor, distances: Tensor) -> AbstractContextManager[Any]:
    """Add biases by distance, as in T5, whose layers share those of the first."""
    attention = decoder.block[0].layer[0].SelfAttention

    def compute_bias(*inline: Any, **others: Any) -> Any:
        buckets = attention._relative_position_bucket(
            distances,
            bidirectional=False,
            num_buckets=attention.relative_attention_num_buckets,
            max_distance=attention.relative_attention_max_distance,
        )
        return attention.relative_attention_bias(buckets).permute(2, 0, 1).unsqueeze(0)

    return patch.object(attention, "compute_bias", compute_bias)


def additive(branches: Branches, prefix: int, lm: CausalLM) -> Tensor:
    """[1, 1, n, m] 0 where a column is seen, else the dtype's least number, which eager attention adds."""
    hidden = torch.from_numpy(~branches.sees).to(lm.device)
    tree = torch.zeros(hidden.shape, dtype=lm.dtype, device=lm.device)
    tree.masked_fill_(hidden, torch.finfo(lm.dtype).min)
    return torch.nn.functional.pad(tree, (prefix, 0))[None, None]


def _refusal(name: str, reason: str, flag: str) -> UsageError:
    other = "another sampling than beam" if flag == _SAMPLING else "drafts that are chains"
    return UsageError(
        f"{name} cannot score a tree of tokens: {reason}.",
        flag=flag,
        remedy=f"Choose {other}, or another model.",
    )

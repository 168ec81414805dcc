"""A transformers model that scores a tree of tokens after one prompt: what beam search needs of it.

Batch size 1: the prompt is cached once for all beams, every token of the tree has one column after it, and
a mask lets each token attend to the prompt and to its own ancestors. Positions are by depth. Other layouts
and why this one: docs/adr/0024-beams-share-one-row.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from spsbench.decode.beam import Node
from spsbench.errors import UsageError
from spsbench.models.causal_lm import tolerance
from spsbench.models.seq2seq_lm import Encoded, Seq2SeqLM
from spsbench.models.torch_lm import RewindLayer, TorchLM


class BeamLM:
    """A ``TreeModel`` over the stock forward of a model; weights are shared, the cache is its own."""

    def __init__(self, lm: TorchLM) -> None:
        self._lm, self.model, self.vocab_size = lm, lm.model, lm.vocab_size
        self.border = lm.border if isinstance(lm, Seq2SeqLM) else None
        self._layout = _encoder_decoder(self.model) if self.border else _DecoderOnly(self.model)
        self._tree = _Tree(0, self.model.device)

    @torch.inference_mode()
    def begin(self, prompt: Sequence[int]) -> None:
        """See ``TreeModel.begin``; runs the encoder where there is one."""
        cut = 0 if self.border is None else self.border.source_length(prompt)
        source, read = prompt[:cut], prompt[cut:-1]
        self._layout.begin(source)
        self._tree = _Tree(len(read), self.model.device)
        if read or source:  # an encoder-decoder reads the last token too, for its cross-attention's keys
            ids = list(read) or list(prompt[-1:])
            self._layout.read(self._ids(ids))
            self._layout.keep(torch.arange(len(read), device=self.model.device))

    @torch.inference_mode()
    def score(self, nodes: Sequence[Node]) -> Tensor:
        fresh = self._tree.add(nodes)
        ids = self._ids([node.token for node in fresh])
        depths = torch.tensor([node.depth for node in fresh], device=self.model.device)
        mask, distances = self._tree.seen(len(fresh), depths)
        logits = self._layout.score(ids, self._tree.prefix + depths, mask, distances)[:, : self.vocab_size]
        if fresh == list(nodes):
            return logits
        place = {node: index for index, node in enumerate(fresh)}
        return logits[[place[node] for node in nodes]]

    @torch.inference_mode()
    def keep(self, nodes: Sequence[Node]) -> None:
        self._layout.keep(self._tree.keep(nodes))

    @torch.inference_mode()
    def in_line(self, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """[V] logits after a prompt and tokens, by one forward without cache or tree."""
        return self._lm.score_uncached(self._ids([*prompt, *tokens])[0], last=1)[0]

    def _ids(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor([tokens], device=self.model.device)


@torch.inference_mode()
def require_exact_tree(lm: BeamLM) -> None:
    """Score a small tree, keep one branch and go on; compare with a forward of each branch in line.

    It catches models that ignore a mask or positions, and caches whose columns cannot be moved.
    """
    prompt = [token % lm.vocab_size for token in range(3, 8)]
    if lm.border is not None:
        prompt += [*lm.border.ending, *lm.border.start]
    root = Node(prompt[-1])
    one, other = root.child(1), root.child(2)
    tip = other.child(3)
    beside, below = other.child(5), tip.child(4)
    try:
        lm.begin(prompt)
        found = [*lm.score([root, one, other, tip])]
        lm.keep([tip])  # one branch goes, and the columns after it move
        found += [*lm.score([beside, below])]
        nodes = (root, one, other, tip, beside, below)
        lines = torch.stack([lm.in_line(prompt, node.tokens()) for node in nodes]).double()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        raise _refusal(lm.model, reason) from error
    worst = float((torch.stack(found).double() - lines).abs().max() / lines.abs().max().clamp(min=1e-9))
    if not worst <= tolerance(lm.model.dtype):
        raise _refusal(lm.model, f"logits differ by {worst:.2g} of their scale from those in line")


class _Tree:
    """Which column of the cache is which node, and what each of them attends to."""

    def __init__(self, prefix: int, device: torch.device) -> None:
        self.prefix = prefix
        self._columns: dict[Node, int] = {}
        self._depths = torch.empty(0, dtype=torch.int64, device=device)
        self._sees = torch.empty(0, 0, dtype=torch.bool, device=device)

    def add(self, nodes: Sequence[Node]) -> list[Node]:
        """Give columns to nodes and to their ancestors without one; all of those, in order of depth."""
        fresh: dict[Node, None] = {}
        for node in nodes:
            above: Node | None = node
            while above is not None and above not in self._columns and above not in fresh:
                fresh[above] = None
                above = above.parent
        ordered = sorted(fresh, key=lambda node: node.depth)
        self._columns |= {node: len(self._columns) + index for index, node in enumerate(ordered)}
        self._grow(ordered)
        return ordered

    def _grow(self, ordered: Sequence[Node]) -> None:
        first, count = len(self._sees), len(self._columns)
        sees = torch.nn.functional.pad(self._sees, (0, count - first, 0, count - first))
        start = 0
        while start < len(ordered):  # all of one depth together: their parents' rows are there
            end = start
            while end < len(ordered) and ordered[end].depth == ordered[start].depth:
                end += 1
            rows = slice(first + start, first + end)
            if parents := [self._columns[n.parent] for n in ordered[start:end] if n.parent is not None]:
                sees[rows] = sees[parents]
            sees[rows, rows].fill_diagonal_(True)
            start = end
        self._sees = sees
        own = torch.tensor([node.depth for node in ordered], dtype=torch.int64, device=sees.device)
        self._depths = torch.cat([self._depths, own])

    def seen(self, n: int, depths: Tensor) -> tuple[Tensor, Tensor]:
        """[n, prefix + columns] whether each of the last n nodes, of ``depths`` [n], sees a column, and how
        many tokens the column lies ahead."""
        tree = self._sees[len(self._sees) - n :]
        mask = torch.nn.functional.pad(tree, (self.prefix, 0), value=True)
        prefix = torch.arange(self.prefix, device=tree.device)
        positions = torch.cat([prefix, self.prefix + self._depths])
        return mask, positions - (self.prefix + depths).unsqueeze(1)

    def keep(self, nodes: Sequence[Node]) -> Tensor:
        kept: set[Node] = set()
        for node in nodes:
            above = node.parent
            while above is not None and above not in kept:
                kept.add(above)
                above = above.parent
        stay = [node for node in self._columns if node in kept]
        columns = torch.tensor(
            [self._columns[node] for node in stay], dtype=torch.int64, device=self._sees.device
        )
        self._columns = {node: index for index, node in enumerate(stay)}
        self._sees = self._sees[columns][:, columns]
        self._depths = self._depths[columns]
        prefix = torch.arange(self.prefix, device=columns.device)
        return torch.cat([prefix, self.prefix + columns])


class _TreeLayer(RewindLayer):
    """Keys and values of which any columns can be kept."""

    def keep(self, columns: Tensor) -> None:
        if self._key_buffer is None or self._value_buffer is None:
            return
        still = int((columns == torch.arange(len(columns), device=columns.device)).long().cumprod(0).sum())
        moved = columns[still:]
        for buffer in (self._key_buffer, self._value_buffer):
            buffer.narrow(2, still, len(moved)).copy_(buffer.index_select(2, moved))
        self.used = len(columns)


class _TreeCache(Cache):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=_TreeLayer)

    def keep(self, columns: Tensor) -> None:
        for layer in self.layers:
            layer.keep(columns)


class _DecoderOnly:
    """How a decoder alone is called: positions and mask are arguments."""

    def __init__(self, model: Any) -> None:
        self._model, self._cache = model, _TreeCache()

    def begin(self, source: Sequence[int]) -> None:
        """Forget the last sequence."""
        self._cache = _TreeCache()

    def read(self, ids: Tensor) -> None:
        """Read [1, n] ids in line."""
        self._model(input_ids=ids, past_key_values=self._cache, use_cache=True, logits_to_keep=1)

    def score(self, ids: Tensor, positions: Tensor, mask: Tensor, distances: Tensor) -> Tensor:
        """[n, V] logits of [1, n] ids at positions [n]; ``mask`` and ``distances`` as in ``_Tree.seen``."""
        output = self._model(
            input_ids=ids,
            position_ids=positions.unsqueeze(0),
            attention_mask=_additive(mask, self._model.dtype),
            past_key_values=self._cache,
            use_cache=True,
        )
        logits: Tensor = output.logits[0]
        return logits

    def keep(self, columns: Tensor) -> None:
        self._cache.keep(columns)


Placed = Callable[[Any, Tensor, Tensor], AbstractContextManager[Any]]
"""A decoder with these positions and distances while the block lasts."""


class _EncoderDecoder(_DecoderOnly):
    """The decoder takes no positions: they are put where it makes its own of the cache's length."""

    def __init__(self, model: Any, placed: Placed) -> None:
        super().__init__(model)
        self._placed = placed
        self._encoded: Encoded | None = None

    def begin(self, source: Sequence[int]) -> None:
        """Forget the last sequence; run the encoder over the source."""
        super().begin(source)
        self._encoded = Encoded(self._model, source, self._cache)

    def read(self, ids: Tensor) -> None:
        assert self._encoded is not None, "a sequence begins with begin()"
        self._encoded.decode(ids)

    def score(self, ids: Tensor, positions: Tensor, mask: Tensor, distances: Tensor) -> Tensor:
        assert self._encoded is not None, "a sequence begins with begin()"
        with self._placed(self._model.get_decoder(), positions, distances):
            return self._encoded.decode(ids, _additive(mask, self._model.dtype))


def _encoder_decoder(model: Any) -> _EncoderDecoder:
    decoder = model.get_decoder()
    if hasattr(decoder, "embed_positions"):
        return _EncoderDecoder(model, _learned)
    block = getattr(decoder, "block", None)
    if block is not None and hasattr(block[0].layer[0].SelfAttention, "_relative_position_bucket"):
        return _EncoderDecoder(model, _relative)
    raise _refusal(model, "its decoder's positions cannot be set")


def _learned(decoder: Any, positions: Tensor, distances: Tensor) -> AbstractContextManager[Any]:
    """A table of positions, as in BART."""
    original = decoder.embed_positions.forward

    def forward(ids: Tensor, *inline: Any, **others: Any) -> Any:
        return original(ids, position_ids=positions)

    return patch.object(decoder.embed_positions, "forward", forward)


def _relative(decoder: Any, positions: Tensor, distances: Tensor) -> AbstractContextManager[Any]:
    """Biases by distance, as in T5; its layers share those of the first."""
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


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """[1, 1, n, m] 0 where a column is seen, else the dtype's least number: what eager attention adds."""
    least = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=mask.device)
    return torch.where(mask, torch.zeros((), dtype=dtype, device=mask.device), least)[None, None]


def _refusal(model: Any, reason: str) -> UsageError:
    return UsageError(
        f"{type(model).__name__} cannot score a tree of tokens: {reason}.",
        flag="--sampling",
        remedy="Choose another sampling than beam, or another model.",
    )

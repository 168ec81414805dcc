"""Warped rows as they are held while a loop runs: on the host by their support, elsewhere as tensors.

A nucleus keeps a few of a vocabulary's tokens. On a CPU everything after the forward is therefore done on
those: the row is warped once, its nucleus is found among the few tokens that are probable enough, and what
is drawn, tested and subtracted afterwards is as long as the nucleus. On an accelerator a row stays a tensor,
since looking for its support would make the host wait.

The law is that of ``decode.sampling.warp``, to the bit: the same softmax, the same tokens, the same sums.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from spsbench.base.arrays import AnyFloats, Ints
from spsbench.base.records import SamplingParams
from spsbench.decode import sampling as law

# A nucleus is looked for among the tokens of more than this probability, then of fewer, then among all.
_SHARES = (1e-3, 1e-5, 0.0)
# Up to so many candidates are added up in Python.
_HEAD = 64
# From so many elements on torch shares an operation out among its threads.
_TORCH_ALONE = 1 << 15
# What a row takes beside its numbers: two arrays and a tuple, as objects.
_ROW_BYTES = 350
# A draw from more weights than this first finds the block, then the token inside.
_BLOCK = 512


class Rows(ABC):
    """n warped distributions over V tokens."""

    __slots__ = ("__weakref__",)

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """What they take in memory."""

    @property
    @abstractmethod
    def dense_nbytes(self) -> int:
        """What ``dense`` takes."""

    @abstractmethod
    def __len__(self) -> int:
        """n."""

    @abstractmethod
    def dense(self) -> Tensor:
        """[n, V] the same as a tensor; built where it is not held: for records, after the clock."""

    @abstractmethod
    def draw(self, u: Tensor) -> Tensor:
        """[n] one token a row, by uniform numbers [n] in [0, 1); see ``sampling.draw``."""

    @abstractmethod
    def at(self, tokens: Tensor) -> Tensor:
        """[k] the probability of ``tokens[i]`` in row i, for k tokens, at most n."""

    @abstractmethod
    def probability(self, row: int, token: int) -> float:
        """Of one token in one row."""

    @abstractmethod
    def pick(self, row: Tensor) -> Rows:
        """One of the rows, by its number []."""

    @abstractmethod
    def take(self, places: Sequence[int]) -> Rows:
        """Rows by their numbers, in any order."""

    @abstractmethod
    def part(self, first: int, count: int) -> Rows:
        """Some consecutive ones of the rows; nothing is copied."""

    @abstractmethod
    def alike(self, other: Rows) -> Rows:
        """Other rows, held as these are."""

    @abstractmethod
    def is_finite(self) -> bool:
        """Whether every probability is a number."""


class TensorRows(Rows):
    """Rows as a tensor [n, V], on any device; nothing here makes the host wait but ``is_finite``."""

    __slots__ = ("_probs",)

    def __init__(self, probs: Tensor) -> None:
        self._probs = probs

    @property
    def nbytes(self) -> int:
        return self._probs.nbytes

    @property
    def dense_nbytes(self) -> int:
        return self.nbytes

    def __len__(self) -> int:
        return len(self._probs)

    def dense(self) -> Tensor:
        return self._probs

    def draw(self, u: Tensor) -> Tensor:
        return law.draw(self._probs, u)

    def at(self, tokens: Tensor) -> Tensor:
        return self._probs.narrow(0, 0, len(tokens)).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)

    def probability(self, row: int, token: int) -> float:
        return float(self._probs[row, token])

    def pick(self, row: Tensor) -> TensorRows:
        return TensorRows(self._probs.index_select(0, row.unsqueeze(0)))

    def take(self, places: Sequence[int]) -> TensorRows:
        return TensorRows(self._probs[list(places)])

    def part(self, first: int, count: int) -> TensorRows:
        return TensorRows(self._probs.narrow(0, first, count))

    def alike(self, other: Rows) -> TensorRows:
        return other if isinstance(other, TensorRows) else TensorRows(other.dense().to(self._probs.device))

    def is_finite(self) -> bool:
        return bool(self._probs.isfinite().all())


class HostRow(NamedTuple):
    """One distribution on the host.

    Attributes:
        ids: [m] the tokens of its support, ascending; None for all of the vocabulary.
        weights: [m] their probabilities; of a row that came from NaN, NaN.
    """

    ids: Ints | None
    weights: AnyFloats

    @classmethod
    def of(cls, probs: AnyFloats) -> HostRow:
        """From all V probabilities, which it may go on looking at."""
        ids = (probs != 0).nonzero()[0]
        return cls(ids, probs[ids]) if 0 < 2 * len(ids) <= len(probs) else cls(None, probs)

    def drawn(self, weights: AnyFloats, u: float) -> int:
        """A token of the support by other weights [m] than its own, see ``sampling.draw``."""
        place = _inverse(weights, u)
        return place if self.ids is None else int(self.ids[place])

    def at(self, token: int) -> float:
        """The probability of one token."""
        if self.ids is None:
            return float(self.weights[token])
        if len(self.ids) == 1:
            return float(self.weights[0]) if self.ids[0] == token else 0.0
        place = int(self.ids.searchsorted(token))
        return float(self.weights[place]) if place < len(self.ids) and self.ids[place] == token else 0.0

    def along(self, other: HostRow) -> AnyFloats:
        """[m] the probabilities of the tokens that ``other`` supports."""
        if other.ids is None:
            return self.spread(len(other.weights))
        if self.ids is None:
            return self.weights[other.ids]
        if len(self.ids) + len(other.ids) > _BLOCK:
            size = int(max(self.ids[-1], other.ids[-1])) + 1
            return self.spread(size)[other.ids]
        places = self.ids.searchsorted(other.ids)
        places[places == len(self.ids)] = 0
        return np.where(self.ids[places] == other.ids, self.weights[places], 0)

    def without(self, token: int) -> AnyFloats:
        """[m] its weights, with 0 at one token; its own where nothing else is left."""
        place = token if self.ids is None else int(self.ids.searchsorted(token))
        if place == len(self.weights) or (self.ids is not None and self.ids[place] != token):
            return self.weights
        rest = self.weights.copy()
        rest[place] = 0.0
        return rest if rest.any() else self.weights

    def spread(self, vocab_size: int) -> AnyFloats:
        """[V] with zeros outside of the support."""
        if self.ids is None:
            return self.weights
        row = np.zeros(vocab_size, self.weights.dtype)
        row[self.ids] = self.weights
        return row


class HostRows(Rows):
    """Rows on the host, each by its support.

    Args:
        rows: n of them.
        vocab_size: V.
    """

    __slots__ = ("_rows", "_vocab_size")

    def __init__(self, rows: Sequence[HostRow], vocab_size: int) -> None:
        self._rows = rows
        self._vocab_size = vocab_size

    @classmethod
    def of(cls, probs: Tensor) -> HostRows:
        """From a tensor [n, V]; it must not change afterwards."""
        wide = probs.detach().to("cpu", torch.promote_types(probs.dtype, torch.float32))
        return HostRows([HostRow.of(row) for row in wide.numpy()], probs.shape[-1])

    def each(self) -> Sequence[HostRow]:
        """The n rows."""
        return self._rows

    @property
    def nbytes(self) -> int:
        taken = _ROW_BYTES * len(self)
        for ids, weights in self.each():
            taken += weights.nbytes + (0 if ids is None else ids.nbytes)
        return taken

    @property
    def dense_nbytes(self) -> int:
        return len(self) * self._vocab_size * self[0].weights.itemsize

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> HostRow:
        return self._rows[index]

    def dense(self) -> Tensor:
        return torch.from_numpy(np.stack([row.spread(self._vocab_size) for row in self.each()]))

    def draw(self, u: Tensor) -> Tensor:
        drawn = [row.drawn(row.weights, number) for row, number in zip(self.each(), u.tolist(), strict=True)]
        return torch.from_numpy(np.array(drawn))

    def at(self, tokens: Tensor) -> Tensor:
        return torch.from_numpy(self.of_tokens(tokens.tolist()))

    def of_tokens(self, tokens: Sequence[int]) -> AnyFloats:
        """[k] the same as ``at``, of numbers."""
        rows = self.each()
        own = [row.at(token) for row, token in zip(rows, tokens, strict=False)]
        return np.array(own, rows[0].weights.dtype)

    def probability(self, row: int, token: int) -> float:
        return self[row].at(token)

    def pick(self, row: Tensor) -> HostRows:
        return HostRows([self[int(row)]], self._vocab_size)

    def take(self, places: Sequence[int]) -> HostRows:
        return HostRows([self[place] for place in places], self._vocab_size)

    def part(self, first: int, count: int) -> HostRows:
        return HostRows(self.each()[first : first + count], self._vocab_size)

    def alike(self, other: Rows) -> HostRows:
        return on_host(other)

    def is_finite(self) -> bool:
        return all(bool(np.isfinite(row.weights).all()) for row in self.each())


def warped(logits: Tensor, params: SamplingParams) -> Rows:
    """Warp logits into rows, held as their device suits; the law is that of ``sampling.warp``.

    Args:
        logits: [n, V], any floating dtype. They may be overwritten afterwards.
        params: temperature, top_k, top_p, greedy.

    Returns:
        n rows in at least float32. A row whose logits hold a NaN or an infinity that leaves no law is NaN.
    """
    if not logits.is_cpu or params.process is not None:
        return as_in_a_loop(law.warp(logits, params))
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    if logits.requires_grad:
        logits = logits.detach()
    if params.greedy:
        rows = _one_hot_of_largest(logits.numpy())
    else:
        rows = [_row_of_nucleus(probs, params) for probs in _probabilities(logits.numpy(), params)]
    return HostRows(rows, logits.shape[-1])


def rows_of(probs: Rows | Tensor) -> Rows:
    """Return rows, of a tensor [n, V] too, which then stays one."""
    return TensorRows(probs) if isinstance(probs, Tensor) else probs


def as_in_a_loop(probs: Tensor) -> Rows:
    """[n, V] probabilities as a loop on their device would hold them."""
    return HostRows.of(probs) if probs.device.type == "cpu" else TensorRows(probs)


def on_host(rows: Rows) -> HostRows:
    """Rows on the host, whatever device has them; of a tensor a copy, for graphs write to theirs again."""
    return rows if isinstance(rows, HostRows) else HostRows.of(rows.dense().to("cpu", copy=True))


def joined(parts: Sequence[Rows]) -> Rows:
    """All rows of several that are held alike, one after the other; at least one part."""
    hosts = [part for part in parts if isinstance(part, HostRows)]
    if len(hosts) == len(parts):
        return HostRows([row for part in hosts for row in part.each()], hosts[0]._vocab_size)
    return TensorRows(torch.cat([part.dense() for part in parts]))


Judge = TypeVar("Judge", bound=Callable[..., Any])


def takes_rows(judge: Judge) -> Judge:
    """Mark a rule, or a policy's margin, that takes ``Rows`` as well as a tensor [n, V]."""
    judge.takes_rows = True  # type: ignore[attr-defined]
    return judge


def for_judge(judge: Callable[..., Any], rows: Rows) -> Any:
    """Rows in the form that a rule takes: made dense for one that knows only tensors."""
    return rows if getattr(judge, "takes_rows", False) else rows.dense()


def _one_hot_of_largest(scores: AnyFloats) -> list[HostRow]:
    """Of logits [n, V]; NaN where that is none."""
    best = scores.argmax(-1)
    certain = np.ones(len(scores), scores.dtype)
    for n, token in enumerate(best.tolist()):
        if not math.isfinite(scores[n, token]):
            certain[n] = math.nan
    return [HostRow(best[n : n + 1], certain[n : n + 1]) for n in range(len(scores))]


def _probabilities(logits: AnyFloats, params: SamplingParams) -> Iterator[AnyFloats]:
    """Each row's softmax at the temperature, of the largest logits alone if so wanted.

    Row by row: a softmax of several would share them out among torch's threads, and wake these. Where torch
    has one thread, short rows have one softmax. Numpy divides: behind a forward torch's first calls are slow.
    """
    n = len(logits)
    step = n if n > 1 and logits.size < _TORCH_ALONE and torch.get_num_threads() == 1 else 1
    for first in range(0, n, step):
        scores = logits[first : first + step]
        if params.temperature != 1.0:
            with np.errstate(over="ignore"):
                scores = scores / params.temperature
        if 0 < params.top_k < scores.shape[-1]:
            scores = _largest(scores, params.top_k)
        yield from torch.from_numpy(scores).softmax(-1).numpy()


def _row_of_nucleus(probs: AnyFloats, params: SamplingParams) -> HostRow:
    """From probabilities [V]."""
    if params.top_p < 1.0:
        return _nucleus(probs, params.top_p)
    return HostRow.of(probs) if params.top_k else HostRow(None, probs)


def _largest(scores: AnyFloats, k: int) -> AnyFloats:
    """The k largest scores and what ties with them; minus infinity elsewhere."""
    kth = np.partition(scores, -k)[..., -k, None]
    return np.where(scores < kth, -np.inf, scores).astype(scores.dtype, copy=False)


def _nucleus(probs: AnyFloats, top_p: float) -> HostRow:
    """The smallest set of most probable tokens whose mass reaches ``top_p``, renormalised.

    Looked for among the tokens above some probability: every more probable token is among them, so that
    the search is over as soon as their mass suffices.
    """
    for share in _SHARES:
        ids = (probs > share).nonzero()[0]
        inside = probs[ids]
        found = _edge(inside, top_p, share == 0)
        if found is not None:
            break
    else:
        return HostRow(None, probs)  # NaN
    edge, mass = found
    if 4 * len(ids) > len(probs):
        kept = probs >= edge
        if 2 * np.count_nonzero(kept) > len(probs):
            return HostRow(None, probs * kept / mass)
    places = (inside >= edge).nonzero()[0]
    return HostRow(ids[places], inside[places] / mass)


def _edge(inside: AnyFloats, top_p: float, are_all: bool) -> tuple[float, float] | None:
    """The least probability in the nucleus, and the nucleus's mass; None if it reaches past these tokens.

    Args:
        inside: [m] probabilities of all tokens above some share.
        top_p: the mass that is wanted.
        are_all: whether no other token is left: rounding may leave even all of them below ``top_p``.
    """
    if len(inside) <= _HEAD:
        return _edge_of_few(sorted(inside.tolist(), reverse=True), top_p, are_all)
    if not are_all and inside.sum() < top_p:
        return None  # too few candidates: do not sort them
    falling = np.sort(inside)[::-1]
    mass = np.add.accumulate(falling, dtype=np.float64)
    if mass[-1] < top_p and not are_all:
        return None
    edge = float(falling[min(int(mass.searchsorted(top_p)), len(mass) - 1)])
    return edge, float(mass[np.count_nonzero(inside >= edge) - 1])


def _edge_of_few(falling: list[float], top_p: float, are_all: bool) -> tuple[float, float] | None:
    """As ``_edge``, from few probabilities: a loop in Python costs less than the operations it replaces."""
    mass = last = 0.0
    for value in falling:
        if mass >= top_p and value < last:
            return last, mass
        mass, last = mass + value, value
    # Those that tie with the last of them are among them: the search ends here if the mass is enough.
    return (last, mass) if falling and (are_all or mass >= top_p) else None


def _inverse(weights: AnyFloats, u: float) -> int:
    """Index into [m] weights by the inverse of their cumulative sum; one of weight 0 is never drawn."""
    if len(weights) <= _HEAD:
        few = list(accumulate(weights.tolist()))
        return min(bisect_right(few, u * few[-1]), len(few) - 1)
    if len(weights) <= 4 * _BLOCK:
        reached = np.add.accumulate(weights, dtype=np.float64)
        return min(int(reached.searchsorted(u * reached[-1], side="right")), len(weights) - 1)
    starts = range(0, len(weights), _BLOCK)
    blocks = np.add.accumulate(np.add.reduceat(weights, starts), dtype=np.float64)
    point = u * blocks[-1]
    block = min(int(blocks.searchsorted(point, side="right")), len(blocks) - 1)
    first = block * _BLOCK
    inside = np.add.accumulate(weights[first : first + _BLOCK], dtype=np.float64)
    place = int(inside.searchsorted(point - (blocks[block - 1] if block else 0.0), side="right"))
    if place == len(inside):
        # The two sums of the block differ by rounding: the last token that weighs anything.
        place = min(int(inside.searchsorted(inside[-1])), len(inside) - 1)
    return first + place

"""The rows that loops had, held against an independent forward of the finished text.

How far rounding moves a row is the model's affair: an expert or a key of an index that is chosen otherwise
moves it by as much as a fault, and ill-conditioned weights move it farther than any bound. So it is measured,
twice, and never by what is judged.

Of every text in 16 bits the independent forward reads a few tokens again, in blocks of 1 and of K+1: how far
that moves their rows on average is what the loops' rows may come to.

A text whose rows lie farther off, or with a token that has probability 0, is read a second time: in the
blocks that its loops read, rejected tokens included, behind a cache that shares nothing with the loops'. The
same shapes round alike, so that a right loop's rows come out again, and count with their distance from these;
those of a wrong position or a stale cache do not come out. Few right texts are read so, and it takes as long
as their loops did.

Both readings are the model's own. That its forward behind a cache is its forward, the self-test says when it
is loaded; a reading which is farther from the uncached one than that test grants explains nothing, unless
experts or keys were chosen otherwise before.

A token that still has probability 0 is looked up once more in a forward without a cache of the text before it
alone: nothing of the loops is in that one, and it rounds otherwise than the forward of the whole text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from spsbench.base.records import Generation, SamplingParams
from spsbench.decode import rows as loop_rows
from spsbench.decode.processors import with_history
from spsbench.engines.rescore import Reading, possible, rows_at_a_time, spans
from spsbench.law.apart import rows_apart, shifts
from spsbench.law.evidence import DECIDED, Sums, rows_in_chunk
from spsbench.law.rederive import own_law, rounding_slack
from spsbench.law.yardstick import LEAST_ROUNDING, TOO_FAR
from spsbench.models.causal_lm import CausalLM, tolerance
from spsbench.models.choices import Choices
from spsbench.models.witness import ReadBlock, even_blocks

_IN_BLOCKS = 16
"""Tokens of each text that are read in blocks: a forward each at a width of 1."""

_ALONE = 8
"""Tokens of probability 0 in one text, at most, that are looked at alone: rounding does not make more."""

_SUSPECT = TOO_FAR / 2
"""A text this many times farther off than rounding is read a second time.

Over an arm rounding and its floor are added up: texts below half of what is an alarm never come to one.
"""


def target_blocks(generation: Generation) -> list[ReadBlock]:
    """Return what the target read in each loop: the last token of the one before, and the draft.

    Branches of a tree are read as a chain.
    """
    drafts = generation.proposed or [[] for _ in generation.loops or ()]
    return [
        ReadBlock(loop.emitted, tuple(draft[loop.emitted - 1 :]))
        for loop, draft in zip(generation.loops or (), drafts, strict=True)
    ]


def draft_blocks(generation: Generation) -> list[ReadBlock]:
    """Return what a draft model read: what it has not read yet, then its tokens one at a time.

    Of the last drafted token it reads nothing, so that after a full acceptance two are left. What it read of
    rejected tokens is left out: each is a forward of its own, behind the rows that are compared.
    """
    blocks, unread = list[ReadBlock](), 1
    for loop, draft in zip(generation.loops or (), generation.proposed or (), strict=True):
        if draft:
            read = max(min(loop.emitted, len(draft)) - 1, 0)
            blocks += [ReadBlock(unread), *[ReadBlock(1)] * read]
            unread = loop.emitted - read
        else:
            unread += loop.emitted
    return blocks


class _HeldRows(NamedTuple):
    """Of rows that loops had, n each.

    Attributes:
        places: in the output.
        distance: from the forward they are held against.
        beyond: whether that is more than rounding in float32 explains.
    """

    places: Tensor
    distance: Tensor
    beyond: Tensor


class _Reading(NamedTuple):
    """A second reading of a text of n tokens, in the blocks of its loops.

    Attributes:
        rows: the loops' rows held against it.
        possible: the places of those tokens of probability 0 that have one there.
        explains: [n] whether only rounding lies between it and the first reading, at each position.
        choices: how often something was chosen otherwise than in the first reading, see ``_turned``.
    """

    rows: _HeldRows
    possible: list[int]
    explains: Tensor
    choices: Sums


class RowsHeld:
    """How far the rows that the loops had lie from an independent forward of the finished text.

    Args:
        role: ``target`` or ``draft``; it stands in the names.
        model: of the independent forward.
        kept: per loop its rows at the positions of the output; None where there are none.
        k: lookahead.
        seed: decides which part is read in blocks.
        blocks: what the loops read; None where a second reading would not be of the rows' own model.
    """

    def __init__(
        self,
        role: str,
        model: CausalLM,
        kept: Sequence[loop_rows.Rows | None],
        generation: Generation,
        sampling: SamplingParams,
        prompt: Sequence[int],
        k: int,
        seed: int,
        blocks: Sequence[ReadBlock] | None,
    ) -> None:
        self._role = role
        self._model = model
        self._sampling = sampling
        self._k = k
        self._prompt, self._tokens = prompt, generation.tokens
        starts = [start for start, _ in spans(generation)]
        self._kept = [(start, own) for start, own in zip(starts, kept, strict=True) if own is not None]
        self._is_precise = model.dtype in (torch.float32, torch.float64)
        self._slack = rounding_slack(model.dtype if self._is_precise else torch.float32)
        self._read_in_blocks = _part_in_blocks(len(self._tokens), seed)
        self._witness: list[Tensor] = []
        self._blocks = blocks
        self._rows: list[_HeldRows] = []
        self._impossible: list[int] = []

    def add(self, first: int, logits: Tensor, impossible: Tensor | None = None) -> None:
        """Compare the positions from ``first`` on with an independent forward's logits [n, V].

        Args:
            first: position in the output.
            logits: after penalties, bans and a grammar.
            impossible: [n] whether the token there has probability 0.
        """
        self._rows += self._compared(first, logits, self._slack)
        if impossible is not None:
            self._impossible += (impossible.nonzero().flatten() + first).tolist()
        if not self._is_precise:
            low, high = (min(max(end - first, 0), len(logits)) for end in self._read_in_blocks)
            if low < high:
                self._witness.append(logits[low:high].clone())

    def _compared(self, first: int, logits: Tensor, slack: float) -> list[_HeldRows]:
        held = []
        for places, kept_rows in _portions_of(self._kept, first, len(logits), logits.shape[-1]):
            apart = rows_apart(kept_rows.to(logits.device), logits[places], self._sampling, slack)
            held.append(_HeldRows(places + first, apart.distance.cpu(), apart.beyond.cpu()))
        return held

    def sums(self) -> Sums:
        """Return the sums over all positions.

        Returns:
            ``decisions_rows_ROLE``, how many rows were compared; of these ``_apart``, the sum of their
            distances (``law.apart``), and ``_beyond``, how many lie farther away than rounding explains. In
            16 bits also ``_measured``, how many positions were read in blocks, and ``_blocks``, the sum of
            the distances of the forward in blocks, of 1 or K+1 whichever is farther away. Of a text that was
            read a second time ``_again``, its rows, ``_explained``, what of ``_apart`` rounding explains,
            ``_possible``, how many tokens of probability 0 it explains, and in float32 ``_cleared``, how many
            rows it took from ``_beyond``. ``_chosen``, of how many positions choices were compared between
            two readings, ``_experts`` and ``_index`` at how many they differ.
        """
        if not self._rows:
            return {}
        rows = _HeldRows(*(torch.cat(columns) for columns in zip(*self._rows, strict=True)))
        sums: Sums = {"": float(len(rows.places)), "_apart": float(rows.distance.sum()), "_beyond": 0.0}
        if not self._is_precise:
            sums |= self._own_distances()
        if self._is_precise:
            sums["_beyond"] = float(rows.beyond.sum())
        explained = list[int]()
        if self._is_suspect(sums) and (again := self._read_again()) is not None:
            sums |= again.choices if "_chosen" not in sums else {}
            explains = again.explains[rows.places]
            nearer = torch.minimum(rows.distance, again.rows.distance)
            sums["_again"] = sums[""]
            sums["_explained"] = float((rows.distance - nearer)[explains].sum())
            explained += again.possible
            if self._is_precise:
                sums["_cleared"] = float((rows.beyond & explains & ~again.rows.beyond).sum())
                sums["_beyond"] -= sums["_cleared"]
        if self._impossible:
            left = [place for place in self._impossible if place not in explained]
            sums["_possible"] = float(len(explained) + len(self._possible_alone(left)))
        return {f"{DECIDED}_rows_{self._role}{name}": value for name, value in sums.items()}

    def _own_distances(self) -> Sums:
        """How far the forward is from itself where it reads a part in blocks, and what it chose otherwise."""
        first, end = self._read_in_blocks
        sums: Sums = {"_measured": float(end - first)}
        readings = [self._apart_in(width) for width in sorted({1, self._k + 1})]
        known = [reading for reading in readings if reading is not None]
        if known:
            sums["_blocks"] = max(distance for distance, _ in known)
        if len(known) > 1:
            sums |= _turned(known[0][1], known[1][1], end - first)
        return sums

    def _apart_in(self, width: int) -> tuple[float, Choices] | None:
        """The summed distances of a forward in blocks; None where there is no such forward."""
        first, end = self._read_in_blocks
        ids = [*self._prompt, *self._tokens][: len(self._prompt) + end - 1]
        sequence, choices = torch.tensor(ids, device=self._model.device), Choices()
        blocks = self._model.score_in_blocks(
            sequence, len(self._prompt) + first - 1, even_blocks(end - first, width), choices
        )
        if blocks is None:
            return None
        logits = with_history(torch.cat(list(blocks)), self._sampling.history, ids, len(self._prompt))
        rows = rows_in_chunk(logits.shape[-1])
        parts = zip(torch.split(logits, rows), torch.split(torch.cat(self._witness), rows), strict=True)
        sampling, slack = self._sampling, self._slack
        distance = sum(
            float(
                rows_apart(
                    own_law(block_logits, sampling, slack).probs, whole, sampling, slack
                ).distance.sum()
            )
            for block_logits, whole in parts
        )
        return distance, choices

    def _is_suspect(self, sums: Sums) -> bool:
        if self._impossible:
            return True
        if self._is_precise:
            return sums["_beyond"] > 0
        if "_blocks" not in sums:
            return False
        rounding = max(sums["_blocks"] / sums["_measured"], LEAST_ROUNDING)
        return sums["_apart"] > _SUSPECT * rounding * sums[""]

    def _read_again(self) -> _Reading | None:
        """Read the text in the blocks of its loops; None where that cannot be done."""
        if self._blocks is None:
            return None
        n, before = len(self._tokens), len(self._prompt)
        ids = [*self._prompt, *self._tokens]
        sequence = torch.tensor(ids[:-1], device=self._model.device)
        whole_choices, choices = Choices(), Choices()
        blocks = self._model.score_in_blocks(sequence, before - 1, self._blocks, choices)
        if blocks is None:
            return None
        parts = self._model.score_uncached_parts(sequence, n, rows_at_a_time(self._model.vocab_size))
        with whole_choices:
            part = next(parts, None)
        whole_choices.forward_ended(len(sequence))
        stream, limit, slack = _Stream(blocks), tolerance(self._model.dtype), self._slack
        rows, shifted, allowed, first = list[_HeldRows](), list[Tensor](), list[bool](), 0
        while part is not None:
            read = stream.take(len(part))
            history = ids[: before + first + len(read) - 1]
            whole, logits = (
                with_history(one, self._sampling.history, history, before)
                for one in (part[: len(read)], read)
            )
            moved = shifts(logits, whole).cpu()
            shifted.append(moved)
            if self._is_precise:  # what rounding was seen to do, as far as the self-test grants it
                seen = TOO_FAR * moved[moved <= limit].amax(0) if bool((moved <= limit).any()) else moved[:0]
                slack = max([slack, *seen.clamp(max=limit).flatten().tolist()])
            rows += self._compared(first, logits, slack)
            allowed += self._possible(first, logits)
            first += len(part)
            part = next(parts, None)
        held = _HeldRows(*(torch.cat(columns) for columns in zip(*rows, strict=True)))
        explains = torch.zeros(n, dtype=torch.bool)
        near = torch.cat(shifted) <= limit
        explains[: len(near)] = near
        turned = whole_choices.turned(choices).either
        if turned is not None:  # what was chosen otherwise moves all rows after it
            after = turned.int().cummax(0).values.bool()[before - 1 :]
            explains[: len(after)] |= after
        places = zip(allowed, self._impossible, strict=True)
        granted = [place for is_allowed, place in places if is_allowed and explains[place]]
        return _Reading(held, granted, explains, _turned(whole_choices, choices, n))

    def _possible_alone(self, places: Sequence[int]) -> list[int]:
        """Those places whose token a forward of the text before it, without a cache, allows."""
        if len(places) > _ALONE:
            return []
        found = list[int]()
        for place in places:
            ids = [*self._prompt, *self._tokens[:place]]
            row = self._model.score_uncached(torch.tensor(ids, device=self._model.device), last=1)
            logits = with_history(row, self._sampling.history, ids, len(self._prompt))
            found += [place] if all(self._possible(place, logits)) else []
        return found

    def _possible(self, first: int, logits: Tensor) -> list[bool]:
        """Of the tokens of probability 0, from ``first`` on, whether these logits allow each."""
        places = [place - first for place in self._impossible if first <= place < first + len(logits)]
        if not places:
            return []
        tokens = torch.tensor([self._tokens[first + place] for place in places], device=logits.device)
        return possible(logits[places], tokens, self._sampling, self._model.dtype).tolist()


class _Stream:
    """Rows that come block by block, taken in other portions."""

    def __init__(self, blocks: Iterator[Tensor]) -> None:
        self._blocks = blocks
        self._left: Tensor | None = None

    def take(self, n: int) -> Tensor:
        """[n, V] the next rows; fewer if there are no more."""
        held = [] if self._left is None else [self._left]
        while sum(map(len, held)) < n and (block := next(self._blocks, None)) is not None:
            held.append(block)
        rows = torch.cat(held)
        self._left = rows[n:]
        return rows[:n]


def _turned(one: Choices, other: Choices, n: int) -> Sums:
    """Of the last n tokens, at how many two readings chose otherwise; nothing where nothing is chosen."""
    experts, keys = one.turned(other)
    counts = {
        name: float(mask[-n:].sum())
        for name, mask in (("_experts", experts), ("_index", keys))
        if mask is not None
    }
    return counts and {"_chosen": float(n)} | counts


def _part_in_blocks(n: int, seed: int) -> tuple[int, int]:
    """First and end, of n, of the positions that are read again in blocks."""
    count = min(_IN_BLOCKS, n)
    first = seed % (n - count + 1)
    return first, first + count


def _portions_of(
    kept: Sequence[tuple[int, loop_rows.Rows]], first: int, count: int, vocab_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """(positions [m], rows [m, V]), a few loops at a time, of the positions that have kept rows.

    Args:
        kept: (position of its first row, rows) of each loop.
        first: the first position to look at; the yielded positions are counted from it.
        count: how many positions to look at.
    """
    places = list[Tensor]()
    rows = list[Tensor]()
    count_of_rows = 0
    for at, kept_rows in kept:
        low = max(at, first)
        high = min(at + len(kept_rows), first + count)
        if low >= high:
            continue
        places.append(torch.arange(low - first, high - first))
        rows.append(kept_rows.part(low - at, high - low).dense())
        count_of_rows += high - low
        if count_of_rows > rows_in_chunk(vocab_size):
            yield torch.cat(places), torch.cat(rows)
            places, rows, count_of_rows = [], [], 0
    if rows:
        yield torch.cat(places), torch.cat(rows)


@torch.inference_mode()
def rows_held_against(
    role: str,
    model: CausalLM,
    kept: Sequence[loop_rows.Rows | None],
    generation: Generation,
    reading: Reading,
    prompt: Sequence[int],
    k: int,
    seed: int,
) -> Sums:
    """Return ``RowsHeld`` of all positions at once; ``reading`` is that of target and draft."""
    is_target = role == "target"
    logits = reading.logits if is_target else reading.draft_logits
    assert logits is not None
    blocks = target_blocks(generation) if is_target else draft_blocks(generation)
    comparison = RowsHeld(role, model, kept, generation, reading.sampling, prompt, k, seed, blocks)
    comparison.add(0, logits, reading.impossible if is_target else None)
    return comparison.sums()


def with_explained(evidence: Sums, rows: Sums, prefix: str = "") -> Sums:
    """Count those tokens of probability 0 as at the edge that a second reading of a text explains."""
    explained = rows.get(f"{DECIDED}_rows_target_possible", 0.0)
    impossible, edge = f"{prefix}impossible", f"{prefix}edge"
    return evidence | {
        impossible: evidence[impossible] - explained,
        edge: evidence.get(edge, 0.0) + explained,
    }

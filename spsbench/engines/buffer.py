"""The loops of one sequence, with their rows until these take too much memory."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spsbench.base.records import FinishReason, Generation, Loop, TracedToken
from spsbench.decode.algorithms import DecodedLoop
from spsbench.decode.clock import DeviceSeconds
from spsbench.decode.rejection import ROOT, Draft
from spsbench.decode.rows import Rows
from spsbench.decode.rules import Expected, expected_acceptance
from spsbench.engines.derivation import Derivation, KeptRows
from spsbench.law.evidence import Sums, added, sums_of
from spsbench.law.optimum import most_of_certain, most_of_chain


class TreeShape(NamedTuple):
    """A tree of which a loop went one way.

    Attributes:
        nodes: how many tokens were drafted.
        depth: the longest branch.
        siblings: of each accepted token, which child it was.
        optimum: see ``Loop.optimal_accepted``.
    """

    nodes: int
    depth: int
    siblings: tuple[int, ...]
    optimum: float | None


class _Place(NamedTuple):
    """A node of a tree that stands, or its root; of the nodes below it ``went`` stands, 0 if none does."""

    node: int
    below: Sequence[int]
    went: int


def _places_reached(draft: Draft, path: Sequence[int]) -> list[_Place]:
    below = defaultdict[int, list[int]](list)
    for node, parent in enumerate(draft.above):
        below[parent].append(node)
    inner = [_Place(node, below[node], below[node].index(next_)) for node, next_ in pairwise((ROOT, *path))]
    last = path[-1] if path else ROOT
    return [*inner, _Place(last, below[last], 0)]


def _depth(parents: Sequence[int]) -> int:
    depth_of = {ROOT: 0}
    for node, parent in enumerate(parents):
        depth_of[node] = depth_of[parent] + 1
    return max(depth_of.values())


@dataclass(slots=True)
class TruncatedLoop:
    """A decoded loop with what the stop rule kept of it.

    Attributes:
        seconds: of each phase; of an asynchronous device not to be looked into while the clock runs.
        shared_by: among how many rows of a batch a phase is shared; 1 unless given.
    """

    decoded: DecodedLoop
    kept: int
    reason: FinishReason | None
    seconds: Mapping[str, float]
    branches: TreeShape | None = None
    shared_by: Mapping[str, int] = field(default_factory=dict)

    def along_its_path(self, end_ids: Collection[int] = ()) -> TruncatedLoop:
        """Return a tree's loop as that of a chain: at each place it reached, the first sibling was drafted.

        The other rows are let go. A chain's loop is itself. No token drafted after one of ``end_ids`` counts.
        """
        decoded, draft = self.decoded, self.decoded.draft
        if draft is None or draft.parents is None:
            return self
        places = _places_reached(draft, decoded.path or ())
        tested = [place for place in places if place.below]
        first = [place.below[0] for place in tested]
        own_rows = draft.own_rows
        u = decoded.u[-len(draft.tokens) - 1 :]
        chain = replace(
            decoded,
            target_rows=decoded.target_rows.take([place.node + 1 for place in places]),
            draft=Draft(draft.tokens[first], None if own_rows is None else own_rows.take(first)),
            u=torch.cat([u[[place.below[place.went] for place in tested]], u[-1:]]),
            path=None,
        )
        branches = TreeShape(
            nodes=len(draft.tokens),
            depth=_depth(draft.parents),
            siblings=tuple(place.went for place in places[:-1]),
            optimum=most_of_certain(decoded.target_rows, draft, end_ids) if own_rows is None else None,
        )
        return replace(self, decoded=chain, branches=branches)

    @property
    def drafted(self) -> int:
        """Number of draft tokens that count as trials, in a tree its depth; none after an accepted EOS."""
        if self._ended_inside_draft:
            return self.kept
        return self._proposed if self.branches is None else self.branches.depth

    @property
    def accepted(self) -> int:
        """Accepted draft tokens, before stop strings and length cut the output."""
        return self.kept if self._ended_inside_draft else self.decoded.accepted

    @property
    def tested(self) -> int:
        """Number of draft tokens that met the acceptance test; in a tree, of places that did."""
        return min(self.accepted + (not self._ended_inside_draft), self._proposed)

    @property
    def _proposed(self) -> int:
        return 0 if self.decoded.draft is None else len(self.decoded.draft.tokens)

    @property
    def nbytes(self) -> int:
        """Memory of its rows."""
        draft, size = self.decoded.draft, self.decoded.target_rows.nbytes
        return size if draft is None or draft.drawn_from is None else size + draft.drawn_from.nbytes

    @property
    def rows(self) -> dict[str, Rows]:
        """Rows by the role of the model: the target's, and the draft's where it showed some."""
        own_rows = None if self.decoded.draft is None else self.decoded.draft.own_rows
        return {"target": self.decoded.target_rows} | ({} if own_rows is None else {"draft": own_rows})

    @property
    def _ended_inside_draft(self) -> bool:
        return self.reason == "eos" and self.kept <= self.decoded.accepted


def loop_records(
    loops: Sequence[TruncatedLoop],
    proposed: Sequence[list[int]],
    phases: bool,
    expected: Expected = expected_acceptance,
    end_ids: Collection[int] = (),
) -> list[Loop]:
    """One ``Loop`` a decoded loop.

    Args:
        proposed: their ``proposed_tokens``.
        expected: the rule's probability of acceptance at each position.
        end_ids: tokens that end the output: no drafted token after one counts.
    """
    return [
        Loop(
            drafted=loop.drafted,
            accepted=loop.accepted,
            emitted=loop.kept,
            tested=loop.tested,
            beta_sum=beta_sum,
            truncated=len(loop.decoded.tokens) - loop.kept,
            optimal_accepted=optimum,
            nodes=None if loop.branches is None else loop.branches.nodes,
            siblings=None if loop.branches is None else ",".join(map(str, loop.branches.siblings)),
            **phase_seconds(loop.seconds, phases, loop.shared_by),
        )
        for loop, beta_sum, optimum in zip(
            loops, _beta_sums(loops, expected), _optimal_acceptance(loops, proposed, end_ids), strict=True
        )
    ]


def phase_seconds(
    seconds: Mapping[str, float], phases: bool, shared_by: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return the fields of a ``Loop`` with the seconds of one of its rows; None where phases are unknown."""
    shared_by = shared_by or {}
    row_seconds = {phase: value / shared_by.get(phase, 1) for phase, value in seconds.items()}
    names = ("draft", "verify", "sample", "other", "comm", "rollback")
    times: dict[str, Any] = {f"{name}_s": row_seconds.get(name) if phases else None for name in names}
    if isinstance(seconds, DeviceSeconds):
        paced = seconds.paced_by_host.items()
        times["host_s"] = sum(value / shared_by.get(phase, 1) for phase, value in paced)
    return times | {"loop_s": sum(row_seconds.values())}


def _beta_sums(loops: Sequence[TruncatedLoop], expected: Expected) -> list[float]:
    """Sum over each loop's tested positions of the probability of acceptance there; NaN of a tree."""
    sums = []
    for loop in loops:
        draft, n = loop.decoded.draft, loop.tested
        if draft is None or n == 0 or loop.branches is not None:
            unknown = 0.0 if loop.branches is None else math.nan
            sums.append(torch.full((), unknown, device=loop.decoded.u.device))
        else:
            probs = draft.probs
            tested = Draft(draft.tokens[:n], None if probs is None else probs[:n])
            sums.append(expected(loop.decoded.target_probs, tested).sum())
    values: list[float] = torch.stack(sums).tolist() if sums else []
    return values


def _optimal_acceptance(
    loops: Sequence[TruncatedLoop], proposed: Sequence[list[int]], end_ids: Collection[int]
) -> Iterator[float | None]:
    """The accepted tokens that the best lossless rule expects of each loop's draft; None for a drawn
    tree.

    All of the draft up to an EOS counts, whatever became of it: the rule's own luck plays no part.
    """
    of_loops = [_probability_ratios(loop.decoded) for loop in loops]
    values = iter(torch.cat(of_loops).tolist() if of_loops else [])  # one wait of the host for all of them
    for loop, ids in zip(loops, proposed, strict=True):
        ratios = [next(values) for _ in ids]
        end = next((count for count, token in enumerate(ids, 1) if token in end_ids), len(ids))
        yield most_of_chain(ratios[:end]) if loop.branches is None else loop.branches.optimum


def _probability_ratios(decoded: DecodedLoop) -> Tensor:
    """[K] target's over draft's probability of each drafted token; empty for ArS."""
    draft, rows = decoded.draft, decoded.target_rows
    if draft is None or not len(draft.tokens):
        return torch.empty(0, device=decoded.u.device)
    target = rows.at(draft.tokens)
    own_rows = draft.own_rows
    return target if own_rows is None else target / rows.alike(own_rows).at(draft.tokens)


def proposed_tokens(loops: Sequence[TruncatedLoop]) -> list[list[int]]:
    """Return each loop's drafted ids; empty for ArS."""
    drafts = [loop.decoded.draft for loop in loops]
    parts = [torch.empty(0, dtype=torch.int64) if draft is None else draft.tokens for draft in drafts]
    drafted = [part for part in parts if len(part)]
    ids = iter(torch.cat(drafted).tolist() if drafted else [])  # one wait of the host for all of them
    return [[next(ids) for _ in range(len(part))] for part in parts]


def traced_tokens(loops: Sequence[TruncatedLoop], first: int = 0, position: int = 0) -> list[TracedToken]:
    """Return an entry for each drafted and tested or emitted token of the output, in order."""
    trace: list[TracedToken] = []
    for index, loop in enumerate(loops, first):
        decoded, accepted = loop.decoded, loop.accepted
        drafted = [] if decoded.draft is None else decoded.draft.tokens.tolist()
        tests = decoded.u[-len(drafted) - 1 :].tolist()
        fates = [(j, decoded.tokens[j], "accepted", tests[j]) for j in range(min(accepted, loop.kept))]
        if loop.kept > accepted:
            rejected = accepted < len(drafted)
            if rejected:
                fates.append((accepted, drafted[accepted], "rejected", tests[accepted]))
            last = "ars" if decoded.draft is None else "correction" if rejected else "bonus"
            fates.append((accepted, decoded.tokens[accepted], last, tests[-1]))
        trace += [
            TracedToken(
                loop=index,
                position=position + j,
                token_id=token,
                fate=fate,  # type: ignore[arg-type]
                target_prob=decoded.target_rows.probability(j, token),
                draft_prob=_draft_prob(decoded.draft, j, token),
                u=u,
            )
            for j, token, fate, u in fates
        ]
        position += loop.kept
    return trace


def _draft_prob(draft: Draft | None, j: int, token: int) -> float | None:
    if draft is None or j >= len(draft.tokens):
        return None
    rows = draft.own_rows
    return float(draft.tokens[j] == token) if rows is None else rows.probability(j, token)


def own_evidence(loops: Sequence[TruncatedLoop], kept: Sequence[Tensor], seed: int) -> Sums:
    """Sums over the emitted tokens of a sequence, from the rows that decided them.

    Args:
        kept: per loop [kept, V] the target's rows at its positions.
    """
    tokens = [token for loop in loops for token in loop.decoded.tokens[: loop.kept]]
    q = torch.cat(list(kept))
    p = torch.cat([_draft_rows(loop, rows) for loop, rows in zip(loops, kept, strict=True)])
    numbers = transform_numbers(len(tokens), seed, q)
    return sums_of(torch.tensor(tokens, device=q.device), q, p if bool(p.any()) else None, numbers)


def _emitted_rows(loop: TruncatedLoop) -> tuple[Rows, Rows | None]:
    """The target's rows at the emitted positions, and the draft's where they are known."""
    draft = loop.decoded.draft
    target = loop.decoded.target_rows.part(0, loop.kept)
    if draft is None or not len(draft.tokens) or (own := draft.own_rows) is None:
        return target, None
    return target, own.part(0, min(loop.kept, len(draft.tokens)))


def _draft_rows(loop: TruncatedLoop, q: Tensor) -> Tensor:
    """[kept, V] draft rows at the emitted positions, zeros after the last drafted one; q: the target's."""
    draft = loop.decoded.draft
    rows = torch.zeros_like(q)
    if draft is not None:
        shared = min(loop.kept, len(draft.tokens))
        rows[:shared] = draft.rows(q.shape[-1], q.dtype)[:shared]
    return rows


def transform_numbers(n: int, seed: int, like: Tensor) -> Tensor:
    """[n] uniform numbers of the randomised transform, from a stream apart from the sampler's."""
    generator = torch.Generator().manual_seed((seed ^ 0x5DEECE66D) & ((1 << 63) - 1))
    return torch.rand(n, generator=generator, dtype=torch.float64).to(like.device)


# K+1 target rows and K draft rows a loop: at 152,000 tokens and K = 4 a loop takes 5.5 MB as tensors.
MOST_BYTES = 256 << 20
"""Of rows that a sequence keeps before it is reduced to records."""

PORTION_BYTES = 64 << 20
"""Of rows that are reduced at a time: beside them lie several copies of as many."""


class LoopBuffer:
    """Keeps what is known of a sequence; what needs the rows is worked out in ``flush``.

    That costs time, so it is done after the sequence's clock has stopped, or while it stands.

    Args:
        end_ids: tokens that end the output whatever comes before them.
        most_bytes: rows that take more than this should be flushed. No more of them are made into tensors
            at a time either, and no more are kept until the output is read again.
        most_loops: after so many they must be flushed, see ``DecodingBatch.most_open``.
        derivation: how decisions are derived again; None if they are not, and no rows are kept.
    """

    def __init__(
        self,
        *,
        phases: bool,
        trace: bool,
        seed: int,
        expected: Expected = expected_acceptance,
        end_ids: Collection[int] = (),
        most_bytes: int = MOST_BYTES,
        most_loops: float = math.inf,
        derivation: Derivation | None = None,
    ) -> None:
        self._expected, self._end_ids = expected, end_ids
        self.tokens: list[int] = []
        self.records: list[Loop] = []
        self.trace: list[TracedToken] | None = [] if trace else None
        self.losslessness: Sums = {}
        self.proposed: list[list[int]] = []
        self.kept_rows = None if derivation is None else KeptRows(most_bytes)
        self._derivation = derivation
        self._phases, self._seed = phases, seed
        self._most_bytes, self._most_loops = most_bytes, most_loops
        self._open: list[TruncatedLoop] = []
        self._open_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the rows should be flushed now."""
        return self._open_bytes > self._most_bytes or len(self._open) >= self._most_loops

    def add(self, loop: TruncatedLoop) -> None:
        """Take the next loop of the sequence."""
        self.tokens += loop.decoded.tokens[: loop.kept]
        self._open.append(loop)
        self._open_bytes += loop.nbytes

    def flush(self) -> None:
        """Reduce the open loops to their records and release their rows."""
        for number, loop in enumerate(self._open, start=len(self.records)):
            for role, rows in loop.rows.items():
                if not rows.is_finite():
                    raise FloatingPointError(f"the {role}'s logits are not finite numbers in loop {number}")
        if self._derivation is not None:
            decoded = [loop.decoded for loop in self._open]
            self._add(self._derivation.of_rule(decoded, len(self.records), self._seed))
        self._open = [loop.along_its_path(self._end_ids) for loop in self._open]
        position = len(self.tokens) - sum(loop.kept for loop in self._open)
        for loops in self._portions():
            self._reduce(loops, position)
            position += sum(loop.kept for loop in loops)
        self._open, self._open_bytes = [], 0

    def generation(
        self, text: Callable[[Sequence[int]], str], reason: FinishReason, prefill_s: float, decode_s: float
    ) -> Generation:
        """Return the flushed sequence as an engine's answer."""
        if self._derivation is not None:
            self._add(self._derivation.of_lengths(self.records, self.proposed))
        return Generation(
            tokens=self.tokens,
            text=text(self.tokens),
            loops=self.records,
            prefill_s=prefill_s,
            decode_s=decode_s,
            finish_reason=reason,
            trace=self.trace,
            losslessness=self.losslessness,
            proposed=self.proposed,
            kept_rows=self.kept_rows,
        )

    def _reduce(self, loops: list[TruncatedLoop], position: int) -> None:
        """Reduce consecutive loops; the first token of the first loop is the output's at ``position``."""
        if self.trace is not None:
            self.trace += traced_tokens(loops, len(self.records), position)
        seed = self._seed + len(self.records)
        rows = [_emitted_rows(loop) for loop in loops]
        dense = [target.dense() for target, _ in rows]
        self._add(own_evidence(loops, dense, seed))
        proposed = proposed_tokens(loops)
        first = len(self.records)
        self.records += loop_records(loops, proposed, self._phases, self._expected, self._end_ids)
        self.proposed += proposed
        if self._derivation is None or self.kept_rows is None:
            return
        tokens = self.tokens[position : position + sum(loop.kept for loop in loops)]
        drafts = [draft for _, draft in rows]
        self._add(
            self._derivation.of_text(
                tokens, self.records, self.proposed, first, target=dense, draft=drafts, seed=self._seed
            )
        )
        for target, draft in rows:
            self.kept_rows.keep(target, draft)

    def _add(self, sums: Sums) -> None:
        self.losslessness = added(self.losslessness, sums)

    def _portions(self) -> Iterator[list[TruncatedLoop]]:
        """The open loops in parts whose rows take little more than ``PORTION_BYTES`` as tensors."""
        part: list[TruncatedLoop] = []
        size = 0
        for loop in self._open:
            part.append(loop)
            size += sum(rows.dense_nbytes for rows in loop.rows.values())
            if size > min(PORTION_BYTES, self._most_bytes):
                yield part
                part, size = [], 0
        if part:
            yield part

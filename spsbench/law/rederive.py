"""Every decision of a sequence derived again, by code that decoding did not use.

What a loop decided follows from its uniform numbers and the rows of both models: each draft pick, each
acceptance test, and the draw after them. From the rows that it had and the numbers that its seed gives, the
decisions are derived again and compared. A sampler that is wrong in a formula or a random number decides
otherwise within a few sequences: there is nothing to estimate. Whether the rows were the models' own is for
``law.apart`` to say, from an independent forward of the finished text.

Nothing of ``decode.rejection``, ``decode.sampling`` or the engines is used, but for the names of a
convention's steps. Each decision is judged after the tokens that were really emitted, so that one which
rounding turned does not make others look wrong.
Drafted tokens after a rejected one influenced nothing and are left out.

Where a policy decided how many tokens a loop drafts, that is derived again too: a token that was drawn
and then withdrawn leaves numbers and rows that fit, and only the draft's length is not what it should be.

The sampled distribution, too, is made a second time (``own_law``), in float64 and by a full sort, so that a
fault in ``decode.sampling`` is seen. How far rounding may move a row is part of it: a float32 forward of K+1
rows after a cache does not give the bits of one forward of the whole text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from spsbench.base.records import Loop, SamplingParams
from spsbench.decode.sampling import ORDERS
from spsbench.law.evidence import CLOSEST, DECIDED, Sums, added, rows_in_chunk

_SLACK = {torch.float64: 1e-10, torch.float32: 1e-5}
"""How far rounding may move a logit, in units of the best logit's distance from the mean of its row.

Measured on 15 architectures (``results/reference/losslessness.md``): in float32 three times the worst that
was seen. A wrong row moves it by far more. In 16 bits no such bound tells anything: see ``law.apart``.
"""

_FARTHEST = 100.0  # what a model all but masks must not stretch the unit


def rounding_slack(dtype: torch.dtype) -> float:
    """How far rounding may move a logit of a model in float32 or finer, in units of its row."""
    return _SLACK[dtype]


class Law(NamedTuple):
    """Warped rows with what rounding leaves open.

    Attributes:
        probs: [n, V] float64, each row sums to 1.
        doubtful: [n, V] tokens that rounding could move into the row's support or out of it.
        tolerance: [n] how much probability mass rounding may move from any set of tokens to the rest.
    """

    probs: Tensor
    doubtful: Tensor
    tolerance: Tensor


def own_law(logits: Tensor, sampling: SamplingParams, slack: float) -> Law:
    """Temperature, then top-k, then nucleus, ties kept; greedy is the largest logit.

    Args:
        logits: [n, V], any floating dtype.
        sampling: temperature, top_k, top_p, greedy.
        slack: see ``rounding_slack``.
    """
    processed = sampling.process is not None and not sampling.greedy
    logits = logits.double() / (1.0 if sampling.greedy or processed else sampling.temperature)
    best = logits.max(-1, keepdim=True).values
    away = (best - logits).clamp(max=_FARTHEST)
    never = logits.isneginf()
    unit = away.masked_fill(never, 0.0).sum(-1, keepdim=True) / (~never).sum(-1, keepdim=True)
    shift = slack * unit  # of a logit, up or down
    if sampling.greedy:
        first = torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        near = logits >= best - 2 * shift
        tied = near & (near.sum(-1, keepdim=True) > 1)
        return Law(first, tied, tied.any(-1).double())
    if processed:
        return _cut_law(logits, sampling, slack, shift)
    outside, doubtful = _top_k(logits, sampling.top_k, shift)
    whole = logits.masked_fill(outside, float("-inf")).softmax(-1)
    uncut = logits.softmax(-1)
    open_mass = (uncut * doubtful).sum(-1, keepdim=True) / (uncut * ~outside).sum(-1, keepdim=True)
    # Odds move by at most exp(2 shift), a mass then by at most shift / 2; the loop adds up in its dtype.
    moved = shift + slack + open_mass
    probs, edge = _nucleus(whole, sampling.top_p, shift, moved)
    doubtful = doubtful | edge
    kept = (whole * (probs > 0)).sum(-1)
    tolerance = moved.squeeze(-1) + (whole * edge).sum(-1) / kept
    return Law(probs, doubtful, tolerance)


def _cut_law(logits: Tensor, sampling: SamplingParams, slack: float, shift: Tensor) -> Law:
    """Cuts in the order of a convention; what rounding leaves open by moving them.

    A token is in doubt if looser or tighter cuts decide otherwise of it, or if it is as near as rounding to
    the last one that is kept or the first one that is not, at either end of a typical set.
    """
    process, inside = sampling.process, _kept(logits, sampling)
    assert process is not None
    whole = logits / sampling.temperature
    probs = whole.masked_fill(~inside, -math.inf).softmax(-1)
    scale = 1.0 if process.convention == "llama-cpp" else sampling.temperature
    # Odds move by at most exp(2 shift), and so do a mass and its entropy's distance.
    moved = float(shift.max()) / min(scale, 1.0) + slack
    doubtful = torch.zeros_like(inside)
    for sign in (-1.0, 1.0):
        mass = {"top_p": sampling.top_p, "typical_p": process.typical_p}
        mass = {
            name: min(max(value + sign * moved, 1e-9), 1.0) if value < 1 else 1.0
            for name, value in mass.items()
        }
        cuts = replace(
            process, typical_p=mass["typical_p"], min_p=process.min_p * math.exp(-2 * sign * moved)
        )
        doubtful |= inside != _kept(logits, replace(sampling, top_p=mass["top_p"], process=cuts))
    cut = ~inside & ~logits.isneginf()
    for kept in (
        logits.masked_fill(~inside, math.inf).amin(-1, True),
        logits.masked_fill(~inside, -math.inf).amax(-1, True),
    ):
        near = (logits - kept).abs() <= 4 * shift
        doubtful |= near & (near & cut).any(-1, keepdim=True)
    whole = whole.softmax(-1)
    open_mass = (whole * doubtful).sum(-1) / (whole * inside).sum(-1)
    return Law(probs, doubtful, shift.squeeze(-1) / sampling.temperature + slack + open_mass)


def _kept(logits: Tensor, sampling: SamplingParams) -> Tensor:
    """[n, V] what the cuts of a convention leave: each sorts the tokens and keeps the first, with ties."""
    process, places = sampling.process, torch.arange(logits.shape[-1], device=logits.device)
    assert process is not None
    masses = {"top_p": sampling.top_p, "typical_p": process.typical_p}
    for step in ORDERS[process.convention]:
        if step == "temperature":
            logits = logits / sampling.temperature
            continue
        logs = logits.log_softmax(-1)
        probs, key = logs.exp(), -logs
        if step == "typical_p":  # how far a surprise is from the entropy
            key = (key + (probs * logs).nan_to_num(0.0).sum(-1, keepdim=True)).abs()
        rising, order = key.sort(-1)
        own = probs.gather(-1, order)
        first = (own.cumsum(-1) - own < masses[step]) if masses.get(step, 1.0) < 1 else own >= 0
        if step == "min_p":
            first = own >= process.min_p * own[:, :1]
        elif step == "top_k" and sampling.top_k:
            first = first & (places < sampling.top_k)
        last = rising.gather(-1, first.sum(-1, keepdim=True) - 1)
        logits = logits.masked_fill(key > last, -math.inf)
    return ~logits.isneginf()


def _top_k(logits: Tensor, top_k: int, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Which tokens are outside of the k largest and their ties; which may be on either side."""
    if not 0 < top_k < logits.shape[-1]:
        nowhere = torch.zeros_like(logits, dtype=torch.bool)
        return nowhere, nowhere
    kth = logits.sort(-1, descending=True).values[:, top_k - 1 : top_k]
    outside = logits < kth
    near = (logits - kth).abs() <= 2 * shift
    return outside, near & (near & outside).any(-1, keepdim=True)


def _nucleus(whole: Tensor, top_p: float, shift: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
    """Rows cut to their nucleus and normalised; which tokens may be on either side of the edge."""
    if top_p >= 1.0:
        return whole / whole.sum(-1, keepdim=True), torch.zeros_like(whole, dtype=torch.bool)
    ordered, order = whole.sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    last = torch.where(before < top_p, ordered, torch.inf).min(-1, keepdim=True).values
    inside = whole >= last
    unsure = ((before - top_p).abs() <= moved) & (before > 0) & (ordered > 0)
    by_mass = torch.zeros_like(inside).scatter_(-1, order, unsure)
    near = (whole.log() - last.log()).abs() <= 2 * shift
    by_rank = near & (near & ~inside).any(-1, keepdim=True)
    kept = whole.masked_fill(~inside, 0.0)
    return kept / kept.sum(-1, keepdim=True), by_mass | by_rank


_BLOCK = 1024  # uniform numbers are drawn in blocks; a loop's lie in one block
_NOTHING = 1e-12  # mass that float64 leaves where there is none
_SUMMED = rounding_slack(torch.float32)  # what sums of a loop's own numbers may be off by

Margin = Callable[[Tensor, Tensor], Tensor]
"""From rows [n, V] and the tokens drawn from them [n], [n] numbers: below 0 the draft ends there."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What was decided at the n positions of a text, and the numbers it was decided with.

    Attributes:
        tokens: [n] emitted ids.
        drafted: [n] the drafted id at this position; -1 where none was tested.
        stood: [n] whether the drafted token was accepted.
        drawn: [n] whether the emitted token was drawn after the draft, or without one.
        could_end: [n] whether the draft could have ended after this drafted token, or gone on.
        went_on: [n] whether it went on.
        pick_u, test_u, draw_u: [n] float64 uniform numbers of the draft's pick, the test and the draw.
    """

    tokens: Tensor
    drafted: Tensor
    stood: Tensor
    drawn: Tensor
    could_end: Tensor
    went_on: Tensor
    pick_u: Tensor
    test_u: Tensor
    draw_u: Tensor

    def part(self, part: slice) -> Decided:
        """Some of the positions."""
        return Decided(*(getattr(self, field.name)[part] for field in fields(self)))

    def to(self, device: torch.device) -> Decided:
        return Decided(*(getattr(self, field.name).to(device) for field in fields(self)))


def rederive(
    decided: Decided,
    target: Tensor,
    draft: Tensor | None,
    *,
    margin: Margin | None = None,
    own_way: bool = False,
) -> Sums:
    """Derive the decisions of a text under modified rejection again, from the rows that they were made by.

    Whatever the dtype of the models: a loop warps and tests in float32, so that its rounding alone is left.

    Args:
        decided: what the loops did.
        target: [n, V] the target's warped rows at the positions of the text.
        draft: [n, V] the rows that drafted tokens were drawn from, zeros where one was certain or none was
            drafted; None if all were certain.
        margin: what ended drafts early; None if nothing that reads rows did.
        own_way: the drafter may make tokens of its numbers in a way of its own: a pick that does not follow
            is ``decisions_open``, neither confirmed nor contradicted.

    Returns:
        ``decisions``, of these ``decisions_rounding``: other ones, but so close to the edge that rounding
        explains it, and ``decisions_contradicted``: other ones that nothing explains. ``decisions_closest``
        is the least distance, as a probability mass, from the edge of a decision that follows; 1 if none
        has an edge.
    """
    decided = decided.to(target.device)
    rows = rows_in_chunk(target.shape[-1])
    sums: Sums = {}
    for start in range(0, len(decided.tokens), rows):
        part = slice(start, start + rows)
        some, q = decided.part(part), _computed(target[part].double())
        if draft is None:
            p, picked = _certain(some.drafted, q.probs), torch.zeros_like(some.stood)
        else:
            p, picked = _shown(draft[part].double(), some.drafted), some.drafted >= 0
            picked &= draft[part].sum(-1) > 0
        sums = added(sums, _chunk(some, q, p, picked, margin, own_way=own_way))
    return sums


def decisions_of(
    tokens: Sequence[int],
    loops: Sequence[Loop],
    proposed: Sequence[Sequence[int]],
    k: int,
    seed: int,
    allowed: Sequence[int] | None = None,
    first: int = 0,
) -> Decided:
    """Lay out what the loops of a sequence decided, with the numbers that its seed gives.

    Args:
        tokens: emitted ids.
        loops: in order.
        proposed: per loop all the drafted ids, at most k.
        k: lookahead; 0 if nothing was drafted.
        seed: of the sequence's stream.
        allowed: per loop how many tokens a policy let it draft at most; none is asked if not given.
        first: how many loops of the sequence came before these.
    """
    u = uniform_numbers(seed, first + len(loops), 2 * k + 1)[first:].tolist()
    most = [0] * len(loops) if allowed is None else allowed
    rows = [
        row
        for loop, drafts, upto, numbers in zip(loops, proposed, most, u, strict=True)
        for row in _positions(loop, drafts, upto, numbers)
    ]
    kinds = (torch.int64, *[torch.bool] * 4, *[torch.float64] * 3)
    columns = zip(*rows, strict=True) if rows else ((),) * len(kinds)
    return Decided(
        torch.tensor(tokens, dtype=torch.int64),
        *(torch.tensor(column, dtype=kind) for column, kind in zip(columns, kinds, strict=True)),
    )


def _positions(
    loop: Loop, drafts: Sequence[int], most: int, numbers: Sequence[float]
) -> Iterator[tuple[int, bool, bool, bool, bool, float, float, float]]:
    """The emitted positions of a loop, as the fields of ``Decided`` after its tokens."""
    tests = numbers[-len(drafts) - 1 :]  # a draft of fewer than K leaves numbers between picks and tests
    for j in range(loop.emitted):
        looked = j < len(drafts)
        yield (
            drafts[j] if looked else -1,
            j < loop.accepted,
            j >= loop.accepted,
            looked and j + 1 < most,
            j + 1 < len(drafts),
            numbers[j] if looked else 0.0,
            tests[j] if looked else 0.0,
            numbers[-1],
        )


def lengths_rederived(proposed: Sequence[Sequence[int]], allowed: Sequence[int], *, early: bool) -> Sums:
    """Whether each loop drafted as many tokens as its policy allowed, or fewer where it may end early.

    Args:
        proposed: per loop all the drafted ids.
        allowed: per loop how many there may be at most.
        early: whether a draft may end before; where it did is then judged by ``rederive``.
    """
    lengths = list(zip(map(len, proposed), allowed, strict=True))
    wrong = sum(not (1 if early else most) <= length <= most for length, most in lengths)
    return {DECIDED: float(len(lengths)), f"{DECIDED}_contradicted": float(wrong)}


def uniform_numbers(seed: int, loops: int, each: int) -> Tensor:
    """Draw [loops, each] the numbers of every loop: consecutive ones of blocks, a rest of a block unused."""
    generator = torch.Generator().manual_seed(seed)
    fit = max(_BLOCK // each, 1)
    blocks = [
        torch.rand(max(each, _BLOCK), generator=generator)[: fit * each].view(fit, each)
        for _ in range(0, loops, fit)
    ]
    return torch.cat(blocks)[:loops].double() if blocks else torch.empty(0, each, dtype=torch.float64)


@dataclass(frozen=True, slots=True)
class _Compared:
    """Decisions of one kind: whether each follows, else whether rounding explains it, and its distance."""

    follows: Tensor
    rounding: Tensor
    margin: Tensor

    def sums(self) -> Sums:
        other = ~self.follows
        margins = self.margin[self.follows]
        return {
            DECIDED: float(len(self.follows)),
            f"{DECIDED}_rounding": float((other & self.rounding).sum()),
            f"{DECIDED}_contradicted": float((other & ~self.rounding).sum()),
            CLOSEST: min(1.0, float(margins.min())) if len(margins) else 1.0,
        }


def _chunk(decided: Decided, q: Law, p: Law, picked: Tensor, margin: Margin | None, *, own_way: bool) -> Sums:
    looked = decided.drafted >= 0
    picks = _draws(_at(p, picked), decided.drafted[picked], decided.pick_u[picked])
    tests = _tests(decided, q, p, looked)
    drawn = decided.drawn
    behind = _behind(_at(q, drawn), _at(p, drawn), looked[drawn])
    draws = _draws(behind, decided.tokens[drawn], decided.draw_u[drawn])
    ends = [] if margin is None else [_ends(decided, p, decided.could_end & looked, margin)]
    sums = picks.sums()
    if own_way:
        sums[f"{DECIDED}_open"], sums[f"{DECIDED}_contradicted"] = sums[f"{DECIDED}_contradicted"], 0.0
    for kind in (tests, draws, *ends):
        sums = added(sums, kind.sums())
    return sums


def _certain(drafted: Tensor, like: Tensor) -> Law:
    """Rows with all mass on the drafted token, beyond doubt; zeros where nothing was drafted."""
    looked = (drafted >= 0).unsqueeze(-1)
    probs = torch.zeros_like(like).scatter_(-1, drafted.clamp(min=0).unsqueeze(-1), 1.0)
    nothing = torch.zeros_like(probs[:, 0])
    return Law(probs * looked, torch.zeros_like(probs, dtype=torch.bool), nothing)


def _computed(rows: Tensor) -> Law:
    """Rows as a loop had them: rounding has left nothing open but their sums."""
    total = rows.sum(-1, keepdim=True)
    sums = torch.full_like(total[:, 0], _SUMMED)
    nowhere = torch.zeros_like(rows, dtype=torch.bool)
    return Law(rows / total, nowhere, sums)


def _shown(rows: Tensor, drafted: Tensor) -> Law:
    """Rows as a drafter showed them: rounding has left nothing open but their sums."""
    sure, total = _certain(drafted, rows), rows.sum(-1, keepdim=True)
    drawn = total > 0
    probs = torch.where(drawn, rows / total.clamp_min(_NOTHING), sure.probs)
    return sure._replace(probs=probs, tolerance=torch.where(drawn.squeeze(-1), _SUMMED, 0.0).double())


def _ends(decided: Decided, p: Law, could_end: Tensor, margin: Margin) -> _Compared:
    """Whether each draft went on or ended after its token as the policy says."""
    p = _at(p, could_end)
    level = margin(p.probs, decided.drafted[could_end])
    # An entropy moves by at most this (Fannes' inequality); a probability by less.
    moved = p.tolerance.clamp(_NOTHING, 1.0)
    moved = moved * (math.log(p.probs.shape[-1]) + 1 - moved.log())
    near = p.doubtful.any(-1) | (level.abs() <= moved)
    # No edge of a law: a draft may end anywhere without changing what the text follows.
    nowhere = torch.full_like(level, torch.inf)
    return _Compared((level >= 0) == decided.went_on[could_end], near, nowhere)


def _at(law: Law, where: Tensor) -> Law:
    return Law(*(part[where] for part in law))


def _behind(q: Law, p: Law, rejected: Tensor) -> Law:
    """What is drawn from: (q - p)+ after a rejection, not normalised; elsewhere the target's row."""
    rest = torch.where(q.probs > p.probs, q.probs - p.probs, 0.0)
    # Where nothing remains, only rounding can have rejected: the rule is then the target's own row.
    takes = rejected.unsqueeze(-1) & (rest.sum(-1, keepdim=True) > 0)
    tolerance = q.tolerance + torch.where(rejected, p.tolerance, 0.0)
    # As probable under both models as far as rounding can tell: the residual may hold it.
    level = (q.probs - p.probs).abs() <= tolerance.unsqueeze(-1)
    open_ = q.doubtful | (rejected.unsqueeze(-1) & (p.doubtful | level))
    possible = (q.probs > 0) | q.doubtful
    return Law(torch.where(takes, rest, q.probs), open_ & possible, tolerance)


def _draws(law: Law, tokens: Tensor, u: Tensor) -> _Compared:
    """Whether each token is where its number falls in the cumulative weights of its row."""
    cumulative = law.probs.cumsum(-1)
    total = cumulative[:, -1]
    point = u * total
    column = tokens.unsqueeze(-1)
    weight = law.probs.gather(-1, column).squeeze(-1)
    upper = cumulative.gather(-1, column).squeeze(-1)
    lower = upper - weight
    follows = (cumulative <= point.unsqueeze(-1)).sum(-1) == tokens
    possible = (weight > 0) | law.doubtful.gather(-1, column).squeeze(-1)
    outside = torch.maximum(lower - point, point - upper)
    # The two ends of the unit interval are not edges: no number lies beyond them.
    below = torch.where(lower > _NOTHING, point - lower, torch.inf)
    above = torch.where(total - upper > _NOTHING, upper - point, torch.inf)
    return _Compared(follows, possible & (outside <= law.tolerance), torch.minimum(below, above))


def _tests(decided: Decided, q: Law, p: Law, looked: Tensor) -> _Compared:
    """Whether each drafted token stood or fell as u < q/p says, and was emitted if it stood."""
    column = decided.drafted[looked].unsqueeze(-1)
    q, p, u, stood = _at(q, looked), _at(p, looked), decided.test_u[looked], decided.stood[looked]
    of_q, of_p = (law.probs.gather(-1, column).squeeze(-1) for law in (q, p))
    doubtful = (q.doubtful | p.doubtful).gather(-1, column).squeeze(-1)
    level = torch.where(of_p > 0, of_q / of_p, torch.where(of_q > 0, torch.inf, 0.0))
    says = u < level
    emitted = ~stood | (decided.tokens[looked] == decided.drafted[looked])
    margin = (level - u).abs()
    near = margin <= 2 * (q.tolerance + p.tolerance)
    certain = (of_q <= 0) | ((of_q >= 1) & (of_p >= 1))
    margin = torch.where(certain, torch.inf, margin)
    return _Compared((says == stood) & emitted, emitted & (doubtful | (near & ~certain)), margin)

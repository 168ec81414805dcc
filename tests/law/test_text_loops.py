"""What replay says of adaptive policies is what the production loop does, outcome by outcome."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch

from spsbench.base.arrays import Bools, Floats
from spsbench.base.records import SamplingParams, Spec
from spsbench.decode.rejection import accept_draft
from spsbench.decode.sampling import warp
from spsbench.drafters.forced import ForcedText
from spsbench.drafters.model import ModelDrafter
from spsbench.drafters.policy import Momentum
from spsbench.drafters.registry import build_policy
from spsbench.drafters.stopping import DraftedText, DraftStopRule, StopReader
from spsbench.law.enumeration import Scene, TableModel, paths, random_rows
from spsbench.law.text_loops import (
    StoppedLoops,
    anchored,
    drafted_ahead,
    drafted_bounds,
    drafted_loops,
    fastest_drafts,
    fixed_loops,
    loops_over,
    momentum_loops,
    oracle_loops,
    stopped_loops,
)

CPU = torch.device("cpu")
SAMPLINGS = (
    SamplingParams(),
    SamplingParams(greedy=True),
    SamplingParams(temperature=0.7, top_k=3),
    SamplingParams(top_p=0.8),
)
RULES = ("stop-below:tau=0.2", "stop-below:tau=0.4", "stop-below:tau=1", "entropy:h=0.5", "entropy:h=0.9")
SIZES = ((2, 4), (3, 3), (4, 2))

Pattern = tuple[tuple[int, ...], int]
"""What a loop emits, and how many tokens it drafts."""


def models(vocab_size: int) -> tuple[TableModel, TableModel]:
    target, draft = (TableModel(random_rows(vocab_size, seed, 1.5), vocab_size) for seed in (1, 2))
    return target, draft


def scene(policy: str, vocab_size: int, k: int, sampling: SamplingParams) -> Scene:
    target, draft = models(vocab_size)

    def make() -> ModelDrafter:
        return ModelDrafter(draft, sampling, CPU, build_policy(Spec.parse(policy)))

    return Scene(target, make, accept_draft, (0,), k, sampling)


def q_rows(own: Scene, text: Sequence[int]) -> torch.Tensor:
    """[n, V] the target's warped rows along a text."""
    own.target.rollback(0)
    logits = own.target.score(torch.tensor([*own.prompt, *text])[:-1], last=len(text))
    return warp(logits, own.sampling)


def read(own: Scene, text: Sequence[int], rules: Sequence[str], **options: int) -> DraftedText:
    q = q_rows(own, text)
    log_target = q.gather(1, torch.tensor(text).unsqueeze(1)).squeeze(1).log().numpy()
    reader = StopReader([DraftStopRule(Spec.parse(rule)) for rule in rules], **options)
    drafter = ModelDrafter(models(q.shape[1])[1], own.sampling, CPU)
    reader.forced(drafter, ForcedText(own.prompt, text, log_target), q, own.k)
    return reader.texts[0]


def texts(own: Scene, length: int) -> Iterator[tuple[float, tuple[int, ...]]]:
    """(probability, tokens) of every text that the target can write."""
    for text in product(range(own.target.vocab_size), repeat=length):
        q = q_rows(own, text)
        chance = math.prod(float(q[t, token]) for t, token in enumerate(text))
        if chance:
            yield chance, text


@cache
def readings(
    vocab_size: int, k: int, sampling: SamplingParams
) -> list[tuple[float, tuple[int, ...], DraftedText]]:
    """(probability, tokens, what every rule makes of it) of all texts of 1 to K+1 tokens, each read once."""
    own = scene(RULES[0], vocab_size, k, sampling)
    return [
        (chance, text, read(own, text, RULES))
        for length in range(1, k + 2)
        for chance, text in texts(own, length)
    ]


Change = Callable[[Bools], Bools]


def by_replay(
    own: Scene, vocab_size: int, rule: str, change: Change = lambda stops: stops
) -> dict[Pattern, float]:
    """The law of a loop's text, and of what it drafts as far as that is known.

    A draft that goes on behind a rejected token has drafted one more, at least: it counts as that.
    """
    law: dict[Pattern, float] = defaultdict(float)
    number = RULES.index(rule)
    for chance, text, found in readings(vocab_size, own.k, own.sampling):
        rejected = found.rejected[number]
        loops = stopped_loops(found.accepted, change(found.stops[number]), rejected, own.k)
        law[text, -1] = chance * loops.law.ends[0, 0, len(text) - 1]
        for drafted, share in of_ending(loops, rejected, len(text) - 1).items():
            law[text, drafted] += chance * share
    return {pattern: chance for pattern, chance in law.items() if chance > 0}


def of_ending(loops: StoppedLoops, rejected: Floats, accepted: int) -> dict[int, float]:
    """By drafted tokens, the chance that the text's first loop drafts them and accepts so many."""
    ends = np.where(np.arange(loops.law.ends.shape[2]) == accepted, loops.law.ends[0], 0.0)
    low, _ = drafted_bounds(ends, loops.most, rejected)
    return {drafted: float(share) for drafted, share in enumerate(low[0]) if share}


def by_enumeration(own: Scene) -> dict[Pattern, float]:
    """The same from the production loop."""
    law: dict[Pattern, float] = defaultdict(float)
    for path in paths(own):
        law[path.tokens, -1] += path.chance
        known = min(path.drafted, len(path.tokens) + 1)
        law[path.tokens, known] += path.chance
    return dict(law)


def apart(ours: dict[Pattern, float], theirs: dict[Pattern, float]) -> float:
    return max(abs(ours.get(x, 0.0) - theirs.get(x, 0.0)) for x in {*ours, *theirs})


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("vocab_size", "k"), SIZES)
def test_text_pattern_and_draft_together_are_the_loops_own(
    rule: str, vocab_size: int, k: int, sampling: SamplingParams
) -> None:
    own = scene(rule, vocab_size, k, sampling)
    assert apart(by_replay(own, vocab_size, rule), by_enumeration(own)) < 1e-12


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("change", [lambda s: np.roll(s, 1), lambda s: np.roll(s, -1), np.zeros_like])
@pytest.mark.parametrize("rule", ["stop-below:tau=0.4", "entropy:h=0.9"])
def test_a_rule_that_stops_one_token_off_is_noticed(rule: str, change: Change) -> None:
    """The control: each of these keeps the law of the text, and is seen in the pattern alone."""
    own = scene(rule, 3, 3, SAMPLINGS[0])
    assert apart(by_replay(own, 3, rule, change), by_enumeration(own)) > 1e-3


def test_a_token_is_rejected_by_the_residual_and_not_by_the_drafts_row() -> None:
    """The control of the drafted count: with p in place of max(p - q, 0) it comes out wrong."""
    rule = "stop-below:tau=0.4"
    own = scene(rule, 3, 3, SAMPLINGS[0])
    text = (0, 1, 2, 0)
    found = read(own, text, [rule])
    p = warp(models(3)[1].score(torch.tensor([0, *text]), last=5), own.sampling)
    by_row = torch.where(p < 0.4, p, 0.0).sum(-1).numpy()
    assert found.rejected[0][-1] == pytest.approx(by_row[-1])  # behind the text nothing is rejected
    assert np.abs(found.rejected[0][:-1] - by_row[:-1]).max() > 0.05


def momentum(own: Scene, text: Sequence[int]) -> tuple[Floats, Floats]:
    """[count, S, n] where the first loops begin, and [S, n, K+1] how each goes on."""
    accepted = read(own, text, []).accepted
    law, _ = momentum_loops(accepted, Momentum.table(own.k), min(Momentum.START, own.k))
    return law.placed(3), law.ends


@pytest.mark.thorough_but("[2]")
@pytest.mark.parametrize("k", [2, 3])
def test_momentum_remembers_the_loop_before(k: int) -> None:
    """Text, end of the first loop and lookahead of the second, on every path through both."""
    own = scene("momentum", 2, k, SAMPLINGS[0])
    ours: dict[tuple[tuple[int, ...], int, int], float] = defaultdict(float)
    for first in paths(own):
        for path in paths(replace(own, before=(first.numbers,))):
            key = first.tokens + path.tokens, len(first.tokens), path.drafted
            ours[key] += first.chance * path.chance
    assert {drafted for _, _, drafted in ours} == {k - 1, k}
    for (text, begins, drafted), chance in ours.items():
        placed, ends = momentum(own, text)
        written = math.prod(float(row[token]) for row, token in zip(q_rows(own, text), text, strict=True))
        state, accepted = drafted - 1, len(text) - begins - 1
        law = written * placed[1, state, begins] * ends[state, begins, accepted]
        assert chance == pytest.approx(law, abs=1e-12)


@pytest.mark.thorough_but("stop-below:tau=0.3-100")
@pytest.mark.parametrize(("rollouts", "seeds", "limit"), [(2, 40, 0.05), (100, 20, 0.03)])
@pytest.mark.parametrize("rule", ["stop-below:tau=0.3", "entropy:h=0.9"])
def test_drafts_behind_a_rejected_token_are_bounded_and_sampled(
    rule: str, rollouts: int, seeds: int, limit: float
) -> None:
    """The expected number of drafted tokens: inside the bounds, and met by rollouts of some positions."""
    own = scene(rule, 3, 3, SAMPLINGS[0])
    exact = sum(path.chance * path.drafted for path in paths(own))
    counts, bounds, means = np.arange(own.k + 1), np.zeros(2), np.zeros(seeds)
    for number, (chance, text) in enumerate(texts(own, own.k + 1)):
        for seed in range(seeds):
            found = read(own, text, [rule], seed=1000 * seed + number, rollouts=rollouts)
            loops = stopped_loops(found.accepted, found.stops[0], found.rejected[0], own.k)
            means[seed] += chance * float(loops.sampled(found.rollouts[0])[0, 0] @ counts)
        bounds += [chance * (each[0, 0] @ counts) for each in (loops.low, loops.high)]
    assert bounds[0] + 0.02 < exact < bounds[1] - 0.02
    error = float(means.std(ddof=1)) / math.sqrt(seeds)
    assert error < limit
    assert means.mean() == pytest.approx(exact, abs=4 * error)


def test_rollouts_move_loops_and_make_none() -> None:
    own = scene("stop-below:tau=0.3", 3, 4, SAMPLINGS[0])
    found = read(own, (0, 1, 2, 2, 1, 0, 0, 1), ["stop-below:tau=0.3"], rollouts=3)
    loops = stopped_loops(found.accepted, found.stops[0], found.rejected[0], own.k)
    for drafted in (loops.low, loops.high, loops.sampled(found.rollouts[0])):
        assert drafted.sum(-1) == pytest.approx(np.ones((1, 8)))


def by_hand(law: Floats, moves: Sequence[Sequence[int]], n: int) -> dict[tuple[int, int], float]:
    """Expected loops by state and beginning, one branch at a time."""
    found: dict[tuple[int, int], float] = defaultdict(float)

    def follow(state: int, t: int, chance: float) -> None:
        if t < n and chance:
            found[state, t] += chance
            for accepted, share in enumerate(law[state, t]):
                follow(moves[state][accepted], t + accepted + 1, chance * share)

    follow(len(law) - 1, 0, 1.0)
    return found


def test_loops_of_a_text_under_momentum_are_those_of_all_ways_through_it() -> None:
    k, n = 3, 7
    accepted = np.random.default_rng(0).uniform(size=n)
    law, drafted = momentum_loops(accepted, Momentum.table(k), k)
    found = by_hand(law.ends, law.moves.tolist(), n)
    for state in range(k):
        for t in range(n):
            assert law.starts[state, t] == pytest.approx(found[state, t])
    own = drafted_loops(law, drafted, n)
    assert own.loops.sum() == pytest.approx(law.starts.sum())
    assert own.first.sum() == pytest.approx(law.starts.sum())
    assert own.first.sum(0) == pytest.approx(own.loops.sum(0))


def test_lookaheads_of_momentum_are_the_policys_own() -> None:
    policy, table, k = Momentum(), Momentum.table(6), 6
    policy.begin()
    rng, allowed = np.random.default_rng(1), []
    for _ in range(60):
        allowed.append(policy.lookahead(k))
        policy.observe(allowed[-1], allowed[-1] if rng.random() < 0.6 else 0)
        following = policy.lookahead(k)
        assert following in table[allowed[-1] - 1]
    assert len(set(allowed)) >= 4


def test_a_draft_ends_behind_the_first_token_that_stops_it() -> None:
    stops = np.array([False, False, True, False, False, True, True, False])
    assert drafted_ahead(stops, 3).tolist() == [3, 2, 1, 3, 2, 1, 1, 3]


def uneven(n: int, k: int, seed: int) -> Floats:
    """[n, K+1] seconds of loops that rise by uneven steps."""
    rng = np.random.default_rng(seed)
    return 1.0 + rng.uniform(0.0, 0.4, (n, k + 1)).cumsum(1)


@pytest.mark.parametrize("seed", range(4))
def test_no_policy_is_faster_than_the_oracle(seed: int) -> None:
    n, k = 12, 4
    rng = np.random.default_rng(seed)
    accepted, seconds = rng.uniform(size=n), uneven(n, k, seed)
    law, _ = fixed_loops(accepted, k)
    chosen, best = fastest_drafts(law.ends[0], seconds)
    own = drafted_loops(*oracle_loops(law.ends[0], chosen), 0).loops
    assert (own * seconds).sum() == pytest.approx(best)
    others = [fixed_loops(accepted, each) for each in range(1, k + 1)]
    others.append(momentum_loops(accepted, Momentum.table(k), k))
    for _ in range(20):
        loops = stopped_loops(accepted, rng.uniform(size=n) < 0.4, rng.uniform(size=n + 1), k)
        others.append((loops.law, loops.low))
    for others_law, drafted in others:
        taken = drafted_loops(others_law, drafted, 0).loops
        assert best <= (taken * seconds[:, : taken.shape[1]]).sum() + 1e-9


def test_where_time_rises_evenly_the_oracle_drafts_what_will_be_accepted() -> None:
    n, k = 30, 5
    accepted = np.random.default_rng(3).uniform(0.3, 1.0, n)
    ends = loops_over(anchored(accepted, k)).ends[0]
    seconds = np.tile(1.0 + 0.2 * np.arange(k + 1), (n, 1))
    chosen, _ = fastest_drafts(ends, seconds)
    assert (chosen[: n - k] == np.arange(k + 1)).all()

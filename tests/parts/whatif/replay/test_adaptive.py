"""Policies over texts of tables: their works, times, choices and the oracle, against sums by hand."""

from __future__ import annotations

from dataclasses import astuple, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from spsbench.base.errors import UsageError
from spsbench.base.records import SamplingParams, Spec
from spsbench.decode.sampling import warp
from spsbench.drafters.forced import ForcedText
from spsbench.drafters.model import ModelDrafter
from spsbench.drafters.stopping import StopReader
from spsbench.law.enumeration import TableModel, random_rows
from spsbench.law.text_loops import anchored, drafted_loops, fixed_loops, loops_over
from spsbench.parts.whatif.replay.policies import Curve, curve, policies_of, same_policy
from spsbench.parts.whatif.replay.prediction import Timed, drafted_work, predict, work_of
from spsbench.parts.whatif.replay.study import Study
from spsbench.parts.whatif.replay.texts import TargetText
from spsbench.parts.whatif.replay.times import COLD, LoopTimes, loop_costs

K, V = 4, 3
MODEL = Spec("model")
SAMPLING = SamplingParams()
A_LOOP, A_DRAFT = 0.020, 0.003


def texts(prompts: int = 12, length: int = 24) -> list[TargetText]:
    """Drawn from the target's table."""
    target = TableModel(random_rows(V, 1, 1.5), V)
    generator = torch.Generator().manual_seed(0)
    found = []
    for prompt in range(prompts):
        ids = [prompt % V, prompt // V % V]
        for _ in range(length):
            target.rollback(0)
            row = warp(target.score(torch.tensor(ids), last=1), SAMPLING)
            ids.append(int(row.multinomial(1, generator=generator)))
        found.append(TargetText(f"p{prompt}", 0, tuple(ids[:2]), tuple(ids[2:])))
    return found


TEXTS = texts()


def reader_of(named: str) -> tuple[Any, StopReader]:
    policies = policies_of([Spec.parse(name) for name in named.split(",")], [MODEL])
    reader = policies.readers(0)[MODEL]
    target, draft = (TableModel(random_rows(V, seed, 1.5), V) for seed in (1, 2))
    drafter = ModelDrafter(draft, SAMPLING, torch.device("cpu"))
    for text in TEXTS:
        target.rollback(0)
        q = warp(
            target.score(torch.tensor([*text.prompt, *text.tokens])[:-1], last=len(text.tokens)), SAMPLING
        )
        own = q.gather(1, torch.tensor(text.tokens).unsqueeze(1)).squeeze(1).log().numpy()
        reader.forced(drafter, ForcedText(text.prompt, text.tokens, own), q, K)
    return policies, reader


def times(drafted: int, noise: float = 0.0, a_draft: float = A_DRAFT) -> LoopTimes:
    """Of loops of a fixed K."""
    rng = np.random.default_rng(drafted)
    rounds, contexts = np.repeat(np.arange(8.0), 5), rng.uniform(5, 60, 40)
    seconds = A_LOOP + a_draft * drafted + 1e-5 * contexts + noise * rng.normal(size=40)
    places, same = np.tile(np.arange(COLD, COLD + 5.0), 8), np.ones(40)
    return LoopTimes(rounds, places, contexts, seconds, a_draft * drafted * same, drafted * same)


def under_a_policy(beyond: float) -> LoopTimes:
    """Of loops that draft 1 to K tokens, each longer by so much than one of a fixed K."""
    found, drafted = times(0), np.arange(40.0) % K + 1
    return replace(found, seconds=found.seconds + A_DRAFT * drafted + beyond, drafted=drafted)


def timed_study(*, timed: bool = True, beyond: float = 0.0, **noise: float) -> Study:
    """What ``curve`` looks at of a study."""
    written = SimpleNamespace(texts=tuple(TEXTS), directory=Path())

    _, reader = reader_of("stop-below")

    def found(k: int) -> Timed | None:
        laws = [loops_over(anchored(text.accepted, k)) for text in reader.texts] if k else None
        return Timed(work_of(TEXTS, laws), times(k, **noise)) if timed else None

    cells = [SimpleNamespace(drafter=MODEL, k=k, timed=found(k)) for k in range(1, K + 1)]
    policies = {(MODEL, Spec("stop-below")): under_a_policy(beyond)} if timed else {}
    return cast(
        Study,
        SimpleNamespace(written=written, forecasts=tuple(cells), ars=found(0), policy_times=policies, ran={}),
    )


def curve_of(named: str, **options: Any) -> Curve:
    policies, reader = reader_of(named)
    return curve(timed_study(**options), MODEL, reader, policies)


def test_a_fixed_k_costs_what_its_own_prediction_says() -> None:
    _, reader = reader_of("stop-below")
    laws = [loops_over(anchored(text.accepted, 3)) for text in reader.texts]
    expected = predict(Timed(work_of(TEXTS, laws), times(3)), Timed(work_of(TEXTS), times(0)))
    costs = loop_costs([times(k) for k in range(K + 1)])
    own = drafted_work(TEXTS, [drafted_loops(*fixed_loops(t.accepted, 3), COLD) for t in reader.texts], K)
    assert 1e3 * own.estimate(costs) == pytest.approx(expected.ms_per_token.estimate)
    assert own.per_token(costs)[0] == pytest.approx(own.estimate(costs))
    assert own.tokens_per_loop.estimate == pytest.approx(
        sum(len(text.tokens) for text in TEXTS) / sum(law.loops for law in laws)
    )


def test_a_threshold_of_zero_is_the_fixed_k() -> None:
    (cell,) = curve_of("stop-below:tau=0").cells
    assert cell.drafted_per_loop.estimate == pytest.approx(K)
    assert (cell.bounds.low, cell.bounds.high) == pytest.approx((K, K))
    assert cell.predicted is not None
    accepted = [text.accepted for text in reader_of("momentum")[1].texts]
    loops = sum(loops_over(anchored(each, K)).loops for each in accepted)
    assert cell.tokens_per_loop.estimate == pytest.approx(sum(map(len, accepted)) / loops)


def test_the_curve_falls_from_fixed_k_and_lies_between_its_bounds() -> None:
    found = curve_of("stop-below,entropy,momentum")
    assert len(found.cells) == 9 + 9 + 1
    for cells, step in ((found.cells[:9], -1), (found.cells[9:18], 1)):
        lengths = [cell.tokens_per_loop.estimate for cell in cells]
        assert lengths == sorted(lengths, reverse=step < 0)
    for cell in found.cells:
        assert 1 <= cell.bounds.low <= cell.bounds.high <= K
        assert cell.ms_bounds.low <= cell.ms_bounds.high
        # The sample is of the same texts, and small: it may leave the bounds by its own error.
        assert cell.bounds.low - 0.1 < cell.drafted_per_loop.estimate < cell.bounds.high + 0.1
    momentum = found.cells[-1]
    assert momentum.bounds.low == pytest.approx(momentum.bounds.high)


def test_time_is_of_loops_and_of_drafted_tokens() -> None:
    """Where a loop takes a constant and so much a drafted token, milliseconds follow by hand."""
    found = curve_of("stop-below:tau=0.4,momentum")
    for cell in (*found.cells, found.oracle):
        assert cell.predicted is not None
        seconds = A_LOOP + A_DRAFT * cell.drafted_per_loop.estimate
        by_hand = 1e3 * seconds / cell.tokens_per_loop.estimate
        assert cell.predicted.ms_per_token.estimate == pytest.approx(by_hand, rel=0.04)  # the context's part


@pytest.mark.parametrize(("beyond", "charged"), [(0.005, 0.005), (-0.005, 0.0)])
def test_what_deciding_takes_is_charged_a_loop(
    monkeypatch: pytest.MonkeyPatch, beyond: float, charged: float
) -> None:
    free, found = (curve_of("stop-below:tau=0.4", beyond=each) for each in (0.0, beyond))
    before, after = free.cells[0].predicted, found.cells[0].predicted
    assert before is not None
    assert after is not None
    more = 1e3 * charged / found.cells[0].tokens_per_loop.estimate
    assert after.ms_per_token.estimate - before.ms_per_token.estimate == pytest.approx(more, abs=1e-9)
    assert found.beyond_ms["stop-below"].estimate == pytest.approx(1e3 * beyond)


def test_nothing_is_faster_than_the_oracle() -> None:
    found = curve_of("stop-below,entropy,momentum")
    best = found.oracle.predicted.ms_per_token.estimate
    for cell in found.cells:
        assert best < cell.ms_bounds.low
    assert [choice.policy.name for choice in found.choices] == ["stop-below", "entropy", "momentum"]
    for choice in found.choices:
        assert choice.policy_share is not None
        assert 0 < choice.fixed_share.estimate < 1
        faster = choice.policy_share.estimate > choice.fixed_share.estimate
        assert faster == (choice.gain.estimate > 1)
        assert (choice.chosen_on, choice.judged_on) == (6, 6)


def test_where_drafting_costs_all_the_oracle_drafts_nothing() -> None:
    found = curve_of("stop-below", a_draft=1.0)
    assert found.oracle.drafted_per_loop.estimate == 0
    assert found.oracle.predicted.speedup.estimate == pytest.approx(1.0)
    assert found.choices[0].fixed_share is None


def test_without_times_there_is_no_choice_and_the_oracle_drafts_what_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = curve_of("stop-below:tau=0.4", timed=False)
    assert found.choices == ()
    assert found.cells[0].predicted is None
    fixed = curve_of("stop-below:tau=0", timed=False).cells[0]
    oracle, drafted = (astuple(each.tokens_per_loop) for each in (found.oracle, fixed))
    assert oracle == pytest.approx(drafted, rel=1e-12)
    # It drafts the accepted tokens alone; the last loop of a text may be cut.
    assert found.oracle.drafted_per_loop.estimate == pytest.approx(
        found.oracle.tokens_per_loop.estimate - 1, abs=0.1
    )


def test_one_pass_of_the_draft_serves_the_whole_curve() -> None:
    """The draft reads each token once; every further forward is of a sampled draft behind it."""
    policies = policies_of([Spec("stop-below"), Spec("entropy")], [MODEL])
    reader = StopReader(policies.rules, rollouts=0)
    calls: list[tuple[int, int]] = []

    class Counted(TableModel):
        def score(self, tokens: torch.Tensor, last: int) -> torch.Tensor:
            calls.append((len(tokens), last))
            return super().score(tokens, last)

    draft = Counted(random_rows(V, 2, 1.5), V)
    text = TEXTS[0]
    n = len(text.tokens)
    q = torch.full((n, V), 1 / V, dtype=torch.float64)
    given = ForcedText(text.prompt, text.tokens, np.full(n, -np.log(V)))
    reader.forced(ModelDrafter(draft, SAMPLING, torch.device("cpu")), given, q, K)
    assert calls[:2] == [(1, 1), (1 + n, n + 1)]  # the prompt, and the text behind it
    assert len(calls) <= 2 + K - 1  # one draft is sampled on behind the text
    assert len(reader.rules) == 18


def test_names_and_thresholds_of_policies() -> None:
    named = [Spec.parse(name) for name in ("fixed", "stop-below:tau=.4", "entropy", "momentum")]
    found = policies_of(named, [Spec("lookup"), MODEL])
    assert found.drafters == (MODEL,)
    assert [str(spec) for spec in found.specs[:2]] == ["stop-below:tau=0.4", "entropy:h=0.25"]
    assert len(found.specs) == 1 + 9 + 1
    assert policies_of([Spec("fixed")], [MODEL]) is None
    assert same_policy(Spec("stop-below"), Spec.parse("stop-below:tau=0.4"))
    assert not same_policy(Spec("stop-below"), Spec.parse("stop-below:tau=0.5"))


@pytest.mark.parametrize(
    ("policy", "drafter", "said"),
    [
        ("stop-bellow", "model", "unknown"),
        ("stop-below:tau=2", "model", "tau must be between 0 and 1"),
        ("stop-below:h=2", "model", "has no option h"),
        ("entropy:h=-1", "model", "h must be at least 0"),
        ("momentum:tau=1", "model", "has no option tau"),
        ("stop-below", "lookup", "no drafter here drafts as stop-below says"),
    ],
)
def test_a_policy_that_cannot_be_replayed_is_refused(policy: str, drafter: str, said: str) -> None:
    with pytest.raises(UsageError, match="--policy") as raised:
        policies_of([Spec.parse(policy)], [Spec(drafter)])
    assert said in str(raised.value)


def test_a_policy_of_another_package_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from spsbench.drafters.policy import Fixed, PolicyKind\n"
        "KIND = PolicyKind('mine', 'Mine.', lambda options: Fixed())\n"
    )
    with pytest.raises(UsageError, match="cannot be replayed: what it remembers"):
        policies_of([Spec.parse(f"{file}:KIND")], [MODEL])

"""Verdicts: what alarms, what clears, and what is only called self-consistency."""

from __future__ import annotations

import json
from typing import Any, cast

import pandas as pd
import pytest
import torch
from support.simulated_evidence import rescored, run, samples

from spsbench.law.evidence import sums_of
from spsbench.stats.losslessness import (
    _verdict_of_kind,
    above_optimum,
    alpha_leviathan,
    divergence,
    evidence_of,
    identity,
    losslessness,
)
from spsbench.store.summary_types import ArmRow, Decisions

ARM = "sps-k4-nucleus"


def _row(**changes: Any) -> dict[str, Any]:
    row = {"arm": ARM, "method": "sps", "k": 4, "engine": "eager", "sampling": "nucleus"}
    return row | {"baseline": None, "acceptance_z": 0.2} | changes


def _judge(frame: pd.DataFrame, dtype: str | None = None, **changes: Any) -> dict[str, Any]:
    found = losslessness({ARM: frame}, [_row(**changes)], dtype)
    assert found is not None
    json.dumps(found, allow_nan=False)
    (arm,) = found["arms"]
    assert found["verdict"] == arm["verdict"]
    assert found["bound"] == (arm["bound"] if arm["method"] == "sps" else None)
    return dict(arm)


def _greedy(impossible: int = 0, n: int = 20, length: int = 10) -> pd.DataFrame:
    """One-hot rows that every emitted token follows, but for so many in the first sequence."""
    q = torch.eye(4)[torch.zeros(length, dtype=torch.long)]
    frames = []
    for i in range(n):
        tokens = torch.zeros(length, dtype=torch.long)
        tokens[: impossible if i == 0 else 0] = 1
        frames.append(sums_of(tokens, q, q, torch.rand(length)))
    return samples(frames, tokens=length)


def test_a_lossless_run_that_was_re_scored_is_ok() -> None:
    arm = _judge(rescored(run(30, 0.0, seed=1), every=10))
    assert (arm["verdict"], arm["reasons"]) == ("ok", [])
    assert arm["bound"] == arm["rescored"]["leakage"]["bound"] > 0
    assert (arm["rescored"]["sequences"], arm["rescored"]["share"]) == (3, pytest.approx(0.1))
    assert arm["self_consistency"]["sequences"] == 30
    assert arm["self_consistency"]["positions"] == 900
    assert arm["self_consistency"]["drafted_positions"] == 600
    assert arm["rescored"]["leakage"]["bound"] > arm["self_consistency"]["leakage"]["bound"]


def test_self_consistency_alone_is_no_evidence_of_losslessness() -> None:
    arm = _judge(run(30, 0.0, seed=1))
    assert arm["verdict"] == "no evidence"
    assert arm["reasons"] == ["no sequence was re-scored independently"]
    assert arm["self_consistency"]["verdict"] == "ok"
    assert arm["rescored"] is None
    assert arm["bound"] is None


def test_a_leak_alarms_from_either_kind() -> None:
    honest, leaky = run(40, 0.0, seed=2, length=100), run(40, 0.4, seed=3, length=100)
    arm = _judge(leaky)
    assert arm["verdict"] == "alarm"
    assert arm["reasons"][0].startswith("self-consistency: e-value 10^")
    # The sampler's own rows look right, an independent forward disagrees: a stale cache, say.
    independent = [
        own | {name: value for name, value in other.items() if name.startswith("rescored_")}
        for own, other in zip(honest["losslessness"], rescored(leaky)["losslessness"], strict=True)
    ]
    arm = _judge(honest.assign(losslessness=pd.Series(independent, dtype=object)))
    assert arm["self_consistency"]["verdict"] == "ok"
    assert arm["verdict"] == "alarm"
    assert arm["reasons"][0].startswith("independent re-score: e-value 10^")


@pytest.mark.parametrize(("log10", "verdict"), [(2.99, "ok"), (3.0, "alarm")])
def test_an_e_value_of_1000_alarms(log10: float, verdict: str) -> None:
    facts: Any = {"impossible": 0, "tokens": 900, "greedy": False, "positions": 900, "log10_e_value": log10}
    assert _verdict_of_kind(facts, exact=True)[0] == verdict


def test_an_impossible_token_alarms_unless_rounding_explains_it() -> None:
    frame = rescored(run(30, 0.0, seed=4))
    first = frame["losslessness"][0]
    first["rescored_impossible"] = 1.0
    assert _judge(frame)["verdict"] == "alarm"
    assert "1 of 900 tokens have probability 0" in _judge(frame, "float32")["reasons"][0]
    assert _judge(frame, "bfloat16")["verdict"] == "ok"
    first["rescored_impossible"] = 30.0
    assert _judge(frame, "bfloat16")["verdict"] == "alarm"
    # The rows that verification used are exact at any dtype.
    first.update(rescored_impossible=0.0, impossible=1.0)
    assert _judge(frame, "bfloat16")["verdict"] == "alarm"


def test_acceptance_that_leaves_its_expectation_alarms() -> None:
    arm = _judge(rescored(run(30, 0.0, seed=5)), acceptance_z=-7.0)
    assert arm["verdict"] == "alarm"
    assert arm["reasons"] == ["alpha_tested and alpha_beta differ by 7.0 standard errors"]


def test_too_few_positions_and_no_sums_claim_nothing() -> None:
    arm = _judge(rescored(run(1, 0.0, seed=6)))
    assert (arm["verdict"], arm["rescored"]["verdict"]) == ("no evidence", "no evidence")
    assert "only 30 positions" in arm["reasons"][0]
    for frame in (samples([None, None]), samples([]), samples([None]).drop(columns="losslessness")):
        arm = _judge(frame)
        assert (arm["verdict"], arm["reasons"]) == ("no evidence", ["no evidence was recorded"])


def test_greedy_says_so_and_is_cleared_by_a_re_score_only() -> None:
    greedy = "greedy: token identity is checked by `spsbench verify`"
    arm = _judge(_greedy())
    assert (arm["verdict"], arm["reasons"][0]) == ("no evidence", greedy)
    assert arm["self_consistency"]["greedy"]
    assert arm["self_consistency"]["leakage"] is None
    arm = _judge(rescored(_greedy(), every=4))
    assert (arm["verdict"], arm["reasons"]) == ("ok", [greedy])
    assert _judge(rescored(_greedy(impossible=2)))["verdict"] == "alarm"


def test_greedy_tokens_are_compared_with_greedy_ars() -> None:
    ars, sps = (_greedy(n=4).assign(arm=name) for name in ("ars-greedy", ARM))
    ars["token_ids"] = pd.Series([[1, 2, 3]] * 4, dtype=object)
    sps["token_ids"] = pd.Series([[1, 2, 3], [1, 9, 3], [1, 2], [1, 2, 3]], dtype=object)
    rows = [
        _row(arm="ars-greedy", method="ars", k=0, sampling="greedy", acceptance_z=None),
        _row(baseline="ars-greedy", sampling="greedy"),
    ]
    found = losslessness({"ars-greedy": ars, ARM: sps}, rows)
    assert found["arms"][0]["identity"] is None
    assert found["arms"][1]["identity"] == {
        "sequences": 4,
        "identical": 0.5,
        "first_divergence": {"position": 1, "example_id": "e1", "sample_index": 0},
    }


def test_an_alarm_in_the_control_is_an_alarm_of_the_run() -> None:
    rows = [_row(arm="ars-nucleus", method="ars", k=0, acceptance_z=None), _row()]
    honest, leaky = rescored(run(30, 0.0, seed=7, length=100)), rescored(run(30, 0.5, seed=8, length=100))
    found = losslessness({"ars-nucleus": honest, ARM: honest}, rows)
    assert found["verdict"] == "ok"
    found = losslessness({"ars-nucleus": leaky, ARM: honest}, rows)
    assert found["verdict"] == "alarm"


def test_nothing_measured_has_no_verdict() -> None:
    assert losslessness({}, []) is None
    found = losslessness({}, [_row()])
    assert found["verdict"] == "no evidence"


def test_failed_sequences_are_left_out() -> None:
    frame = rescored(run(5, 0.0, seed=9))
    frame.loc[4, ["finish_reason", "error"]] = ["error", "out of memory"]
    found = evidence_of(frame, "rescored_")
    assert (found["sequences"], found["share"]) == (4, 1.0)


def test_alpha_leviathan_is_the_mean_overlap_over_re_scored_positions() -> None:
    frame = rescored(run(6, 0.0, seed=10), every=2)
    chosen = [frame["losslessness"][i] for i in (0, 2, 4)]
    expected = sum(s["rescored_overlap"] for s in chosen) / sum(
        s["rescored_overlap_positions"] for s in chosen
    )
    assert alpha_leviathan(frame) == pytest.approx(expected)
    assert 0 < expected < 1
    assert alpha_leviathan(run(6, 0.0, seed=10)) is None


def _decided(**last: float) -> pd.DataFrame:
    """Four sequences with 5 positions and 50 decisions each; ``last`` changes the sums of the last one."""
    frame = rescored(run(4, 0.0, seed=11, length=5))
    for index, own in enumerate(frame["losslessness"]):
        own |= {"decisions": 50.0, "decisions_rounding": 0.0, "decisions_contradicted": 0.0}
        own["decisions_closest"] = 0.1 + index / 10
    frame["losslessness"][3].update(last)
    return frame


def test_decisions_that_all_follow_clear_an_arm_that_has_too_few_positions() -> None:
    arm = _judge(_decided())
    assert arm["rescored"]["verdict"] == "no evidence"
    assert (arm["verdict"], arm["reasons"][-1]) == ("ok", "every decision follows from the target's own rows")
    told = arm["decisions"]
    assert (told["decisions"], told["rounding"], told["contradicted"], told["closest"]) == (200, 0, 0, 0.1)
    assert told["exact"]
    assert (told["sequences"], told["share"], told["dtype"]) == (4, 1.0, "float32")


def test_one_contradiction_is_an_alarm_and_rounding_is_none() -> None:
    arm = _judge(_decided(decisions_rounding=1.0))
    assert (arm["verdict"], arm["decisions"]["rounding"], arm["decisions"]["exact"]) == ("ok", 1, True)
    arm = _judge(_decided(decisions_contradicted=1.0))
    assert arm["verdict"] == "alarm"
    assert arm["reasons"] == ["decisions derived again: 1 of 200 decisions contradict the models' rows"]
    assert not arm["decisions"]["exact"]


def test_half_precision_is_never_exact_and_alarms_at_a_share() -> None:
    coarse = _judge(_decided(decisions_contradicted=4.0), "bfloat16")
    assert (coarse["decisions"]["verdict"], coarse["decisions"]["exact"]) == ("ok", False)
    assert coarse["verdict"] == "no evidence"
    assert _judge(_decided(decisions_contradicted=5.0), "bfloat16")["verdict"] == "alarm"


def test_a_part_of_the_sequences_is_not_exact() -> None:
    frame = _decided()
    own = frame["losslessness"][0]
    for name in [name for name in own if name.startswith("decisions")]:
        del own[name]
    told = _judge(frame)["decisions"]
    assert (told["sequences"], told["share"], told["exact"], told["decisions"]) == (3, 0.75, False, 150)
    assert _judge(rescored(run(3, 0.0, seed=1)))["decisions"] is None


def test_what_was_drawn_for_the_proof_belongs_to_its_engine_and_k_and_may_alarm() -> None:
    frame = _decided()
    row = _row()
    drawn = {"engine": row["engine"], "k": row["k"], "decisions": None}
    drawn["rescored"] = {"verdict": "ok", "reasons": []}
    found = losslessness({ARM: frame}, [row], None, {"arms": [drawn]})
    assert (found["arms"][0]["proof"], found["verdict"]) == (drawn, "ok")
    leaky = drawn | {"rescored": {"verdict": "alarm", "reasons": ["e-value 10^4.0, alarm at 10^3"]}}
    found = losslessness({ARM: frame}, [row], None, {"arms": [leaky]})
    assert found["verdict"] == "alarm"
    assert found["arms"][0]["reasons"] == ["at temperature 1: e-value 10^4.0, alarm at 10^3"]
    found = losslessness({ARM: frame}, [row], None, {"arms": [leaky | {"k": row["k"] + 1}]})
    assert (found["arms"][0]["proof"], found["verdict"]) == (None, "ok")


def test_only_exact_rows_let_certain_positions_bound_leakage() -> None:
    """Half of the positions leave one token; in half precision a token outside may be rounding."""
    q = torch.tensor([[1.0, 0.0], [0.5, 0.5]]).repeat(100, 1)
    p = torch.tensor([[0.2, 0.8], [0.2, 0.8]]).repeat(100, 1)
    frame = samples([sums_of(torch.tensor([0, 0, 0, 1]).repeat(50), q, p, torch.rand(200))])
    bounds = [evidence_of(frame, exact=exact)["leakage"]["bound"] for exact in (True, False)]  # type: ignore[index]
    assert bounds[0] < 0.5 * bounds[1]
    greedy = samples([sums_of(torch.zeros(100, dtype=torch.long), q[::2], p[::2], torch.rand(100))])
    found = evidence_of(greedy)
    assert (found["greedy"], found["leakage"]) == (True, None)


@pytest.mark.parametrize(
    ("one", "other", "position"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1, 2], [1], 1), ([], [4], 0), ([], [], None)],
)
def test_the_first_difference_or_end(one: list[int], other: list[int], position: int | None) -> None:
    assert divergence(one, other) == position


def test_without_tokens_or_common_sequences_there_is_nothing_to_compare() -> None:
    frame = samples([None, None])
    assert identity(frame, frame) is None
    tokens = frame.assign(token_ids=[[1], [2]])
    assert identity(tokens, tokens.assign(example_id="other")) is None
    same = identity(tokens, tokens)
    assert same == {"sequences": 2, "identical": 1.0, "first_divergence": None}


def test_a_sequence_is_compared_within_its_process() -> None:
    """Two processes that wrote different texts, each of them the same in both arms."""
    frame = samples([None, None])
    both = pd.concat(
        [frame.assign(process=process, token_ids=[[process], [2]]) for process in (0, 1)], ignore_index=True
    )
    assert identity(both, both) == {"sequences": 4, "identical": 1.0, "first_divergence": None}


@pytest.mark.parametrize(("low", "alarmed"), [(1.02, True), (0.97, False), (None, False)])
def test_more_than_the_best_lossless_rule_accepts_is_an_alarm(low: float | None, alarmed: bool) -> None:
    row = cast("ArmRow", {"share_of_optimum": {"ratio": 1.19, "low": low, "high": 1.4}})
    assert bool(above_optimum(row, None)) == alarmed
    assert above_optimum(row, cast("Decisions", {"exact": True})) == [], "nothing is left to estimate"
    if alarmed:
        (reason,) = above_optimum(row, None)
        assert str(reason) == "accepts 119.0% of what the best lossless rule can, at least 102.0%"

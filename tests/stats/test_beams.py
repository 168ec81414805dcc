"""Verdicts on beam search: identical, apart by rounding, and apart."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pytest

from spsbench.report.judgement import searches
from spsbench.stats.losslessness import beam_facts, losslessness, slack

ARS, SPS = "ars-beam(4)", "sps-k4-beam(4)"
FOUND: dict[tuple[int, ...], float] = {(5, 6, 1): -2.0, (5, 7, 1): -2.5}


def frame(
    *hypotheses: dict[tuple[int, ...], float], closest: float = 0.2, rescored: float = 0.0
) -> pd.DataFrame:
    """Rows of ``samples``; ``rescored`` is added to what the uncached forward says."""
    return pd.DataFrame(
        [
            {
                "example_id": f"e{index}",
                "sample_index": 0,
                "finish_reason": "eos",
                "error": None,
                "new_tokens": 3,
                "hypotheses": json.dumps(
                    [
                        {"tokens": tokens, "log_prob": value, "score": value / 3, "reason": "eos"}
                        for tokens, value in found.items()
                    ]
                ),
                "losslessness": {
                    "beam_closest": closest,
                    "beam_log_prob": max(found.values()),
                    "rescored_beam_log_prob": max(found.values()) + rescored,
                },
            }
            for index, found in enumerate(hypotheses)
        ]
    )


def judged(ars: pd.DataFrame | None, sps: pd.DataFrame, dtype: str = "float32") -> dict[str, Any]:
    arms = [(ARS, "ars", 0, ars), (SPS, "sps", 4, sps)]
    rows = [
        {"arm": arm, "method": method, "k": k, "engine": "eager", "sampling": "beam(4)"}
        | {"baseline": None if method == "ars" else ARS, "acceptance_z": None}
        for arm, method, k, own in arms
        if own is not None
    ]
    by_arm = {arm: own for arm, _, _, own in arms if own is not None}
    found = losslessness(by_arm, rows, dtype)  # type: ignore[arg-type]
    assert found is not None
    json.dumps(found, allow_nan=False)
    return dict(found)


def test_the_same_hypotheses_and_scores_are_ok() -> None:
    found = judged(frame(FOUND, FOUND), frame(FOUND, FOUND))
    assert found["verdict"] == "ok"
    ars, sps = found["arms"]
    assert ars["verdict"] == "ok"
    counts = {"sequences": 2, "identical": 2, "rounding": 0, "contradicted": 0}
    assert sps["beams"]["identity"] == counts | {"allowance": pytest.approx(4e-4), "precise": True}
    assert sps["beams"]["scores"] == {"sequences": 2, "largest_difference": 0.0, "contradicted": 0}
    assert sps["bound"] is None is sps["rescored"] is sps["decisions"]
    (sentence,) = map(str, searches([sps]))
    assert "identical on all 2 prompts (hypotheses and scores). " in sentence


OTHER: dict[tuple[int, ...], float] = {(5, 6, 1): -2.0, (5, 8, 1): -2.6}


def test_another_hypothesis_is_an_alarm_unless_a_choice_was_within_rounding() -> None:
    found = judged(frame(FOUND, FOUND), frame(FOUND, OTHER))
    assert found["verdict"] == "alarm"
    assert found["arms"][1]["reasons"] == ["1 of 2 searches found other hypotheses or scores"]
    assert "1 of 2 prompts; 0 differ within rounding, 1 beyond it" in str(*searches([found["arms"][1]]))
    close = judged(frame(FOUND, FOUND), frame(FOUND, OTHER, closest=1e-5))
    assert close["verdict"] == "ok"
    assert close["arms"][1]["beams"]["identity"]["rounding"] == 1


def test_the_same_hypothesis_at_another_score_is_an_alarm() -> None:
    moved = FOUND | {(5, 7, 1): -2.51}
    assert judged(frame(FOUND), frame(moved, closest=0.0))["verdict"] == "alarm"
    assert judged(frame(FOUND), frame(moved), "bfloat16")["verdict"] == "ok"
    assert judged(frame(FOUND), frame(FOUND | {(5, 7, 1): -2.5001}))["verdict"] == "ok"


def test_identity_in_16_bit_is_called_weak_evidence() -> None:
    found = judged(frame(FOUND), frame(FOUND), "bfloat16")
    (reason,) = found["arms"][1]["reasons"]
    assert reason.endswith("in 1 of 1; weak evidence, 0.1 nats count as rounding")
    (sentence,) = map(str, searches([found["arms"][1]]))
    assert "weak evidence: in 16 bit up to 0.1 nats count as rounding." in sentence


def test_scores_of_outputs_of_different_lengths_are_compared_in_nats() -> None:
    """-4.0 over 4 tokens and -2.0006 over 2 are 3e-4 apart as scores, and 6e-4 nats at the shorter length."""
    found: dict[tuple[int, ...], float] = {(5, 6, 7, 1): -4.0, (5, 1): -2.0006}
    one, other = (frame(order, closest=0.0) for order in (found, dict(reversed(found.items()))))
    for side in (one, other):
        rows = [
            row | {"score": row["log_prob"] / len(row["tokens"])} for row in json.loads(side["hypotheses"][0])
        ]
        side["hypotheses"] = [json.dumps(rows)]
    assert judged(one, other)["verdict"] == "alarm"


def test_hypotheses_that_change_places_are_rounding_only_where_their_scores_are_close() -> None:
    """The best one is the output: another order is another output."""
    close: dict[tuple[int, ...], float] = {(5, 6, 1): -2.0, (5, 7, 1): -2.0 - 1e-6, (5, 8, 1): -3.0}
    (one, first), (two, second), worst = close.items()
    swapped = dict([(two, second + 1e-6), (one, first - 1e-6), worst])
    found = judged(frame(close, close), frame(close, swapped))
    assert found["verdict"] == "ok"
    identity = found["arms"][1]["beams"]["identity"]
    assert (identity["identical"], identity["rounding"], identity["contradicted"]) == (1, 1, 0)
    assert "1 of 2 prompts; 1 differ within rounding, 0 beyond it" in str(*searches([found["arms"][1]]))
    far = judged(frame(FOUND), frame(dict(reversed(FOUND.items())), closest=0.0))
    assert far["verdict"] == "alarm"
    equal = dict.fromkeys(FOUND, -2.0)
    tied = judged(frame(equal), frame(dict(reversed(equal.items()))))
    assert tied["arms"][1]["beams"]["identity"]["rounding"] == 1


def test_a_log_probability_that_the_target_contradicts_is_an_alarm() -> None:
    found = judged(frame(FOUND, rescored=0.1), frame(FOUND))
    assert [arm["verdict"] for arm in found["arms"]] == ["alarm", "ok"]
    assert found["arms"][0]["reasons"] == ["1 of 1 log-probabilities contradict the target"]


def test_without_exact_beam_search_there_is_no_evidence() -> None:
    found = judged(None, frame(FOUND))
    assert found["verdict"] == "no evidence"
    assert found["arms"][0]["reasons"] == ["no exact beam search beside it: --arms ars,sps"]
    assert "exact beam search was not run" in str(*searches(found["arms"]))


def test_prompts_that_both_finished_are_compared() -> None:
    failed = frame(FOUND, FOUND)
    failed.loc[0, "finish_reason"] = "error"
    facts = beam_facts(failed, frame(FOUND, FOUND), precise=True)
    assert facts["identity"]["sequences"] == 1


def test_each_process_is_compared_with_itself() -> None:
    both = [pd.concat([frame(found).assign(process=n) for n, found in enumerate((FOUND, OTHER))])] * 2
    facts = beam_facts(*both, precise=True)
    assert (facts["identity"]["sequences"], facts["identity"]["identical"]) == (2, 2)


def test_more_tokens_and_coarser_numbers_are_granted_more() -> None:
    assert slack(3, precise=True) == pytest.approx(4e-4)
    assert slack(8, precise=True) < slack(99, precise=True) < slack(3, precise=False)

"""The sentences on losslessness and parity, and their sections in the report."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from spsbench.report import judgement
from spsbench.report.messages import losslessness
from spsbench.report.sections import render, show

Make = Callable[..., dict[str, Any]]


def _judged(*arms: dict[str, Any]) -> dict[str, Any]:
    return {"verdict": "ok", "arms": list(arms)}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0%"),
        (0.00281, "0.29%"),
        (0.003, "0.3%"),
        (0.052, "5.2%"),
        (0.0521, "5.3%"),
        (0.99, "99%"),
        (0.999, "-"),
        (1.0, "-"),
    ],
)
def test_a_bound_is_rounded_up(value: float, text: str) -> None:
    assert losslessness.bound(value) == text


@pytest.mark.parametrize(
    ("name", "limit", "text"),
    [
        ("ok", 0.0901, "ok: no sign of a leak above 9.1%"),
        ("ok", None, "ok"),
        ("alarm", 0.0901, "alarm"),
        ("no evidence", 0.0901, "no evidence"),
    ],
)
def test_ok_is_never_said_without_what_it_excludes(name: str, limit: float | None, text: str) -> None:
    assert losslessness.worded(name, limit) == text


def test_the_headline_is_the_bound_of_the_independent_evidence(
    make_summary: Make, make_judged_arm: Make
) -> None:
    summary = make_summary(losslessness=_judged(make_judged_arm()))
    assert judgement.losslessness(summary) == [
        "Losslessness: no leak found, one above 0.29% of the tokens would have been seen (95% bound); "
        "12 sequences re-scored by an independent forward."
    ]
    assert judgement.alarms(summary) == []


def test_without_a_re_score_the_word_is_self_consistency(make_summary: Make, make_judged_arm: Make) -> None:
    (text,) = judgement.losslessness(make_summary(losslessness=_judged(make_judged_arm(rescored=None))))
    assert text == (
        "Self-consistency: no leak found, one above 0.29% of the tokens would have been seen (95% bound), "
        "by the rows that SpS itself used alone."
    )


def test_a_bound_from_too_little_says_so(make_summary: Make, make_judged_arm: Make, make_kind: Make) -> None:
    arm = make_judged_arm(rescored=make_kind(verdict="no evidence", positions=36, sequences=24))
    (text,) = judgement.losslessness(make_summary(losslessness=_judged(arm)))
    assert text.startswith(
        "Losslessness: too few informative positions (36); no leak found, one above 0.29% of the "
    )


def test_of_several_arms_the_worst_is_told(
    make_summary: Make, make_judged_arm: Make, make_kind: Make
) -> None:
    leaky = make_kind(leakage=make_kind()["leakage"] | {"bound": 0.052}, sequences=1)
    arms = [
        make_judged_arm(),
        make_judged_arm(k=7, rescored=leaky),
        make_judged_arm(method="ars", rescored=leaky),
    ]
    (text,) = judgement.losslessness(make_summary(losslessness=_judged(*arms)))
    assert text == (
        "Losslessness: no leak found, one above 5.2% of the tokens would have been seen (95% bound); "
        "1 sequence re-scored by an independent forward. Widest bound: SpS (K=7), nucleus."
    )


def test_greedy_and_no_evidence_have_sentences_of_their_own(
    make_summary: Make, make_judged_arm: Make
) -> None:
    same = {"sequences": 40, "identical": 0.95, "first_divergence": {}}
    greedy = make_judged_arm(self_consistency=None, rescored=None, identity=same)
    (text,) = judgement.losslessness(make_summary(losslessness=_judged(greedy)))
    assert text == "Greedy: 38 of 40 SpS outputs are identical to those of ArS, token for token."
    nothing = make_judged_arm(self_consistency=None, rescored=None)
    assert judgement.losslessness(make_summary(losslessness=_judged(nothing))) == [
        "Losslessness: no evidence was recorded."
    ]
    assert judgement.losslessness(make_summary()) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {},
            "inconclusive, +0.0020 [-0.0100, +0.0140] against ArS; 50 prompts can detect a difference of "
            "0.0460, showing parity within ±0.0100 (5% of the target-draft gap) needs about 1,083",
        ),
        ({"verdict": "equivalent"}, "equivalent to ArS within ±0.0100 (5% of the target-draft gap)"),
        ({"verdict": "different", "low": 0.001}, "different from ArS by +0.0020 [+0.0010, +0.0140]"),
        (
            {"verdict": None, "reason": "the same score on every prompt"},
            "not judged, the same score on every prompt",
        ),
    ],
)
def test_each_verdict_on_quality_in_words(
    changes: dict[str, Any], text: str, make_summary: Make, make_comparison: Make
) -> None:
    parity = {"metric": "rouge2", "comparisons": [make_comparison(**changes)], "target_over_draft": []}
    assert judgement.parity(make_summary(parity=parity)) == [f"ROUGE-2 of SpS (K=4), nucleus: {text}."]


def test_identical_outputs_are_called_so(
    make_summary: Make, make_comparison: Make, make_judged_arm: Make
) -> None:
    same = {"verdict": None, "reason": "the same score on every prompt", "prompts": 40}
    parity = {"metric": "rouge2", "comparisons": [make_comparison(**same)], "target_over_draft": []}
    greedy = make_judged_arm(identity={"sequences": 40, "identical": 1.0, "first_divergence": None})
    summary = make_summary(parity=parity, losslessness=_judged(greedy))
    assert judgement.parity(summary) == [
        "ROUGE-2 of SpS (K=4), nucleus: outputs identical on all 40 prompts."
    ]
    assert "| identical |" in render(summary, {})
    parted = make_judged_arm(identity={"sequences": 40, "identical": 0.975, "first_divergence": {}})
    assert "not judged" in judgement.parity(make_summary(parity=parity, losslessness=_judged(parted)))[0]


def test_many_comparisons_are_counted(make_summary: Make, make_comparison: Make) -> None:
    found = [
        *(make_comparison(verdict=v) for v in ("equivalent", "equivalent", "inconclusive", "different")),
        make_comparison(verdict=None, reason="the same score on every prompt"),
    ]
    parity = {"metric": "rouge2", "comparisons": found, "target_over_draft": []}
    assert judgement.parity(make_summary(parity=parity)) == [
        "ROUGE-2 of 5 arms against ArS: 2 equivalent, 1 inconclusive, 1 different, 1 not judged (the "
        "same score on every prompt); showing parity for all needs about 1,083 prompts."
    ]


def test_an_alarm_is_red_and_stands_on_the_first_screen(
    make_summary: Make, make_judged_arm: Make, make_kind: Make
) -> None:
    arm = make_judged_arm(verdict="alarm", reasons=["e-value 10^9.0, alarm at 10^3"])
    file = io.StringIO()
    show(make_summary(losslessness=_judged(arm)), Console(file=file, width=80, force_terminal=True))
    (line,) = [line for line in file.getvalue().splitlines() if "ALARM" in line]
    assert "\x1b[1;31mALARM: SpS (K=4), nucleus, does not follow" in line
    assert "**ALARM: SpS (K=4), nucleus" in render(make_summary(losslessness=_judged(arm)), {})


def test_the_sections_of_the_report(make_summary: Make, make_judged_arm: Make, make_comparison: Make) -> None:
    better = {"sampling": "nucleus", "prompts": 50, "ratio": 3.1, "low": 2.8, "high": 3.4, "reason": None}
    solved = {"both": 1, "only_ars": 4, "only_sps": 5, "neither": 0, "p_value": 1.0, "reason": None}
    parity = {
        "metric": "rouge2",
        "comparisons": [make_comparison(solved=solved)],
        "target_over_draft": [better],
    }
    text = render(make_summary(losslessness=_judged(make_judged_arm()), parity=parity), {})
    row = "12 (24%) | 1200 | 0.1% \\[-0.12%, 0.32%\\] | 0.29% | -0.7 | 0.4 | 0.534 | 0"
    verdict = "ok: no sign of a leak above 0.29%"
    assert f"| SpS (K=4), nucleus | losslessness (re-scored) | {row} | {verdict} |" in text
    assert "| SpS (K=4), nucleus | self-consistency | 50 (100%) |" in text
    assert "* SpS (K=4), nucleus: ok: no sign of a leak above 0.29%." in text
    assert "## Parity of ROUGE-2" in text
    assert "| +0.0020 \\[-0.0100, +0.0140\\] | -0.010 | ±0.0100 | 0.090 | inconclusive |" in text
    assert "* ROUGE-2 of the target over the draft alone, nucleus: 3.10x \\[2.80, 3.40\\]." in text
    assert (
        "problems solved by any sample: 1 by both, 4 by ArS alone, 5 by SpS alone; McNemar p 1.000." in text
    )
    assert "None" not in text


def test_sections_without_numbers_still_say_so(
    make_summary: Make, make_judged_arm: Make, make_comparison: Make
) -> None:
    nothing = make_judged_arm(
        self_consistency=None, rescored=None, verdict="no evidence", reasons=["no evidence was recorded"]
    )
    names = (
        "difference",
        "low",
        "high",
        "normalised_difference",
        "tost_p_value",
        "baseline_mean",
        "arm_mean",
    )
    empty = make_comparison(verdict=None, reason="0 prompts: no variance to judge by", **dict.fromkeys(names))
    parity = {"metric": "rouge2", "comparisons": [empty], "target_over_draft": []}
    text = render(make_summary(losslessness=_judged(nothing), parity=parity), {})
    assert "* SpS (K=4), nucleus: no evidence: no evidence was recorded." in text
    assert "--arms ars,sps,draft measures it" in text
    assert "None" not in text


def _decisions(**changes: Any) -> dict[str, Any]:
    told = {"sequences": 40, "share": 1.0, "decisions": 2_912, "rounding": 0, "contradicted": 0}
    told |= {"closest": 0.00031, "dtype": "float32", "exact": True, "verdict": "ok", "reasons": []}
    return told | changes


ROWS = "decisions follow from the target's own rows"


def test_decisions_that_no_independent_forward_has_read_are_not_called_so(
    make_summary: Make, make_judged_arm: Make
) -> None:
    for contradicted in (0, 12):
        decided = _decisions(exact=False, contradicted=contradicted)
        for unread, said in (
            (0, "(independent forward, float32)"),
            (40, "loops' own rows" * bool(contradicted)),
        ):
            arm = make_judged_arm(decisions=decided, unread=unread, rescored=None)
            (text,) = [
                each
                for each in judgement.losslessness(make_summary(losslessness=_judged(arm)))
                if each.startswith("Decisions")
            ]
            assert said in text
            assert ("(independent forward" in text) == (not unread)
            assert ("no independent forward has read them" in text) is (unread > 0 and not contradicted)


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        ({}, [f"Lossless: 2,912 of 2,912 {ROWS} (independent forward, float32)."]),
        (
            {"rounding": 2, "recorded": 2_912},
            [
                f"Lossless: 2,910 of 2,912 {ROWS}, 2 more within rounding (independent forward, float32; the "
                "draft's rows as recorded)."
            ],
        ),
        (
            {"exact": False, "share": 0.5},
            [
                "Losslessness",
                f"Decisions in 40 sequences: 2,912 of 2,912 {ROWS} (independent forward, float32).",
            ],
        ),
        (
            {"exact": False, "open": 7},
            [
                "Losslessness",
                f"Decisions: 2,905 of 2,912 {ROWS}, 7 were made in the drafter's own way (independent "
                "forward, float32).",
            ],
        ),
        (
            {"exact": False, "contradicted": 12},
            [
                "Losslessness",
                "Decisions: 12 of 2,912 contradict the target's own rows (independent forward, float32).",
            ],
        ),
    ],
)
def test_decisions_in_words_and_a_bound_only_where_they_are_not_the_verdict(
    changes: dict[str, Any], texts: list[str], make_summary: Make, make_judged_arm: Make
) -> None:
    arm = make_judged_arm(decisions=_decisions(**changes))
    control = make_judged_arm(method="ars", decisions=_decisions(decisions=1))
    told = judgement.losslessness(make_summary(losslessness=_judged(arm, control)))
    assert [texts[0], *told[1:]] == texts
    assert told[0].startswith(texts[0])
    assert ("95%" in " ".join(told)) == (len(texts) > 1)


def test_arms_without_decisions_keep_a_bound_beside_those_that_are_confirmed(
    make_summary: Make, make_judged_arm: Make
) -> None:
    arms = [make_judged_arm(decisions=_decisions()), make_judged_arm(engine="hf-assisted")]
    first, second = judgement.losslessness(make_summary(losslessness=_judged(*arms)))
    assert first.startswith("Lossless, 1 of 2 arms: 2,912 of 2,912")
    assert second.startswith(
        "Losslessness of SpS (K=4) @hf-assisted, nucleus: no leak found, one above 0.29%"
    )


def test_the_sequences_drawn_for_the_proof_in_words_and_in_the_report(
    make_summary: Make, make_judged_arm: Make, make_kind: Make
) -> None:
    leakage = make_kind()["leakage"] | {"bound": 0.0119}
    drawn = {
        "engine": "eager",
        "k": 4,
        "decisions": _decisions(sequences=9),
        "rescored": make_kind(sequences=9),
    }
    worse = drawn | {"rescored": make_kind(sequences=8, leakage=leakage)}
    arms = [make_judged_arm(decisions=_decisions(), proof=drawn), make_judged_arm(k=7, proof=worse)]
    summary = make_summary(losslessness=_judged(*arms))
    assert judgement.losslessness(summary)[-1] == (
        "At temperature 1 without nucleus, from 8 more sequences: leakage at most 1.2% (95% bound)."
    )
    text = render(summary, {})
    row = "2,912 | 0 | 0 | 3.1e-04 | float32 | independent | exact |"
    assert f"| SpS (K=4), nucleus | 40 (100%) | {row}" in text
    assert f"| SpS (K=4), at temperature 1 | 9 (100%) | {row}" in text
    assert "* SpS (K=4), nucleus: ok.\n" in text
    assert (
        "* SpS (K=7): At temperature 1 without nucleus, from 8 more sequences: leakage at most 1.2%" in text
    )
    unread = make_judged_arm(proof=drawn | {"rescored": None, "decisions": None})
    assert len(judgement.losslessness(make_summary(losslessness=_judged(unread)))) == 1

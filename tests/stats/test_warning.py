"""Each warning appears when it has reason to, names the arm, and tells what to do."""

from __future__ import annotations

from typing import Any

import pytest
from support.simulated_sweep import sweep
from support.summarised import summarise

from spsbench.base.axes import label
from spsbench.stats import conditions


def warnings(*args: Any, **kwargs: Any) -> list[str]:
    return [*map(str, conditions.warnings(*args, **kwargs))]


def _row(**changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "arm": "sps-k4-nucleus",
        "method": "sps",
        "k": 4,
        "engine": "eager",
        "sampling": "nucleus",
        "sequences": 50,
        "prompts": 50,
        "failed": 0,
        "missing": 0,
        "baseline": "ars-nucleus",
        "speedup": {"ratio": 1.9, "low": 1.8, "high": 2.0},
        "speedup_halves": [1.9, 1.9],
        "paired_prompts": 50,
        "drifted": False,
        "acceptance_z": 0.3,
    }
    return row | changes


@pytest.mark.parametrize(
    ("changes", "sentence", "remedy"),
    [
        ({"paired_prompts": 5}, "77% of such runs never meet what slows 1 prompt in 20", "--limit"),
        ({"paired_prompts": 1}, "rests on 1 prompt:", "--limit"),
        ({"failed": 2}, "SpS (K=4), nucleus: 2 of 52 sequences failed", "--resume"),
        ({"missing": 7}, "7 sequences have not been run", "--resume"),
        ({"baseline": None, "speedup": None}, "no ArS arm", "--arms ars,sps"),
        ({"speedup": None}, "no prompt was finished", "--resume"),
        ({"drifted": True, "speedup_halves": [2.0, 1.5]}, "2.00x in the first half", "quiet machine"),
        ({"acceptance_z": -9.0}, "differ by 9.0 standard errors", "spsbench verify"),
    ],
)
def test_a_reason_gives_one_sentence_with_its_remedy(
    changes: dict[str, Any], sentence: str, remedy: str
) -> None:
    (text,) = warnings([_row(**changes)])
    assert sentence in text
    assert remedy in text


@pytest.mark.parametrize(
    ("changes", "held", "remedy"),
    [
        ({}, 400, "Raise --limit"),
        ({}, None, "Raise --limit"),  # not recorded
        ({}, 5, "Give more prompts"),
        ({"paired_conversations": 4}, 5, "Raise --limit"),  # of two turns each
        ({"paired_conversations": 5}, 5, "Give more prompts"),
    ],
)
def test_a_limit_is_to_be_raised_only_where_the_data_hold_more(
    changes: dict[str, Any], held: int | None, remedy: str
) -> None:
    (text,) = warnings([_row(paired_prompts=5, prompts=5, **changes)], data={"split_size": held})
    assert text.endswith(f" {remedy}.")


def test_ars_that_has_not_run_yet_is_no_arm_that_is_missing() -> None:
    ars = _row(arm="ars-nucleus", method="ars", k=0, baseline=None, speedup=None, paired_prompts=None)
    begun = _row(baseline=None, speedup=None, paired_prompts=None)
    (text,) = warnings([ars | {"acceptance_z": None}, begun])
    assert text.endswith("no prompt was finished by it and by ArS, so no speedup. Continue with --resume.")
    (text,) = warnings([ars | {"acceptance_z": None, "sampling": "greedy"}, begun])
    assert text.endswith("Run with --arms ars,sps.")


def test_a_clean_run_has_no_warning() -> None:
    baseline = _row(method="ars", k=0, baseline=None, speedup=None, paired_prompts=None, acceptance_z=None)
    assert warnings([baseline, _row()]) == []


@pytest.mark.parametrize("arm", ["ars", "sps"])
def test_a_sequence_that_stands_out_is_named_and_stays(arm: str) -> None:
    """A hiccup of ten times, in one of 12 sequences; lesser ones and short texts are not named."""
    samples, loops = sweep(ks=(0, 4), prompts=12)
    assert not any("far slower" in text for text in summarise(samples, loops, {})["warnings"])
    own, name = samples["arm"].str.startswith(arm), {"ars": "ArS", "sps": "SpS (K=4)"}[arm]
    for example, factor in (("e7", 10.0), ("e3", 1.4)):
        samples.loc[own & (samples["example_id"] == example), "decode_s"] *= factor
    found = summarise(samples, loops, {})
    (text,) = [text for text in found["warnings"] if "far slower" in text]
    assert text.startswith(f"{name}, nucleus: far slower per token than the arm's other sequences: e7 (")
    assert "e3" not in text
    assert found["rows"][1]["sequences"] == 12
    samples["new_tokens"] = 7  # too short to say
    assert not any("far slower" in text for text in summarise(samples, loops, {})["warnings"])


def test_labels() -> None:
    assert label(_row()) == "SpS (K=4)"
    assert label(_row(method="ars")) == "ArS"
    assert label(_row(method="draft", engine="graphed")) == "draft alone @graphed"


def _evidence(**changes: Any) -> dict[str, Any]:
    arm = {"self_consistency": None, "rescored": None, "identity": None}
    return {"verdict": "no evidence", "arms": [_row() | arm | changes]}


def test_alarms_of_the_evidence_name_their_kind() -> None:
    kind = {"verdict": "alarm", "reasons": ["e-value 10^9.0, alarm at 10^3"]}
    (text,) = warnings([_row()], _evidence(rescored=kind))
    assert "SpS (K=4), nucleus: losslessness fails: e-value 10^9.0" in text
    (text,) = warnings([_row()], _evidence(self_consistency=kind))
    assert "self-consistency fails" in text
    assert "spsbench verify" in text
    assert warnings([_row()], _evidence(rescored={"verdict": "ok", "reasons": []})) == []


def test_greedy_outputs_that_part_are_told() -> None:
    first = {"position": 17, "example_id": "xsum/3", "sample_index": 0}
    same = {"sequences": 40, "identical": 0.95, "first_divergence": first}
    (text,) = warnings([_row()], _evidence(identity=same))
    assert "95% of 40 outputs are identical to ArS; the first differs in xsum/3 at token 17" in text
    assert warnings([_row()], _evidence(identity=same | {"identical": 1.0})) == []


def test_only_a_difference_in_quality_is_warned_of() -> None:
    found = {
        "arm": "sps-k4-nucleus",
        "verdict": "different",
        "difference": -0.02,
        "low": -0.03,
        "high": -0.01,
    }
    (text,) = warnings([_row()], None, {"metric": "rouge2", "comparisons": [found]})
    assert "its rouge2 differs from that of ArS by -0.0200 [-0.0300, -0.0100]" in text
    calm = found | {"verdict": "inconclusive"}
    assert warnings([_row()], None, {"metric": "rouge2", "comparisons": [calm]}) == []

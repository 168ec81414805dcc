"""Gates: what fails them, and that silence is no evidence."""

from __future__ import annotations

from typing import Any

import pytest

from spsbench.stats.conditions import GATES, gate_failures


def _arm(verdict: str, method: str = "sps", **changes: Any) -> dict[str, Any]:
    arm = {"arm": f"{method}-nucleus", "method": method, "k": 4, "engine": "eager", "sampling": "nucleus"}
    return arm | {"verdict": verdict, "reasons": ["because"], "unread": 0} | changes


def _summary(*arms: dict[str, Any], **changes: Any) -> dict[str, Any]:
    judged = {"verdict": "ok", "arms": list(arms)}
    rows = [{"failed": 0, "missing": 0}]
    return {"losslessness": judged, "parity": {"metric": "rouge2", "comparisons": []}, "rows": rows} | changes


def _comparison(verdict: str | None) -> dict[str, Any]:
    return {"arm": "sps-k4-nucleus", "verdict": verdict, "difference": -0.02}


def test_a_sound_run_passes_every_gate() -> None:
    parity = {
        "metric": "rouge2",
        "comparisons": [_comparison(v) for v in ("equivalent", "inconclusive", None)],
    }
    summary = _summary(_arm("ok"), _arm("no evidence", "ars"), parity=parity)
    assert [gate_failures(summary, gate) for gate in GATES] == [[] for _ in GATES]


@pytest.mark.parametrize(
    ("gate", "summary", "sentence"),
    [
        ("lossless", _summary(_arm("alarm")), "SpS (K=4), nucleus: alarm (because)"),
        ("lossless", _summary(_arm("alarm", "ars")), "ArS, nucleus: alarm (because)"),
        ("lossless", _summary(_arm("no evidence")), "SpS (K=4), nucleus: no evidence (because)"),
        ("lossless", _summary(_arm("no evidence", "ars")), "ArS, nucleus: no evidence (because)"),
        ("lossless", _summary(losslessness=None), "no evidence of losslessness"),
        (
            "lossless",
            _summary(_arm("ok", unread=2)),
            "SpS (K=4), nucleus: outputs that could not be read again: 2",
        ),
        ("parity", _summary(), "no SpS arm is beside ArS"),
        (
            "parity",
            _summary(parity={"metric": "rouge2", "comparisons": [_comparison("different")]}),
            "sps-k4-nucleus: rouge2 differs by -0.0200",
        ),
        ("parity", _summary(parity=None), "nothing was scored"),
        ("untrusted", _summary(contention={"reasons": ["others computed"]}), "others computed"),
        (
            "untrusted",
            _summary(conditions=[{"contention": {"reasons": ["others computed"]}}] * 2),
            "others computed",
        ),
        ("incomplete", _summary(rows=[{"failed": 1, "missing": 2}]), "1 sequences failed and 2 are missing"),
    ],
)
def test_each_reason_fails_its_gate(gate: str, summary: dict[str, Any], sentence: str) -> None:
    (failure,) = gate_failures(summary, gate)
    assert sentence in str(failure)

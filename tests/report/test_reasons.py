from __future__ import annotations

from typing import Any

from simulated_sweep import sweep
from summarised import summarise

from spsbench.report import judgement

MODELS = {
    "target": {"parameters": 25_000_000, "dtype": "float32"},
    "draft": {"parameters": 2_500_000, "dtype": "float32"},
}


def _summary(**info: Any) -> dict[str, Any]:
    return summarise(*sweep(), {"models": MODELS, **info})


def test_why_the_fastest_arm_is_not_faster() -> None:
    summary = _summary()
    (why,) = judgement.sentences(summary)
    fastest = max((row for row in summary["rows"] if row["speedup"]), key=lambda row: row["speedup"]["ratio"])
    bound = fastest["k"] + 1
    assert why.startswith(f"SpS (K={fastest['k']}), nucleus: upper bound {bound}x (K+1); largest loss: ")
    assert "Break-even, each alone: alpha " in why


def test_a_weak_baseline_is_named_in_the_headline() -> None:
    assert judgement.weak(_summary(bandwidth_bytes_per_s=40e9)["ceiling"]) == [
        "Weak baseline: ArS reaches 24% of its bandwidth floor."
    ]
    assert judgement.weak(_summary(bandwidth_bytes_per_s=12e9)["ceiling"]) == []
    assert judgement.weak(None) == []


def test_the_regime_is_named_where_the_weights_fit_in_the_cache() -> None:
    assert "overhead of calls" in judgement.sentences(_summary(cache_bytes=1 << 30))[-1]
    assert judgement.sentences({}) == []

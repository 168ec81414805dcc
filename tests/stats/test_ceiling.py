from __future__ import annotations

from typing import Any

import pytest
from support.simulated_sweep import sweep
from support.summarised import summarise

from spsbench.stats.predict.roofline import weak_baseline

MODELS = {
    "target": {"parameters": 25_000_000, "dtype": "float32"},
    "draft": {"parameters": 2_500_000, "dtype": "float32"},
}


def _ceiling(**info: Any) -> dict[str, Any]:
    samples, loops = sweep(ks=(0, 4), alpha=0.9)
    found: dict[str, Any] = summarise(samples, loops, {"models": MODELS, **info})["ceiling"]
    return found


def test_floors_are_bytes_over_bandwidth() -> None:
    found = _ceiling(bandwidth_bytes_per_s=20e9, cache_bytes=1 << 20)
    ars, sps = found["arms"]
    assert found["regime"] == "bandwidth-bound"
    assert ars["floor_ms_per_token"] == pytest.approx(5.0)
    assert ars["share"] == pytest.approx(5.0 / ars["ms_per_token"])
    per_loop = 5.0 * (1 + 4 * 0.1)
    tokens = per_loop / sps["floor_ms_per_token"]
    assert 3.5 < tokens < 4.3  # tokens per loop at alpha .9, less what is cut off
    assert sps["best_speedup"] == pytest.approx(tokens / 1.4)
    assert found["weak_baseline"] is True  # an ArS step takes 10.5 ms
    assert weak_baseline(found) == pytest.approx(5.0 / ars["ms_per_token"])


def test_sps_may_beat_the_ceiling_of_ars() -> None:
    found = _ceiling(bandwidth_bytes_per_s=12e9)
    assert found["weak_baseline"] is False
    assert weak_baseline(found) is None
    ars, sps = found["arms"]
    assert ars["beats_ars_ceiling"] is False
    assert sps["beats_ars_ceiling"] is True
    assert sps["ms_per_token"] < sps["ars_floor_ms_per_token"] < ars["ms_per_token"]


def test_weights_in_the_cache_have_no_ceiling() -> None:
    found = _ceiling(bandwidth_bytes_per_s=20e9, cache_bytes=1 << 30)
    assert found["regime"] == "dispatch-bound"
    assert found["weak_baseline"] is None
    assert [arm["floor_ms_per_token"] for arm in found["arms"]] == [None, None]
    assert found["arms"][1]["best_speedup"] is not None


def test_without_a_bandwidth_the_regime_is_unknown_and_without_sizes_nothing_is_said() -> None:
    assert _ceiling()["regime"] == "unknown"
    samples, loops = sweep(ks=(0, 4))
    assert summarise(samples, loops, {})["ceiling"] is None


def test_what_the_models_tell_of_themselves_goes_first() -> None:
    models = {
        "target": {**MODELS["target"], "forward_bytes": 80e6, "kv_bytes_per_token": 1e6},
        "draft": {"parameters": 5, "dtype": "int3"},
    }
    found = _ceiling(models=models, bandwidth_bytes_per_s=20e9)
    ars, sps = found["arms"]
    context = 20 + (40 - 1) / 2
    assert ars["floor_ms_per_token"] == pytest.approx((80 + context) / 20)
    assert sps["floor_ms_per_token"] is None  # nobody knows how wide an int3 is

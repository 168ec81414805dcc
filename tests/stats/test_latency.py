from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from support.simulated_sweep import sweep
from support.summarised import summarise

from spsbench.stats.latency import tails


def _loops(emitted: list[list[int]], seconds: list[list[float]]) -> pd.DataFrame:
    frames = [
        pd.DataFrame({"example_id": f"e{i}", "loop": np.arange(len(one)), "emitted": one, "loop_s": s})
        for i, (one, s) in enumerate(zip(emitted, seconds, strict=True))
    ]
    return pd.concat(frames, ignore_index=True)


def test_time_until_n_ends_with_the_loop_that_brings_it() -> None:
    loops = _loops([[3, 3, 2], [1, 1], [4, 4]], [[1.0, 2.0, 4.0], [1.0, 1.0], [1.5, 9.0]])
    samples = pd.DataFrame(
        {
            "example_id": ["e0", "e1", "e2"],
            "new_tokens": [8, 2, 8],
            "decode_s": [7.0, 2.0, 10.5],
            "finish_reason": "stop",
            "error": None,
        }
    )
    row = {"arm": "a", "method": "sps", "sampling": "n", "engine": "eager", "k": 3, "share_slower": None}
    found = tails({"a": samples}, {"a": loops}, [row])
    assert (found["n_tokens"], found["fixed_length"]) == (2, False)
    arm = found["arms"][0]
    assert arm["sequences_with_n"] == 3
    assert arm["until_n_s"]["p50"] == 1.5  # of 1.0, 2.0 and 1.5
    assert arm["sequence_s"]["p50"] == 7.0
    mean_loop = np.mean([1.0, 2.0, 4.0, 1.0, 1.0, 1.5, 9.0])
    assert arm["paper_clock_s"]["mean"] == pytest.approx(mean_loop * 4 / 3)  # 1, 2 and 1 loops
    assert arm["p99_rests_on_few"] is True


def test_variance_grows_with_k_and_ars_has_none_by_the_papers_clock() -> None:
    found = summarise(*sweep(ks=(0, 1, 7), prompts=80), {})["tails"]
    ars, one, seven = found["arms"]
    assert found["fixed_length"] is True
    assert found["n_tokens"] == 40
    assert ars["paper_clock_s"]["sd"] == pytest.approx(0.0, abs=1e-12)
    assert one["paper_clock_s"]["sd"] < seven["paper_clock_s"]["sd"]
    assert seven["until_n_s"]["p50"] < seven["until_n_s"]["p90"] < seven["until_n_s"]["p99"]
    assert ars["share_slower"] is None
    assert 0 <= one["share_slower"] <= 1


def test_unseen_loops_leave_the_whole_sequence() -> None:
    samples, loops = sweep(ks=(0, 4))
    arm = summarise(samples, loops.iloc[:0], {})["tails"]["arms"][1]
    assert arm["sequence_s"]["p99"] > 0
    assert (arm["until_n_s"], arm["paper_clock_s"], arm["sequences_with_n"]) == (None, None, 0)


def test_a_loop_is_filed_where_it_begins() -> None:
    samples, loops = sweep(ks=(0, 4), prompts=5, tokens=40)
    sps = loops["arm"] == "sps-k4-nucleus"
    begins = loops.groupby(["arm", "example_id"])["emitted"].cumsum() - loops["emitted"]
    # From the 16th token on the draft is of no use.
    late = sps & (begins >= 16)
    loops.loc[late, ["accepted", "beta_sum"]] = 0, 0.0
    loops.loc[late, "tested"] = 1
    (arm,) = summarise(samples, loops, {})["positions"]
    bins = {part["start"]: part for part in arm["bins"]}
    assert list(bins) == [0, 8, 16, 32]
    assert sum(part["loops"] for part in bins.values()) == sps.sum()
    assert bins[16]["loops"] == np.sum(sps & (begins >= 16) & (begins < 32))
    assert bins[0]["alpha_beta"] == pytest.approx(0.7)
    assert (bins[16]["alpha_tested"], bins[16]["mean_acceptance_length"]) == (0.0, 1.0)
    assert (bins[32]["end"], bins[0]["end"]) == (64, 8)


def test_nothing_seen_is_nothing_said() -> None:
    samples, loops = sweep(ks=(0,))
    assert summarise(samples, loops, {})["positions"] is None
    samples, loops = sweep(ks=(0, 2))
    assert summarise(samples, loops.iloc[:0], {})["positions"] is None

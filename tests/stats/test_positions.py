from __future__ import annotations

import numpy as np
import pytest
from simulated_sweep import sweep
from summarised import summarise


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

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from simulated_sweep import TARGET_S, sweep
from summarised import summarise

from spsbench.report.judgement import sentences


def test_no_fixed_k_does_better_than_the_bound() -> None:
    summary = summarise(*sweep(ks=(0, 1, 2, 3, 4, 6), prompts=40), {})
    (found,) = summary["hindsight"]
    assert found["gain_bound"] > 1.1
    assert found["max_k"] == 6
    measured = min(row["ms_per_token"] for row in summary["rows"])
    assert found["oracle_ms_per_token"] < measured
    assert found["fixed_ms_per_token"] == pytest.approx(measured, rel=0.05)
    assert found["gain_bound"] == pytest.approx(found["fixed_ms_per_token"] / found["oracle_ms_per_token"])
    # Leviathan et al. 2022: with a free draft the oracle gains at most 1 / (1 - alpha).
    assert found["gain_bound"] < 1 / (1 - 0.7)
    assert found["censored"] == pytest.approx(0.7**6, abs=0.05)


def test_where_no_draft_pays_the_oracle_is_ars() -> None:
    (found,) = summarise(*sweep(ks=(0, 1, 2, 4), alpha=0.2, draft_s=3 * TARGET_S), {})["hindsight"]
    assert found["best_k"] == 0
    assert found["gain_bound"] == pytest.approx(1.0)


def test_a_policy_is_held_against_the_fastest_fixed_k() -> None:
    samples, loops = sweep(ks=(0, 1, 2, 4))
    fixed = summarise(samples, loops, {})
    best = min((row for row in fixed["rows"] if row["k"]), key=lambda row: row["ms_per_token"])
    taken = {"arm": "sps-k4-nucleus+entropy", "method": "sps", "k": 4, "policy": "entropy"}
    adaptive = samples[samples["arm"] == best["arm"]].assign(**taken)
    adaptive["decode_s"] *= 0.8
    both = pd.concat([samples.assign(policy=None), adaptive], ignore_index=True)
    summary = summarise(both, loops, {})
    assert summary["verdict"][0]["policy"] == "entropy"
    assert fixed["verdict"][0]["k"] == best["k"]
    assert any(line.startswith("nucleus: entropy took") for line in sentences(summary))
    (found,) = summary["hindsight"]
    (entry,) = found.pop("adaptive")
    assert found == {name: value for name, value in fixed["hindsight"][0].items() if name != "adaptive"}
    assert (entry["policy"], entry["fixed_k"]) == ("entropy", best["k"])
    assert entry["gain"]["ratio"] == pytest.approx(1 / 0.8)
    assert entry["ms_per_token"] == pytest.approx(0.8 * best["ms_per_token"])


def test_one_k_or_times_without_a_line_give_no_bound() -> None:
    assert summarise(*sweep(ks=(0, 4)), {})["hindsight"] is None
    samples, loops = sweep(ks=(1, 2, 4))
    samples["decode_s"] = np.where(samples["k"] == 4, 1e-3, samples["decode_s"])
    assert summarise(samples, loops, {})["hindsight"] is None

"""The surface of speedups over batch size and K, from times that were made up."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from spsbench.base.records import Arm, Interval, SamplingParams
from spsbench.report.results import surface_sentences
from spsbench.stats.summary import summarise
from spsbench.stats.surface import pays_up_to, surfaces
from spsbench.store.summary_types import Summary

NUCLEUS = SamplingParams(top_p=0.8)
WAVES, PROMPTS = 12, 8
FOURS = "sps-k2-b4-nucleus"


def arms(batches: tuple[int, ...], ks: tuple[int, ...] = (0, 2)) -> list[Arm]:
    return [
        Arm("sps" if k else "ars", k, "eager", "nucleus", NUCLEUS, batch=batch)
        for batch in batches
        for k in ks
    ]


def samples(speedups: dict[int, float], spread: float = 0.02) -> pd.DataFrame:
    """A tenth of a second a token at B = 1, less in proportion at others; a wave is slow for all its rows."""
    generator = np.random.default_rng(3)
    rows = []
    for arm in arms(tuple(speedups)):
        for wave in range(WAVES):
            slow = 1 + spread * generator.standard_normal()
            for number in range(PROMPTS):
                seconds = slow * 10 * 0.1 / arm.batch / (speedups[arm.batch] if arm.k else 1.0)
                rows.append(
                    {
                        "example_id": f"{wave}-{number}",
                        "sample_index": 0,
                        "arm": arm.name,
                        "prompt_tokens": 3,
                        "new_tokens": 10,
                        "finish_reason": "length",
                        "prefill_s": 0.0,
                        "decode_s": seconds,
                        "latency_s": arm.batch * seconds if arm.batch > 1 else np.nan,
                        "scores": {},
                        "losslessness": None,
                        "token_ids": [1] * 10,
                        "error": None,
                        "wave": f"{wave}-0",
                        "condition": 0,
                        "conditions": None,
                        "category": None,
                    }
                )
    return pd.DataFrame(rows)


def summary_of(speedups: dict[int, float], **given: float) -> Summary:
    info = {"arms": [{"arm": arm.name, **arm.axes()} for arm in arms(tuple(speedups))]}
    return summarise(samples(speedups, **given), pd.DataFrame(), info)


def _over(sums: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return np.asarray(sums[0] / sums[1])


def width(summary: Summary) -> float:
    """Of the interval of SpS at B = 4."""
    (found,) = (row["speedup"] for row in summary["rows"] if row["arm"] == FOURS)
    assert found is not None
    assert found["low"] is not None
    assert found["high"] is not None
    return found["high"] - found["low"]


def test_a_cell_has_what_was_planted() -> None:
    (surface,) = summary_of({1: 1.5, 4: 0.9}, spread=0.0)["surfaces"]
    cells = {(cell["batch"], cell["k"]): cell for cell in surface["cells"]}
    assert cells[4, 0]["tokens_per_s"] == pytest.approx(40)
    assert cells[4, 0]["latency_ms_per_token"] == pytest.approx(100)
    assert cells[1, 0]["latency_ms_per_token"] == pytest.approx(100)
    assert (cells[4, 0]["compared"], cells[4, 0]["as_alone"]) == (WAVES * PROMPTS, WAVES * PROMPTS)
    found = cells[4, 2]["speedup"]
    assert found["ratio"] == pytest.approx(0.9)
    assert cells[4, 2]["tokens_per_s"] == pytest.approx(36)
    assert cells[4, 0]["speedup"] is None


def test_where_it_stops_paying_lies_between_the_sizes_and_in_its_interval() -> None:
    (surface,) = summary_of({1: 1.5, 4: 1.2, 16: 0.8})["surfaces"]
    (line,) = surface["pays_up_to"]
    ends = [4, line["low"], line["batch"], line["high"], 16]
    assert ends == sorted(ends, key=float)
    assert len(set(ends)) == 5
    (never,) = summary_of({1: 0.9, 4: 0.8})["surfaces"][0]["pays_up_to"]
    assert (never["batch"], never["beyond"]) == (0, False)
    (always,) = summary_of({1: 1.9, 4: 1.8})["surfaces"][0]["pays_up_to"]
    assert (always["batch"], always["beyond"]) == (None, True)


def test_intervals_are_over_waves_and_not_over_rows() -> None:
    """All rows of a wave are slow together: an interval over prompts would be a third as wide."""
    found = summary_of({1: 1.5, 4: 1.2}, spread=0.1)
    (row,) = (row for row in found["rows"] if row["arm"] == FOURS)
    assert (row["paired_waves"], row["paired_prompts"]) == (WAVES, WAVES * PROMPTS)
    wide = width(found)
    alone = samples({1: 1.5, 4: 1.2}, spread=0.1).drop(columns="wave")
    info = {"arms": [{"arm": arm.name, **arm.axes()} for arm in arms((1, 4))]}
    by_prompt = next(
        row for row in summarise(alone, pd.DataFrame(), info)["rows"] if row["k"] and row["batch"] == 4
    )
    narrow = by_prompt["speedup"]["high"] - by_prompt["speedup"]["low"]  # type: ignore[index,operator]
    assert wide > 2 * narrow


def test_outputs_that_differ_from_batch_size_1_are_counted() -> None:
    told = samples({1: 1.5, 4: 1.2})
    of_fours = told.index[told["arm"] == FOURS]
    told.at[of_fours[5], "token_ids"] = [1] * 9 + [2]
    info = {"arms": [{"arm": arm.name, **arm.axes()} for arm in arms((1, 4))]}
    (surface,) = summarise(told, pd.DataFrame(), info)["surfaces"]
    assert {cell["arm"]: cell["as_alone"] for cell in surface["cells"]}[FOURS] == WAVES * PROMPTS - 1
    assert any(text.startswith("1 of 192 outputs") for text in surface_sentences(surface))


def test_one_wave_has_no_interval() -> None:
    found = pays_up_to([1, 8], [np.ones((2, 1)) * [[2.0], [1.0]], np.ones((2, 1))], _over, together=True)
    assert found == Interval(8.0, None, None)


def test_untrusted_times_have_no_interval() -> None:
    told = samples({1: 1.5, 4: 0.8})
    told["conditions"] = [{"waited_s": 50.0}] * len(told)
    info = {"arms": [{"arm": arm.name, **arm.axes()} for arm in arms((1, 4))]}
    (surface,) = summarise(told, pd.DataFrame(), info)["surfaces"]
    (line,) = surface["pays_up_to"]
    assert line["batch"] is not None
    assert (line["low"], line["high"]) == (None, None)


def test_one_batch_size_has_no_surface() -> None:
    assert "surfaces" not in summary_of({4: 1.2})
    assert surfaces({}, []) == []


def test_sizes_that_had_their_own_waves_are_drawn_apart() -> None:
    data = [np.array([[2.0, 2.2, 1.8], [1.0, 1.0, 1.0]]), np.array([[0.5, 0.6], [1.0, 1.0]])]
    found = pays_up_to([1, 8], data, _over, together=False)
    assert 1 < found.low <= found.estimate <= found.high < 8

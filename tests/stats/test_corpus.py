"""Figures of a corpus: one per arm from sums, with intervals and parity of that figure; data are made up."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.summarised import summarise

from spsbench.base.arrays import Floats
from spsbench.report import judgement, results
from spsbench.report.messages.parity import ParityVerdict
from spsbench.report.tables import IN_FULL
from spsbench.stats.bootstrap import pooled_interval, pseudo_values, ratio_of_sums
from spsbench.stats.corpus import by_prompt, corpus_metrics, outputs_sha256, score_table
from spsbench.stats.parity import advantage, compare, metrics, parity
from spsbench.tasks.metrics.builtin import BLEU, bleu_counts, bleu_of_sums
from spsbench.tasks.metrics.kind import MetricKind, Sums, scores

Make = Callable[..., pd.DataFrame]

WORDS = np.array(["the", "old", "tower", "fell", "and", "three", "men", "ran", "to", "it", "in", "rain"])
INFO = {"metrics": {"bleu": BLEU.record()}, "headline_metric": "bleu"}


def texts(rng: np.random.Generator, n: int, errors: float) -> tuple[list[str], list[str]]:
    """Outputs and references; each word of an output is wrong with this probability."""
    references = [rng.choice(WORDS, size=rng.integers(6, 14)) for _ in range(n)]
    wrong = [np.where(rng.random(len(words)) < errors, "x", words) for words in references]
    return [" ".join(words) for words in wrong], [" ".join(words) for words in references]


def counts(n: int, errors: float, seed: int) -> list[list[float]]:
    outputs, references = texts(np.random.default_rng(seed), n, errors)
    return bleu_counts([""] * n, outputs, references)


def table(rows: list[list[float]] | Floats) -> pd.DataFrame:
    return pd.DataFrame(rows, index=[f"e{i}" for i in range(len(rows))], columns=list(BLEU.columns))


def scored(make: Make, method: str, rows: list[list[float]], **more: Any) -> pd.DataFrame:
    scores = [dict(zip(BLEU.columns, row, strict=True)) for row in rows]
    return make([1.0] * len(rows), [9] * len(rows), method=method, scores=scores, **more)


def figure(rows: list[list[float]]) -> float:
    return float(bleu_of_sums(np.array(rows).sum(axis=0)[:, None])[0])


def test_an_arms_figure_is_that_of_the_sums(make_samples: Make) -> None:
    rows = counts(12, 0.2, 1)
    found = metrics(scored(make_samples, "ars", rows), corpus_metrics(INFO))
    assert found == {"bleu": figure(rows)}
    mean = np.mean([figure([row]) for row in rows])
    assert abs(found["bleu"] - mean) > 0.1


@pytest.fixture(scope="module")
def pool() -> Floats:
    """Counts of 1,500 sentences, from which corpora are drawn: [sentences, columns]."""
    return np.array(counts(1_500, 0.2, 2))


def test_the_interval_covers_what_it_says(pool: Floats) -> None:
    """100 corpora of 60 sentences against the figure of all: 95% are due, 4 standard errors off is 86%."""
    rng = np.random.default_rng(3)
    truth = _fast_bleu(pool.sum(axis=0)[:, None])[0]
    covered = 0
    for _ in range(100):
        low, high = pooled_interval([*rng.choice(pool, 60).T], _fast_bleu)
        assert low is not None
        assert high is not None
        covered += low <= truth <= high
    assert covered >= 86


def _fast_bleu(sums: Floats) -> Floats:
    """BLEU without smoothing, all columns at once: where every order has a match it is sacrebleu's."""
    precisions = np.log(sums[2:6] / sums[6:10]).mean(axis=0)
    return np.asarray(100 * np.exp(precisions + np.minimum(0, 1 - sums[1] / sums[0])))


def test_the_fast_figure_of_these_tests_is_bleu() -> None:
    sums = np.array(counts(60, 0.2, 3)).sum(axis=0)[:, None]
    assert _fast_bleu(sums) == pytest.approx(bleu_of_sums(sums))


def test_pseudo_values_of_a_mean_are_the_values() -> None:
    values = np.random.default_rng(4).normal(size=20)
    assert pseudo_values([values, np.ones(20)], ratio_of_sums) == pytest.approx(values)


def test_their_spread_is_that_of_the_figure(pool: Floats) -> None:
    """The jackknife's standard error against the spread of 300 corpora: within a sixth."""
    rng = np.random.default_rng(5)
    corpora = [rng.choice(pool, 50) for _ in range(300)]
    spread = np.std([_fast_bleu(rows.sum(axis=0)[:, None])[0] for rows in corpora], ddof=1)
    errors = [pseudo_values([*rows.T], _fast_bleu).std(ddof=1) / np.sqrt(50) for rows in corpora]
    assert np.mean(errors) == pytest.approx(spread, rel=1 / 6)


def test_for_a_mean_both_ways_agree() -> None:
    """A mean written as sums has the same verdict, difference, interval and power as the mean."""
    rng = np.random.default_rng(6)
    index = [f"e{i}" for i in range(40)]
    ars = pd.Series(rng.normal(0.3, 0.1, 40), index=index)
    sps, draft = ars + rng.normal(0.0, 0.05, 40), ars - 0.2

    def summed(scores: pd.Series[float]) -> pd.DataFrame:
        return pd.DataFrame({"sum": scores, "count": 1.0})

    mean = compare(ars, sps, draft)
    sums = compare(summed(ars), summed(sps), summed(draft), value=ratio_of_sums)
    # The bias correction counts resamples below the estimate, which floating point moves by one.
    assert {key: sums[key] for key in sums if type(sums[key]) is not float} == {
        key: mean[key] for key in mean if type(mean[key]) is not float
    }
    for key, number in mean.items():
        if type(number) is float:
            assert sums[key] == pytest.approx(number, rel=1e-2, abs=1e-4), key
    ratios = advantage(ars, draft), advantage(summed(ars), summed(draft), ratio_of_sums)
    assert ratios[0]["ratio"] == pytest.approx(ratios[1]["ratio"])
    assert ratios[0]["low"] == pytest.approx(ratios[1]["low"], rel=1e-2)


def test_the_verdicts_on_bleu() -> None:
    ars = table(counts(150, 0.2, 7))
    worse, draft = table(counts(150, 0.3, 7)), table(counts(150, 0.5, 7))
    different = compare(ars, worse, draft, 0.5, value=bleu_of_sums)
    assert different["verdict"] == "different"
    assert different["difference"] == pytest.approx(different["arm_mean"] - different["baseline_mean"])
    assert different["low"] < different["difference"] < different["high"] < 0
    gap = different["baseline_mean"] - figure(draft.to_numpy().tolist())
    assert different["margin"] == pytest.approx(0.05 * gap)
    assert different["margin_rule"] == "5% of the target-draft gap"
    other = compare(ars, table(counts(150, 0.2, 8)), draft, 0.5, value=bleu_of_sums)
    assert other["verdict"] == "inconclusive"
    assert other["prompts_needed"] > 150
    assert f"within ±{other['margin']:.2f} (5% of the target-draft gap)" in str(ParityVerdict(other, 2))
    wide = compare(ars, worse, None, 60.0, value=bleu_of_sums)
    assert (wide["verdict"], wide["margin_rule"]) == ("equivalent", "60 absolute: no draft-only arm")
    same = compare(ars, ars, None, 0.5, value=bleu_of_sums)
    assert (same["verdict"], same["reason"]) == (None, "the same score whichever prompt is left out")


def test_a_lossless_sampler_is_seldom_called_different_on_bleu(pool: Floats) -> None:
    """40 runs without a difference: 2 by the interval's odds; over 8 has odds of 1 in 5,000."""
    rng = np.random.default_rng(9)
    pairs = [[table(rng.choice(pool, 40)) for _ in range(2)] for _ in range(40)]
    verdicts = [compare(*pair, None, 0.5, value=_fast_bleu)["verdict"] for pair in pairs]
    assert verdicts.count("different") <= 8


def _summary(make: Make, info: dict[str, Any], **kinds: Any) -> Any:
    rows = {"ars": counts(30, 0.2, 10), "sps": counts(30, 0.25, 10), "draft": counts(30, 0.5, 10)}
    more = {"ars": {}, "sps": {"k": 4}, "draft": {}}
    samples = pd.concat(
        [scored(make, method, part, **more[method]) for method, part in rows.items()], ignore_index=True
    )
    return summarise(samples, pd.DataFrame(), info), rows


def test_a_run_shows_bleu_with_its_interval_and_points(make_samples: Make) -> None:
    summary, rows = _summary(make_samples, INFO)
    json.dumps(summary, allow_nan=False)
    shown = {row["arm"]: row for row in summary["rows"]}
    ars = shown["ars-nucleus"]
    assert ars["metrics"] == {"bleu": figure(rows["ars"])}
    ends = ars["metric_intervals"]["bleu"]
    assert ends["low"] < ars["metrics"]["bleu"] < ends["high"]
    compared = IN_FULL.table(results.arm_columns(summary["rows"], "bleu"), summary["rows"])
    assert "BLEU [95%]" in "".join(compared.as_markdown())
    written = f"{ars['metrics']['bleu']:.2f} \\[{ends['low']:.2f}, {ends['high']:.2f}\\]"
    assert written in "".join(compared.as_markdown())
    (comparison,) = summary["parity"]["comparisons"]
    assert (summary["parity"]["metric"], comparison["baseline_mean"]) == ("bleu", ars["metrics"]["bleu"])
    (sentence,) = judgement.parity(summary)
    assert f"{comparison['difference']:+.2f} [{comparison['low']:+.2f}, " in sentence
    (target,) = summary["parity"]["target_over_draft"]
    assert target["ratio"] == pytest.approx(figure(rows["ars"]) / figure(rows["draft"]))
    assert target["low"] < target["ratio"] < target["high"]
    assert summary["metric_signatures"]["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|")


def test_no_end_of_an_interval_is_beyond_what_bleu_can_be(make_samples: Make) -> None:
    rows = [*counts(1, 0.0, 1), *counts(2, 0.6, 2)]
    low, high = pooled_interval([*np.array(rows).T], bleu_of_sums)
    assert low is not None
    assert high is not None
    assert low < 0
    assert high > 100
    samples = scored(make_samples, "ars", rows)
    ends = corpus_metrics(INFO)["bleu"].interval(samples, score_table(samples), "ars-nucleus")
    assert ends == {"low": 0.0, "high": 100.0}


def test_repeats_of_a_prompt_are_summed_as_one_unit(make_samples: Make) -> None:
    rows = counts(20, 0.2, 11)
    twice = scored(make_samples, "ars", rows, samples_per_prompt=2)
    assert metrics(twice, corpus_metrics(INFO)) == {"bleu": figure(rows)}
    arms = {
        "ars-nucleus": twice,
        "sps-k4-nucleus": scored(make_samples, "sps", rows[::-1], samples_per_prompt=2),
    }
    named = [{"arm": arm, "method": arm.partition("-")[0], "sampling": "nucleus"} for arm in arms]
    found = parity(arms, named, "bleu", INFO["metrics"], corpus_metrics(INFO))
    assert found["comparisons"][0]["prompts"] == 10


LATIN = MetricKind("latin", "Mine.", sums=Sums(BLEU.sums.columns, bleu_counts, _fast_bleu))  # type: ignore[union-attr]


def test_a_files_metric_needs_its_task_at_hand(make_samples: Make) -> None:
    rows = counts(10, 0.2, 12)
    named = {
        column.replace("bleu", "latin"): value for column, value in zip(BLEU.columns, rows[0], strict=True)
    }
    samples = make_samples([1.0], [9], scores=[named])
    info = {"metrics": {"latin": LATIN.record()}}
    assert metrics(samples, corpus_metrics(info, [LATIN]))["latin"] == pytest.approx(figure(rows[:1]))
    assert metrics(samples, corpus_metrics(info)) == {"latin": None}
    summary = summarise(samples, pd.DataFrame(), info)
    assert any("latin has no figure here" in text for text in summary["warnings"])
    assert summary["parity"]["comparisons"] == []


def test_the_example_of_the_documentation_counts_equal_words() -> None:
    page = (Path(__file__).parents[2] / "docs/extending.md").read_text(encoding="utf-8")
    code = next(
        block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "same_words" in block
    )
    names: dict[str, Any] = {"MetricKind": MetricKind, "Sums": Sums}
    exec(code, names)
    (row, *_), kind = scores([names["KIND"]], [""], ["a b c"], ["a x c d"]), names["KIND"]
    assert row == {"same_words:equal": 2.0, "same_words:all": 4.0}
    assert kind.sums.value(np.array([[2.0], [4.0]])).tolist() == [0.5]


def test_a_name_never_has_a_file_run_by_a_report(tmp_path: Path) -> None:
    path = tmp_path / "theirs.py"
    path.write_text("raise SystemExit('executed')\n")
    info = {"metrics": {f"{path}:KIND": {"columns": ["n"], "higher_is_better": True, "margin": 1}}}
    (metric,) = corpus_metrics(info).values()
    assert metric.value is None


def test_columns_that_are_another_version_s_are_not_summed() -> None:
    told = BLEU.record() | {"columns": ["bleu:sys_len"]}
    assert corpus_metrics({"metrics": {"bleu": told}})["bleu"].value is None


JUDGED = {"judged": {"columns": ["judged:outputs"], "higher_is_better": True, "margin": 0.2}}
ARMS = (("ars", 0), ("sps", 4), ("draft", 0))


def judged(make: Make, prompts: dict[str, int]) -> pd.DataFrame:
    """Outputs of the first so many prompts of each method's arm, marked for a figure of all of them."""
    marked = [{"judged:outputs": 1.0}]
    parts = [
        make(
            [1.0] * prompts[method],
            [9] * prompts[method],
            method=method,
            k=k,
            scores=marked * prompts[method],
        )
        for method, k in ARMS
    ]
    return pd.concat(parts, ignore_index=True)


def recorded(figures: dict[str, list[tuple[int, float]]]) -> dict[str, Any]:
    """Figures of an arm's first so many prompts, as a run records them."""
    by_arm = {
        arm: {
            outputs_sha256((f"e{i}", 0) for i in range(prompts)): {
                "figure": figure,
                "low": None,
                "high": None,
            }
            for prompts, figure in found
        }
        for arm, found in figures.items()
    }
    return {"metrics": JUDGED, "corpus_figures": {"judged": by_arm}}


def test_a_figure_of_all_outputs_has_no_verdict(make_samples: Make) -> None:
    info = recorded({"ars-nucleus": [(3, 0.5)], "sps-k4-nucleus": [(3, 0.75)], "draft-nucleus": [(3, 0.25)]})
    samples = judged(make_samples, {"ars": 3, "sps": 3, "draft": 3})
    summary = summarise(samples, pd.DataFrame(), info)
    assert [row["metrics"]["judged"] for row in summary["rows"]] == [0.5, 0.75, 0.25]
    (comparison,) = summary["parity"]["comparisons"]
    assert (comparison["difference"], comparison["low"], comparison["verdict"]) == (0.25, None, None)
    assert comparison["margin"] == pytest.approx(0.05 * 0.25)
    assert "which has no interval" in judgement.parity(summary)[0]
    assert summary["parity"]["target_over_draft"][0]["ratio"] == 2.0
    assert "2.00x" in judgement.advantages(summary)[0]
    assert not any("has no figure" in text for text in summary["warnings"])


def test_a_figure_of_other_outputs_than_an_arm_has_now_is_not_its_figure(make_samples: Make) -> None:
    """A run was scored, then continued: what was recorded covers two prompts of three."""
    info = recorded({"ars-nucleus": [(3, 0.5)], "sps-k4-nucleus": [(2, 0.75)], "draft-nucleus": [(2, 0.25)]})
    samples = judged(make_samples, {"ars": 3, "sps": 3, "draft": 3})
    summary = summarise(samples, pd.DataFrame(), info)
    assert [row["metrics"]["judged"] for row in summary["rows"]] == [0.5, None, None]
    (warning,) = [text for text in summary["warnings"] if "has no figure here" in text]
    assert "of sps-k4-nucleus, draft-nucleus: " in warning
    (comparison,) = summary["parity"]["comparisons"]
    assert (comparison["baseline_mean"], comparison["difference"]) == (0.5, None)
    assert "no figure of these outputs is recorded" in judgement.parity(summary)[0]


def test_arms_are_compared_on_the_prompts_that_all_have(make_samples: Make) -> None:
    info = recorded(
        {
            "ars-nucleus": [(3, 0.5), (2, 0.6)],
            "sps-k4-nucleus": [(2, 0.7)],
            "draft-nucleus": [(3, 0.25), (2, 0.3)],
        }
    )
    samples = judged(make_samples, {"ars": 3, "sps": 2, "draft": 3})
    summary = summarise(samples, pd.DataFrame(), info)
    assert [row["metrics"]["judged"] for row in summary["rows"]] == [0.5, 0.7, 0.25]
    (comparison,) = summary["parity"]["comparisons"]
    assert comparison["prompts"] == 2
    assert comparison["difference"] == pytest.approx(0.1)
    assert comparison["margin"] == pytest.approx(0.05 * 0.3)
    assert summary["parity"]["target_over_draft"][0]["ratio"] == pytest.approx(2.0)


def test_which_outputs_a_figure_covers_depends_on_no_order() -> None:
    keys = [("a", 0), ("a", 1), ("b", 0)]
    assert outputs_sha256(keys) == outputs_sha256(keys[::-1])
    assert len({outputs_sha256(keys[:n]) for n in range(4)}) == 4


def test_what_is_recorded_of_a_files_metric_is_what_its_function_gives(make_samples: Make) -> None:
    """Figures, intervals and the pair on common prompts, without the function."""
    names = [column.replace("bleu", "latin") for column in BLEU.columns]
    samples = {
        method: make_samples(
            [1.0] * n,
            [9] * n,
            method=method,
            k=k,
            scores=[dict(zip(names, row, strict=True)) for row in counts(n, errors, 13)],
        )
        for (method, k), n, errors in zip(ARMS, (30, 28, 30), (0.2, 0.25, 0.5), strict=True)
    }
    by_arm = {str(own["arm"].iloc[0]): own for own in samples.values()}
    info = {"metrics": {"latin": LATIN.record()}, "headline_metric": "latin"}
    known = corpus_metrics(info, [LATIN])["latin"]
    told = info | {"corpus_figures": {"latin": json.loads(json.dumps(known.computed(by_arm)))}}
    later = corpus_metrics(told)["latin"]
    assert later.value is None
    for arm, own in by_arm.items():
        table = score_table(own)
        assert later.figure(own, table, arm) == known.figure(own, table)
        assert later.interval(own, table, arm) == known.interval(own, table, arm)
    assert later.on_common(by_arm).prompts == 28
    summary = summarise(pd.concat(samples.values(), ignore_index=True), pd.DataFrame(), told)
    (found,) = summary["parity"]["comparisons"]
    units = (by_prompt(own, known.counted(score_table(own))) for own in by_arm.values())
    of_sums = compare(*units, value=known.value)
    assert found["difference"] == pytest.approx(of_sums["difference"])
    assert "takes the metric's file" in found["reason"]

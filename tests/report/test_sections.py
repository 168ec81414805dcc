"""The sections on why, theory, ceiling, K, hindsight and tails."""

from __future__ import annotations

import re
from typing import Any

import pytest
from rich.console import Console
from support.simulated_sweep import sweep
from support.summarised import summarise

from spsbench.report.sections import render, screen

MODELS = {
    "target": {"parameters": 25_000_000, "dtype": "float32"},
    "draft": {"parameters": 2_500_000, "dtype": "float32"},
}
INFO: dict[str, Any] = {
    "task": "xsum",
    "models": MODELS,
    "bandwidth_bytes_per_s": 40e9,
    "cache_bytes": 1 << 20,
}


@pytest.fixture(scope="module")
def summary() -> dict[str, Any]:
    return summarise(*sweep(), INFO)


def _sections(summary: dict[str, Any]) -> dict[str, str]:
    parts = re.split(r"^##+ (.+)$", render(summary, {}), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _screen(summary: dict[str, Any]) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(screen(summary))
    return captured.get()


def test_the_product_can_be_followed_down_the_table(summary: dict[str, Any]) -> None:
    text = _sections(summary)["Why this fast, and not faster"]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if re.search(r"\| x\d", line)]
    assert len(rows) == 6
    running = [float(row[2].rstrip("x")) for row in rows]
    fastest = max(row["speedup"]["ratio"] for row in summary["rows"] if row["speedup"])
    assert running[-1] == pytest.approx(fastest, abs=0.005)
    assert sum("(binding)" in row[0] for row in rows) == 1
    assert all(len(row) == 5 and row[4].endswith(".") for row in rows)
    assert "SpS (K=1)" in _sections(summary)["Factors of every arm"]


def test_the_share_of_the_optimum_stands_in_the_table_and_says_which_rule_accepts_more() -> None:
    samples, loops = sweep(ks=(0, 4))
    for optimum, rule, leaves in (
        (1.25, None, True),
        (1.25, "block", False),
        (1.25, "one-hot", False),
        (0.8, None, False),
    ):
        known = loops.assign(optimal_accepted=optimum * loops["accepted"] + loops["loop"] % 2 / 100)
        summary = summarise(samples, known, INFO)
        for row in summary["rows"]:
            row["rule"] = rule or row["rule"]
        share = summary["rows"][-1]["share_of_optimum"]
        shown = f"{share['ratio']:.1%} [{100 * share['low']:.1f}, {100 * share['high']:.1f}]"
        sections = _sections(summary)
        assert shown in sections["Acceptance"].replace("\\", "")
        assert shown in " ".join(_screen(summary).split())
        assert (f"{shown} of the tokens" in sections["Why this fast, and not faster"]) == leaves
        assert ("on average: `--rule block`." in sections["Why this fast, and not faster"]) == leaves


@pytest.mark.parametrize(
    ("optimum", "lossless", "reason"),
    [
        (0.8, True, "Above 100% of the optimum by chance: what is accepted is drawn"),
        (0.8, False, "SpS (K=4, lossy), nucleus: above 100% of the optimum, by a lossy rule."),
        (1.0, True, None),
        (1.25, True, None),
    ],
)
def test_a_share_above_the_optimum_is_explained(optimum: float, lossless: bool, reason: str | None) -> None:
    samples, loops = sweep(ks=(0, 4))
    summary = summarise(samples, loops.assign(optimal_accepted=optimum * loops["accepted"]), INFO)
    for row in summary["rows"]:
        row["lossless"] = lossless
    summary["losslessness"] = None
    shown = " ".join(_screen(summary).split())
    assert ("above 100% of the optimum" in shown.lower()) is (reason is not None)
    assert (reason or "") in shown


def test_the_mean_nodes_of_a_loop_stand_in_the_table_where_there_is_a_tree(summary: dict[str, Any]) -> None:
    samples, loops = sweep(ks=(0, 4))
    found = summarise(
        samples, loops.assign(nodes=(7.0 + loops["loop"] % 2).where(loops["drafted"] > 0)), INFO
    )
    nodes = [row.get("nodes_per_loop") for row in found["rows"]]
    assert nodes[0] is None
    assert 7 < nodes[1] < 8
    assert f"nodes/loop {nodes[1]:.1f}" in " ".join(_screen(found).split())
    assert "nodes/loop" in _sections(found)["Acceptance"]
    assert all("nodes_per_loop" not in row for row in summary["rows"])
    assert "nodes/loop" not in render(summary, {})


def test_a_share_that_could_be_no_other_is_not_shown() -> None:
    """Of greedy drafts every lossless rule accepts the same."""
    samples, loops = sweep(ks=(0, 4))
    summary = summarise(samples, loops.assign(optimal_accepted=loops["accepted"]), INFO)
    assert summary["rows"][-1]["share_of_optimum"] == {"ratio": 1.0, "low": None, "high": None}
    assert "optimum" not in render(summary, {})
    assert "optimum" not in _screen(summary)


def test_without_it_nothing_is_said_of_it(summary: dict[str, Any]) -> None:
    assert all(row["share_of_optimum"] is None for row in summary["rows"])
    assert "optimum" not in render(summary, {})
    assert "optimum" not in _screen(summary)


def test_the_theory_shows_a_dash_where_alpha_was_not_measured(summary: dict[str, Any]) -> None:
    text = _sections(summary)["Theory"]
    assert re.search(
        r"\| SpS \(K=4\) \| nucleus \| - \| 0\.\d+ \| \d\.\d\d \| - \| - \| - \| \d\.\d\d \| -0\.", text
    )
    assert "a loop takes" in text


def test_the_lines_of_several_drafters_are_told_apart() -> None:
    summary = summarise(*sweep(ks=(0, 1, 2, 4)), INFO)
    (line,) = summary["prediction"]["samplings"]
    falling = line["loop"] | {"intercept_ms": 12.0, "slope_ms": -0.25}
    summary["prediction"]["samplings"] = [line, line | {"drafter": "lookup", "loop": falling}]
    text = _sections(summary)["Theory"]
    assert "nucleus, lookup: a loop takes 12 - 0.25 K ms" in text


def test_a_line_through_two_k_is_no_fit() -> None:
    """It goes through both whatever was measured: what a loop takes at each is said."""
    summary = summarise(*sweep(ks=(0, 2, 4)), INFO)
    (line,) = summary["prediction"]["samplings"]
    took = {row["k"]: row["ms_per_token"] * row["tokens_per_loop"] for row in summary["rows"]}
    text = _sections(summary)["Theory"]
    assert f"nucleus: a loop takes {took[2]:.3g} ms at K=2 and {took[4]:.3g} ms at K=4, drafting" in text
    assert line["loop"]["r_squared"] is None


def test_a_residual_has_its_cause_beside_it() -> None:
    summary = summarise(*sweep(ks=(0, 4)), INFO)
    summary["prediction"]["arms"][0] |= {"alpha": 0.9, "predicted": 2.9, "residual": -1.0}
    (row,) = re.findall(r"\| SpS \(K=4\) \|.*", _sections(summary)["Theory"])
    assert re.search(r"\| -1\.00 \| alpha of the positions .*\(x0\.\d\d\) \|", row)


def test_the_ceiling_names_floors_and_a_weak_baseline(summary: dict[str, Any]) -> None:
    sections = _sections(summary)
    assert "Weak baseline: ArS reaches 24% of its bandwidth floor." in sections["The ceiling"]
    assert "| ArS | nucleus | 10.5 | 2.50 | 24% | 1.00 |" in sections["The ceiling"]
    assert "**Weak baseline" in render(summary, {}).partition("## ")[0]


def test_the_other_regimes_are_told_in_a_sentence() -> None:
    cached = summarise(*sweep(ks=(0, 4)), INFO | {"cache_bytes": 1 << 30})
    assert "dispatch-bound" in _sections(cached)["The ceiling"]
    assert "hypervisor" not in _sections(cached)["The ceiling"]
    unknown = summarise(*sweep(ks=(0, 4)), INFO | {"bandwidth_bytes_per_s": None})
    assert "was not measured" in _sections(unknown)["The ceiling"]


def test_a_cache_that_a_hypervisor_reports_is_a_condition_and_not_a_fact() -> None:
    cached = INFO | {"cache_bytes": 1 << 30, "cache_shared": True}
    text = _sections(summarise(*sweep(ks=(0, 4)), cached))["The ceiling"]
    assert "reported last-level cache (1,024 MiB). A hypervisor reports it" in text
    assert "If it is available in full, the regime is dispatch-bound" in text


def test_k_hindsight_tails_and_positions_have_their_tables(summary: dict[str, Any]) -> None:
    sections = _sections(summary)
    assert "| K=1 | 1." in sections["Which K"]
    assert "at most" in sections["Hindsight, a bound"]
    assert "until 40 tokens" in sections["Tails"]
    assert "| arm | sampling | 0-7 | 8-15 | 16-31 | 32-63 |" in sections["Along the output"]


def test_a_run_without_loops_or_speedup_has_none_of_them() -> None:
    samples, loops = sweep(ks=(4,))
    titles = _sections(summarise(samples, loops.iloc[:0], {}))
    assert "Tails" in titles
    for title in ("Why this fast, and not faster", "Theory", "The ceiling", "Which K", "Hindsight, a bound"):
        assert title not in titles


def test_the_terminal_has_the_sentences(summary: dict[str, Any]) -> None:
    console = Console(width=80, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(screen(summary))
    text = " ".join(capture.get().split())
    for wanted in ("Weak baseline:", "Use K=4: ", "Break-even, each alone: alpha"):
        assert wanted in text

"""The first screen, as text at 80 columns."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from rich.console import Console

from spsbench.report.sections import show

Make = Callable[..., dict[str, Any]]


def _screen(summary: dict[str, Any], width: int = 80) -> str:
    file = io.StringIO()
    show(summary, Console(file=file, width=width, no_color=True))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def test_the_screen_of_a_plain_run(make_summary: Make, make_verdict: Make) -> None:
    assert _screen(make_summary(verdict=[make_verdict()])) == (
        "\n"
        " xsum-mini (synthetic), pair mini, 50 prompts, nucleus\n"
        "\n"
        " SpS (K=4) pays: 1.92x [1.85, 1.99] per token, 1.71x [1.65, 1.78] end to end.\n"
        " Largest loss: drafting.\n"
        "\n"
        " arm        ROUGE-2  ms/token  speedup [95%]       end to end  tokens/loop\n"
        " ─────────────────────────────────────────────────────────────────────────\n"
        " ArS          0.112      14.1  1x                          1x         1.00\n"
        " SpS (K=4)    0.114      7.52  1.92x [1.85, 1.99]       1.71x         3.21\n"
        "\n"
        " mean_acceptance_length 3.362  alpha_beta 0.803  draft_acceptance_rate 0.590\n"
    )


def test_nothing_is_cut_off_at_80_columns(
    make_row: Make, make_summary: Make, failed_row: dict[str, Any]
) -> None:
    rows = [
        make_row("ars", 0),
        make_row(),
        make_row("draft", 0),
        failed_row,
        make_row("ars", 0, "greedy", engine="graphed"),
        make_row("sps", 11, "greedy", engine="hf_assisted"),
    ]
    text = _screen(make_summary(*rows))
    assert "…" not in text
    assert all(len(line) <= 80 for line in text.splitlines())
    for word in ("draft alone", "@hf_assisted", "greedy", "draft_acceptance_rate", "mean_acceptance_length"):
        assert word in text


def test_an_arm_that_failed_or_never_ran_says_so(
    make_row: Make, make_summary: Make, failed_row: dict[str, Any]
) -> None:
    text = _screen(make_summary(make_row("ars", 0), failed_row | {"speedup": None}))
    (line,) = [line for line in text.splitlines() if line.startswith(" SpS (K=11)")]
    assert line.split() == ["SpS", "(K=11)", "-", "failed", "-", "-", "-"]
    text = _screen(make_summary(make_row("ars", 0), failed_row | {"failed": 0}))
    assert "not run" in text


def test_no_baseline_and_no_rows(make_row: Make, make_summary: Make) -> None:
    alone = make_row(baseline=None, speedup=None)
    assert "ran" not in _screen(make_summary(alone)).split()
    empty = make_summary()
    empty["rows"] = []
    assert "Nothing was measured." in _screen(empty)


def test_warnings_come_last_and_whole(make_summary: Make) -> None:
    text = _screen(make_summary(warnings=["Only 5 prompts. Raise --limit.", "Second."]))
    assert text.endswith(" ! Only 5 prompts. Raise --limit.\n ! Second.\n")


def test_different_rules_are_named(make_row: Make, make_summary: Make) -> None:
    other = make_row(engine="hf_assisted", verification_rule="exact match with the target's sample")
    text = _screen(make_summary(make_row("ars", 0), make_row(), other))
    assert "SpS (K=4) @hf_assisted verifies by: exact match" in text
    assert "verifies by" not in _screen(make_summary())


def test_an_arm_whose_rule_depends_on_the_sampling_is_named_with_it(
    make_row: Make, make_summary: Make
) -> None:
    search = make_row(sampling="beam(2)", verification_rule="all 2 beams")
    text = _screen(make_summary(make_row("ars", 0), make_row(), search))
    assert "SpS (K=4), nucleus verifies by: " in text
    assert "SpS (K=4), beam(2) verifies by: all 2 beams" in text


def test_markup_and_control_characters_do_nothing(make_summary: Make) -> None:
    text = _screen(make_summary(task_label="[red]x[/]\x1b[2J", synthetic=False))
    assert "[red]x[/] [2J" in text
    assert "\x1b" not in text


def test_a_terminal_that_knows_only_ascii_is_served(make_summary: Make) -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    show(make_summary(warnings=["Careful."]), Console(file=file, width=80))
    file.flush()
    assert b"SpS (K=4)" in raw.getvalue()


def test_a_column_that_finds_no_room_is_named(make_summary: Make) -> None:
    text = _screen(make_summary(), width=66)
    assert "Too narrow for the column end to end: it is in report.md." in text
    assert "Too narrow" not in _screen(make_summary())
    assert "Too narrow" not in _screen(make_summary(), width=40)  # each row is a paragraph there


def test_every_pass_at_k_that_the_samples_give_is_shown(make_row: Make, make_summary: Make) -> None:
    rows = [
        make_row("ars", 0, metrics={"pass@1": 0.1, "pass@10": 0.31, "pass@100": None}),
        make_row(metrics={"pass@1": 0.12, "pass@10": 0.302, "pass@100": None}),
    ]
    text = _screen(make_summary(*rows))
    assert " pass@10: ArS 31.0%; SpS (K=4) 30.2%.\n" in text
    assert "pass@100" not in text


def test_a_fixed_length_and_an_arm_alone_are_said(make_row: Make, make_summary: Make) -> None:
    text = _screen(make_summary(make_row("ars", 0)) | {"fixed_length": 64})
    assert "each output 64 tokens, EOS ignored" in " ".join(text.split())
    assert "No arm speculates: ArS (K = 0) is timed alone, against nothing." in text
    assert "No arm speculates" not in _screen(make_summary())

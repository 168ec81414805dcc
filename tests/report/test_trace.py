"""The model of the trace, and its picture on a terminal."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console
from support.synthetic_run import WORDS, measured

from spsbench.report.trace import Token, TraceWriter, shown_text, traces, visible


def test_the_fastest_speculative_arm_of_each_sampling_is_shown() -> None:
    found = traces(measured())
    best = {}
    for series in measured().series:
        best[max(series.speculative, key=lambda row: row["speedup"]["ratio"])["arm"]] = None
    assert [(trace.example_id, trace.arm) for trace in found] == [
        (example, arm) for example in ("doc-0", "doc-1") for arm in best
    ]
    assert all(trace.emitted == 24 for trace in found)


def test_the_emitted_tokens_are_the_output() -> None:
    trace = traces(measured())[0]
    own = measured().samples.query("arm == @trace.arm and example_id == 'doc-0'").iloc[0]
    shown = [t.text for loop in trace.loops for t in loop.tokens if t.fate != "rejected"]
    texts = dict(enumerate(WORDS))
    assert shown == [visible(texts[i]) or f"\u27e8{i}\u27e9" for i in own["token_ids"]]


def test_each_loop_has_its_own_time_and_at_most_one_rejection() -> None:
    trace = traces(measured())[0]
    loops = measured().loops_by_arm[trace.arm].query("example_id == 'doc-0'")
    assert [loop.ms for loop in trace.loops] == pytest.approx((1e3 * loops["loop_s"]).tolist())
    for loop in trace.loops:
        fates = [token.fate for token in loop.tokens]
        assert fates.count("rejected") == fates.count("correction") or loop is trace.loops[-1]
        assert fates.index("rejected") + 1 == len(fates) - 1 if "correction" in fates else True


def test_without_the_loops_or_the_texts_it_is_shown_all_the_same() -> None:
    bare = dataclasses.replace(measured(), run={}, loops=measured().loops.iloc[:0])
    trace = traces(bare)[0]
    assert {loop.ms for loop in trace.loops} == {None}
    assert all(token.text.startswith("\u27e8") for loop in trace.loops for token in loop.tokens)
    assert traces(dataclasses.replace(measured(), tokens=measured().tokens.iloc[:0])) == ()


def test_control_characters_become_signs() -> None:
    assert visible("a\x1b[31m\x07\x7f\u202e\u200bb") == "a\u241b[31m\u2407\u2421\ufffd\ufffdb"
    assert visible("x\n\t") == "x\u21b5\n\u2409"
    assert visible("naïve 東京") == "naïve 東京"
    assert shown_text(7, {"7": ""}) == shown_text(7, {}) == "\u27e87\u27e9"


def _written(tokens: list[Token], width: int = 20, **console: object) -> str:
    file = io.StringIO()
    writer = TraceWriter(Console(file=file, width=width, **console))  # type: ignore[arg-type]
    writer.write(tokens)
    writer.end()
    return file.getvalue()


def _token(text: str, fate: str = "accepted") -> Token:
    return Token(text, fate, 0.5, 0.5, 0.1)


def test_a_terminal_without_colour_gets_marks() -> None:
    tokens = [_token("a"), _token(" b", "rejected"), _token(" c", "correction"), _token("d\u21b5\n", "bonus")]
    assert _written(tokens, 80) == "a[- b-][+ c+][*d\u21b5*]\n"


def test_a_terminal_with_colour_gets_colour() -> None:
    tokens = [_token("a"), _token("b", "rejected"), _token("c", "correction")]
    text = _written(tokens, 80, force_terminal=True, color_system="standard")
    assert "\x1b[32ma" in text  # green
    assert "\x1b[9;31mb" in text  # red and struck
    assert "\x1b[4;34mc" in text  # blue and underlined
    assert "[-" not in text.replace("\x1b[", "")


def test_lines_break_between_tokens_and_are_never_too_wide() -> None:
    text = _written([_token(" harbour")] * 5 + [_token("東" * 15), _token("x" * 50)])
    assert text.splitlines()[:3] == [" harbour harbour", " harbour harbour", " harbour"]
    assert all(Console().width and len(line) + line.count("東") <= 20 for line in text.splitlines())
    assert text.replace("\n", "") == " harbour" * 5 + "東" * 15 + "x" * 50


def test_markup_in_a_token_is_text() -> None:
    assert _written([_token("[red]x[/red]")]) == "[red]x[/red]\n"

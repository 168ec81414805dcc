"""Untrusted text stays text."""

from __future__ import annotations

from spsbench.report.wording import escape, fence


def test_markup_of_every_kind_is_escaped() -> None:
    assert escape("a|b") == "a\\|b"
    assert escape("<script>&amp;") == "&lt;script&gt;&amp;amp;"
    assert escape("[x](http://y) *b* _i_ `c` ~~s~~ $m$") == (
        "\\[x\\](http://y) \\*b\\* \\_i\\_ \\`c\\` \\~\\~s\\~\\~ \\$m\\$"
    )


def test_an_underscore_within_a_word_stays_bare() -> None:
    assert escape("alpha_beta _x_ a__b") == "alpha_beta \\_x\\_ a\\_\\_b"


def test_a_cell_is_one_line_without_control_characters() -> None:
    assert escape("a\n| b\r\n\x1b[0m") == "a \\| b \\[0m"


def test_a_fence_outlasts_the_backticks_inside() -> None:
    assert fence("run ```` x") == ["`````", "run ```` x", "`````"]
    assert fence("run") == ["```", "run", "```"]

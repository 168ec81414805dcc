"""The figures in report.md."""

from __future__ import annotations

from support.synthetic_run import gallery

from spsbench.report.figures import Gallery
from spsbench.report.sections import figures


def test_each_figure_is_linked_with_its_caption() -> None:
    lines = figures({}, {"gallery": gallery()})
    assert lines[0] == "## Figures"
    assert "![Speedup against K](figures/speedup.svg)" in lines
    assert sum(line.startswith("![") for line in lines) == len(gallery().plates)
    assert any(line.startswith("Ratio of time per token") for line in lines)


def test_what_could_not_be_drawn_is_named() -> None:
    lines = figures({}, {"gallery": Gallery((), (("Figure 1", "one <lookahead>"),))})
    assert lines[-1] == "* Figure 1: one &lt;lookahead&gt;."


def test_a_report_without_figures_has_no_section() -> None:
    assert figures({}, {}) == []

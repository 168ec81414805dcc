"""Figures as files and inside a page."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from support.synthetic_run import gallery, measured

from spsbench.base.errors import SpsbenchError
from spsbench.report import figures
from spsbench.report.figures.style import (
    NARROW_IN,
    SINGLE_IN,
    SMALL_PT,
    WIDTH_IN,
    Plate,
    inline,
    printed,
    quiet,
    save,
    sheet,
    stacked,
)


def phases() -> Plate:
    with quiet():
        beside = figures.phases(measured())
        with stacked():
            return printed(beside, figures.phases(measured()))


@pytest.mark.thorough
def test_the_same_run_gives_the_same_bytes() -> None:
    again = phases()
    assert again == phases()
    (on_a_page,) = [plate for plate in gallery().plates if plate.name == again.name]
    assert again == replace(on_a_page, png=again.png, pdf=again.pdf)


def test_the_last_digits_of_the_layout_are_in_no_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """The solver adds up in an order that differs between processes."""
    plain = ConstrainedLayoutEngine.execute
    small = measured(ks=(0, 4), samplings=("nucleus",))

    def shifted(engine: ConstrainedLayoutEngine, figure: Figure) -> None:
        plain(engine, figure)
        for axes in figure.axes:
            x, y, width, height = axes.get_position().bounds
            axes.set_position((x + 1e-13, y, width, height - 1e-13))
            axes.set_in_layout(True)

    with quiet():
        first = printed(figures.phases(small), figures.phases(small))
        monkeypatch.setattr(ConstrainedLayoutEngine, "execute", shifted)
        assert printed(figures.phases(small), figures.phases(small)) == first


@pytest.mark.thorough
def test_every_format_is_written(tmp_path: Path) -> None:
    save(phases(), tmp_path, "figures")
    assert (tmp_path / "figures/loop_time.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figures/loop_time.svg").read_text().startswith("<?xml")
    assert (tmp_path / "figures/loop_time.pdf").read_bytes().startswith(b"%PDF")
    (tmp_path / "file").write_text("")
    with pytest.raises(SpsbenchError, match="no ordinary file"):
        save(gallery().plates[0], tmp_path, "file")


def test_colours_inside_a_page_are_the_pages() -> None:
    """Every colour has a variable, so that a dark page leaves no dark ink behind."""
    for plate in gallery().plates:
        bare = re.sub(r"var\(--[a-z0-9-]+, #[0-9A-F]{6}\)", "", inline(plate) + inline(plate, narrow=True))
        assert re.findall(r"(?:fill|stroke): (#[0-9a-f]+)", bare) == [], plate.name


def test_ids_inside_a_page_are_unique_and_found() -> None:
    page = "".join(
        inline(plate, prefix, narrow=narrow)
        for plate in gallery().plates
        for prefix in ("r0-", "r1-")
        for narrow in (False, True)
    )
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', page)) != set()
    for pair in re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', page):
        assert "".join(pair) in ids


def test_a_page_gets_an_element_and_no_document() -> None:
    text = inline(gallery().plates[0])
    assert text.startswith("<svg ")
    assert "<?xml" not in text
    assert "<metadata>" not in text


def test_a_pdf_names_no_date_and_no_version() -> None:
    pdf = phases().pdf
    assert pdf.startswith(b"%PDF")
    assert b"CreationDate" not in pdf
    assert b"Matplotlib" not in pdf


def widths(svg: str) -> float:
    """Of an SVG in points."""
    return float(re.findall(r'viewBox="0 0 ([0-9.]+) [0-9.]+"', svg)[0])


def test_all_figures_have_one_scale() -> None:
    """Text is as large in a figure of one panel as of three: their widths are in points of the same page."""
    single = printed(figures.against_k(measured(ks=(0, 2, 4), samplings=("nucleus",))))
    assert widths(single.svg) == pytest.approx(SINGLE_IN * 72)
    for plate in gallery().plates:
        width_in = SINGLE_IN if plate.name == "arms" else WIDTH_IN
        assert widths(plate.svg) == pytest.approx(width_in * 72)
        assert widths(plate.narrow_svg) == pytest.approx(NARROW_IN * 72)
        assert f'style="--points: {widths(plate.svg):g}"' in inline(plate)
        sizes = [float(size) for size in re.findall(r"font-size: ([0-9.]+)px", plate.svg + plate.narrow_svg)]
        sizes += [float(size) for size in re.findall(r"font: ([0-9.]+)px", plate.svg + plate.narrow_svg)]
        assert sizes
        assert min(sizes) >= SMALL_PT


def test_many_panels_wrap_into_rows_and_are_stacked_on_a_phone() -> None:
    with quiet():
        figure, panels = sheet(measured(), [1.0] * 7)
        assert len(panels) == len(figure.axes) == 7
        assert {
            (axes.get_subplotspec().rowspan[0], axes.get_subplotspec().colspan[0]) for axes in panels
        } == {(place // 3, place % 3) for place in range(7)}
        with stacked():
            narrow, below = sheet(measured(), [1.0] * 3)
    assert {axes.get_subplotspec().colspan[0] for axes in below} == {0}
    assert narrow.get_figheight() > narrow.get_figwidth() == NARROW_IN


def test_every_panel_says_what_it_shows_and_in_which_unit() -> None:
    with quiet(), stacked():
        drawn = (figures.lengths, figures.phases, figures.positions, figures.replayed, figures.tails)
        for draw in (figures.figure1, figures.against_k, *drawn):
            for axes in draw(measured()).figure.axes:
                assert axes.get_xlabel()
                assert axes.get_ylabel()


def test_acceptance_by_position_has_both_kinds_in_its_legend() -> None:
    with quiet():
        (legend,) = figures.positions(measured()).figure.legends
    assert [text.get_text() for text in legend.texts] == ["nucleus", "greedy", "joint", "conditional"]

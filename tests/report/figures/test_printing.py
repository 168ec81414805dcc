"""Figures as files and inside a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from synthetic_run import gallery, measured

from spsbench.errors import SpsbenchError
from spsbench.report.figures import phases
from spsbench.report.figures.style import inline, printed, quiet, save


def test_the_same_run_gives_the_same_bytes() -> None:
    with quiet():
        again = printed(phases.draw(measured()))
    (first,) = [plate for plate in gallery().plates if plate.name == again.name]
    assert again == first


def test_both_files_are_written(tmp_path: Path) -> None:
    save(gallery().plates[0], tmp_path / "figures")
    assert (tmp_path / "figures/figure1.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figures/figure1.svg").read_text().startswith("<?xml")
    (tmp_path / "file").write_text("")
    with pytest.raises(SpsbenchError, match="cannot be made"):
        save(gallery().plates[0], tmp_path / "file/figures")


def test_colours_inside_a_page_are_the_pages() -> None:
    """Every colour has a variable, so that a dark page leaves no dark ink behind."""
    for plate in gallery().plates:
        bare = re.sub(r"var\(--[a-z0-9-]+, #[0-9A-F]{6}\)", "", inline(plate))
        assert re.findall(r"(?:fill|stroke): (#[0-9a-f]+)", bare) == [], plate.name


def test_ids_inside_a_page_are_unique_and_found() -> None:
    page = "".join(inline(plate, prefix) for plate in gallery().plates for prefix in ("r0-", "r1-"))
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

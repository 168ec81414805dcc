"""The page on a screen and on a phone, light and dark, and on paper. Every check finds a planted fault."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.browsing import (
    PAPER_PX,
    needs_browser,
    off_paper,
    printed,
    seen_as,
    small_text,
    too_wide,
    violations,
)
from support.drawing import as_svg
from support.synthetic_run import gallery, measured, of_many_kinds

from spsbench.report.figures import Gallery, draw
from spsbench.report.html import page
from spsbench.report.measured import Measured

pytestmark = needs_browser

WIDTHS, SCHEMES = (1280, 390), ("light", "dark")
LONG = "a-name-without-any-place-to-break-it/" * 6


def sweep() -> str:
    return page([(measured(), gallery())])


def kinds() -> str:
    """Several drafters, engines and many lookaheads, with names and values as long as they come."""
    run = of_many_kinds()
    facts = {"identity": {"pair": {"target": {"name": LONG}}}, "environment": {"flags": LONG}}
    long = dataclasses.replace(run, name=LONG, run={**run.run, **facts, "command": f"spsbench run {LONG}"})
    with as_svg():
        return page([(long, draw(run, narrow=True))])


def several() -> str:
    other = dataclasses.replace(measured(ks=(0, 4), samplings=("nucleus",), seed=9), name="other")
    runs: list[Measured] = [measured(), other]
    return page([(run, Gallery((), ())) for run in runs])


PAGES: dict[str, Callable[[], str]] = {"sweep": sweep, "kinds": kinds, "several": several}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    paths = {}
    for name, make in PAGES.items():
        paths[name] = folder / f"{name}.html"
        paths[name].write_text(make(), encoding="utf-8")
    return paths


@pytest.fixture
def show(browser: Any, pages: dict[str, Path]) -> Callable[..., Any]:
    def show(name: str) -> Any:
        browser.get_log("browser")
        browser.get(pages[name].as_uri())
        return browser

    return show


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_nothing_sticks_out_is_too_small_or_fails(show: Callable[..., Any], name: str, width: int) -> None:
    browser = show(name)
    with seen_as(browser, width):
        assert too_wide(browser) == []
        assert small_text(browser) == []
        assert browser.get_log("browser") == []


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_has_nothing_to_object_to(show: Callable[..., Any], width: int, scheme: str) -> None:
    browser = show("sweep")
    with seen_as(browser, width, scheme=scheme):
        assert violations(browser) == []


@pytest.mark.parametrize("name", ["kinds", "several"])
def test_axe_has_nothing_to_object_to_on_other_pages(show: Callable[..., Any], name: str) -> None:
    browser = show(name)
    with seen_as(browser, 390):
        assert violations(browser) == []


@pytest.mark.parametrize("name", PAGES)
def test_paper_holds_every_table_and_figure(show: Callable[..., Any], name: str) -> None:
    browser = show(name)
    with seen_as(browser, PAPER_PX, scheme="dark", media="print"):
        assert off_paper(browser) == []
        assert small_text(browser) == []
        body = browser.find_element("css selector", "body")
        assert re.findall(r"\d+", body.value_of_css_property("background-color"))[:3] == ["255"] * 3
        for part in browser.find_elements("css selector", "figure"):
            assert part.value_of_css_property("break-inside") == "avoid"
        assert not any(
            part.is_displayed() for part in browser.find_elements("css selector", "figure .narrow")
        )
    assert printed(browser).startswith(b"%PDF")


PLANTED: dict[str, tuple[Callable[[Any], list[str]], str]] = {
    "too wide": (too_wide, "document.querySelector('h1').style.width = '5000px'"),
    "small": (small_text, "document.querySelector('h1').style.fontSize = '8px'"),
    "small in a figure": (
        small_text,
        "document.querySelectorAll('figure svg').forEach((node) => { node.style.width = '200px'; })",
    ),
    "axe: contrast": (violations, "document.querySelector('h1').style.color = '#ddd'"),
    "axe: name": (
        violations,
        "document.querySelectorAll('svg').forEach((node) => node.removeAttribute('aria-label'))",
    ),
    "paper": (off_paper, "document.querySelector('table').style.width = '900px'"),
    "paper, scrolled": (
        off_paper,
        "document.querySelectorAll('.scroll').forEach((node) => {"
        " node.style.overflow = 'auto'; node.style.width = '40px'; })",
    ),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(show: Callable[..., Any], fault: str) -> None:
    find, script = PLANTED[fault]
    browser = show("sweep")
    media = "print" if fault.startswith("paper") else "screen"
    with seen_as(browser, 700, media=media):
        browser.execute_script(script)
        assert find(browser)


def test_the_speedup_is_in_sight_on_a_phone_and_where_it_was_on_a_screen(show: Callable[..., Any]) -> None:
    browser = show("sweep")
    read = "return [...document.querySelector('table').tHead.rows[0].cells].map((cell) => cell.textContent)"
    with seen_as(browser, 1280):
        wide = browser.execute_script(read)
    with seen_as(browser, 390):
        table = browser.find_element("css selector", "table")
        titles = browser.execute_script(read)
        assert titles[1].startswith("speedup")
        assert sorted(titles) == sorted(wide)
        cell = table.find_elements("css selector", "tbody td:nth-child(2)")[1]
        assert "x [" in cell.text
        assert cell.rect["x"] + cell.rect["width"] <= 390
    with seen_as(browser, 1280):
        assert browser.execute_script(read) == wide
        browser.execute_script("phone.dispatchEvent(new Event('change'))")  # as browsers may without a change
        assert browser.execute_script(read) == wide
    assert not wide[1].startswith("speedup")


HINT = "return getComputedStyle(arguments[0], '::before').content"


def test_a_table_that_goes_on_says_so_and_is_reached_by_the_keyboard(show: Callable[..., Any]) -> None:
    browser = show("sweep")
    with seen_as(browser, 390):
        place = browser.find_element("css selector", ".scroll.more")
        assert "more columns" in browser.execute_script(HINT, place)
        assert place.get_attribute("tabindex") == "0"
    with seen_as(browser, 1280):
        place = browser.find_element("css selector", ".scroll")  # the table of results fits
        assert browser.execute_script(HINT, place) == "none"
        assert place.get_attribute("tabindex") is None


def test_text_of_all_figures_has_one_size(show: Callable[..., Any]) -> None:
    browser = show("sweep")
    scale = """
    return [...document.querySelectorAll("figure svg")].filter((svg) => svg.getClientRects().length)
      .map((svg) => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width)
    """
    for width, media in ((1280, "screen"), (900, "screen"), (390, "screen"), (PAPER_PX, "print")):
        with seen_as(browser, width, media=media):
            scales = browser.execute_script(scale)
            assert len(scales) == 8
            assert max(scales) - min(scales) < 0.01

"""The page in a real browser, without a network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.browsing import needs_browser
from support.synthetic_run import gallery, measured

from spsbench.report.html import page

pytestmark = needs_browser


@pytest.fixture
def shown(browser: Any, tmp_path: Path) -> Any:
    path = tmp_path / "report.html"
    path.write_text(page([(measured(), gallery())]), encoding="utf-8")
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(path.as_uri())
    return browser


def find(browser: Any, selector: str) -> Any:
    return browser.find_element("css selector", selector)


def test_nothing_is_asked_for_and_nothing_goes_wrong(shown: Any) -> None:
    messages = [json.loads(entry["message"])["message"] for entry in shown.get_log("performance")]
    asked = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    # The browser's own new page asks for things, too, and it draws icons from chrome:// in some versions.
    urls = [one["request"]["url"] for one in asked if one["documentURL"] == shown.current_url]
    assert [url for url in urls if not url.startswith(("data:", "chrome:"))] == [shown.current_url]
    assert shown.get_log("browser") == []


def until(browser: Any, is_so: Callable[[], bool]) -> None:
    """A browser on a busy machine draws late: ask again for a while before saying that it is not so."""
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(browser, timeout=20, poll_frequency=0.1).until(lambda _: is_so())


def point_at(browser: Any, element: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    # From nearby: a pointer that is already there enters nothing.
    ActionChains(browser).move_to_element_with_offset(element, 0, -40).move_to_element(element).perform()


def test_a_token_tells_what_stands_behind_it(shown: Any) -> None:
    token, tip = find(shown, ".trace .t.rejected"), find(shown, "#tip")

    def is_told() -> bool:
        point_at(shown, token)
        return bool(tip.is_displayed())

    assert not tip.is_displayed()
    shown.execute_script("arguments[0].scrollIntoView({block: 'center'})", token)
    until(shown, is_told)
    for name in ("fate", "target probability", "draft probability", "u", "loop", "loop took"):
        assert name in tip.text
    assert token.get_attribute("data-u") in tip.text
    assert "rejected" in tip.text
    point_at(shown, find(shown, "h2"))
    until(shown, lambda: not tip.is_displayed())


def test_the_arrow_keys_walk_through_the_text(shown: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    trace = find(shown, ".trace")
    trace.send_keys(Keys.ARROW_RIGHT)
    trace.send_keys(Keys.ARROW_RIGHT)
    second = trace.find_elements("css selector", ".t")[1]
    assert "at" in second.get_attribute("class").split()
    assert second.get_attribute("data-target") in find(shown, "#tip").text
    trace.send_keys(Keys.ESCAPE)
    assert not find(shown, "#tip").is_displayed()


def test_fates_can_be_told_apart(shown: Any) -> None:
    styles = {
        fate: find(shown, f".trace .t.{fate}")
        for fate in ("accepted", "rejected", "correction", "bonus")
        if shown.find_elements("css selector", f".trace .t.{fate}")
    }
    assert len({token.value_of_css_property("color") for token in styles.values()}) == 4
    assert "line-through" in styles["rejected"].value_of_css_property("text-decoration")


def test_a_script_in_a_document_is_text(shown: Any) -> None:
    assert "<script>alert(1)</script>" in find(shown, "#r0-trace").find_element("xpath", "..").get_attribute(
        "textContent"
    )
    assert len(shown.find_elements("css selector", "script")) == 1


def column(table: Any, place: int) -> list[str]:
    cells = table.find_elements("css selector", f"tbody td:nth-child({place})")
    return [cell.text for cell in cells]


UNCOVERED = """
const box = arguments[0].getBoundingClientRect();
const top = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
return arguments[0].contains(top);
"""


def press(shown: Any, button: Any) -> None:
    """Click once the page has come to rest with nothing above the button."""
    from selenium.webdriver.support.ui import WebDriverWait

    shown.execute_script("arguments[0].scrollIntoView({block: 'center', inline: 'center'})", button)
    WebDriverWait(shown, 10).until(lambda page: page.execute_script(UNCOVERED, button))
    button.click()


def test_a_table_is_sorted_by_a_click(shown: Any) -> None:
    table = find(shown, "table.sortable")
    heads = table.find_elements("css selector", "th")
    place = 1 + next(i for i, head in enumerate(heads) if head.text.startswith("ms/token"))
    values = [float(text) for text in column(table, place)]
    button = heads[place - 1].find_element("css selector", "button")
    press(shown, button)
    assert heads[place - 1].get_attribute("aria-sort") == "ascending"
    assert [float(text) for text in column(table, place)] == sorted(values)
    assert values != sorted(values)
    press(shown, button)
    assert [float(text) for text in column(table, place)] == sorted(values, reverse=True)
    press(shown, heads[0].find_element("css selector", "button"))
    arms = column(table, 1)
    assert arms == sorted(arms)
    assert heads[place - 1].get_attribute("aria-sort") is None


@pytest.mark.parametrize(("scheme", "is_dark"), [("light", False), ("dark", True)])
def test_both_colour_schemes(shown: Any, scheme: str, is_dark: bool) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    shown.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    try:
        back = _lightness(find(shown, "body").value_of_css_property("background-color"))
        ink = _lightness(find(shown, "body").value_of_css_property("color"))
        label = _lightness(find(shown, "figure svg text").value_of_css_property("fill"))
    finally:
        shown.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert (back < 80) is is_dark
    assert abs(back - ink) > 150
    assert abs(back - label) > 90  # the figures follow


def _lightness(color: str) -> float:
    numbers = color[color.index("(") + 1 : color.index(")")].split(",")
    return sum(float(part) for part in numbers[:3]) / 3


def test_a_narrow_screen_scrolls_tables_and_not_the_page(shown: Any) -> None:
    size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    shown.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        width = shown.execute_script("return document.documentElement.scrollWidth")
    finally:
        shown.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert width <= 400

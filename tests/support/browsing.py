"""A page in a real browser, without a network: sizes, colour schemes, paper, and what is wrong with it."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--window-size=1100,900"),
)

needs_browser = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="chromium and chromium-driver are not installed"
)

LEAST_PX = 9.0

_MM = 96 / 25.4
PAPER_PX, PAPER_ACROSS_PX = int((210 - 24) * _MM), int((297 - 24) * _MM)
"""Width of A4 between the margins of the page's style sheet, upright and across."""


@contextmanager
def opened(profile: Path) -> Iterator[Any]:
    """A browser that keeps its own log and that of its requests."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    try:
        yield driver
    finally:
        driver.quit()


@contextmanager
def seen_as(
    browser: Any, width: int, *, scheme: str = "light", media: str = "screen", height: int = 800
) -> Iterator[None]:
    """The page that is open, at this width in CSS pixels, in a colour scheme, on a screen or on paper."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    _settle(browser)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def _settle(browser: Any) -> None:
    """Until observers of sizes have run: two frames later."""
    browser.execute_async_script(
        "const done = arguments[0]; requestAnimationFrame(() => setTimeout(done, 50))"
    )


_TOO_WIDE = """
const width = document.documentElement.clientWidth, found = [];
if (document.scrollingElement.scrollWidth > width) found.push("the page");
const scrolls = (node) => {
  for (let at = node.parentElement; at && at !== document.body; at = at.parentElement)
    if (getComputedStyle(at).overflowX !== "visible" && at.getBoundingClientRect().right <= width + 1)
      return true;
  return false;
};
for (const node of document.body.querySelectorAll("*")) {
  if (node.ownerSVGElement || !node.getClientRects().length) continue;
  if (node.getBoundingClientRect().right > width + 1 && !scrolls(node))
    found.push(`${node.tagName.toLowerCase()}.${node.className.baseVal ?? node.className}`);
}
return found;
"""


def too_wide(browser: Any) -> list[str]:
    """Elements that stick out of the page at the right, but for what scrolls within its place."""
    return list(browser.execute_script(_TOO_WIDE))


_SMALL = """
const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode, parent = node.parentElement;
  if (!node.data.trim() || !parent.getClientRects().length || parent.closest("script, style")) continue;
  let size = parseFloat(getComputedStyle(parent).fontSize);
  if (parent.ownerSVGElement) {
    const matrix = parent.getScreenCTM();
    size *= Math.hypot(matrix.a, matrix.b);
  }
  if (size < arguments[0] - 0.01) found.push(`${size.toFixed(2)} px: ${node.data.trim().slice(0, 40)}`);
}
return found;
"""


def small_text(browser: Any) -> list[str]:
    """Texts that are smaller than ``LEAST_PX`` as they are drawn, within figures too."""
    return list(browser.execute_script(_SMALL, LEAST_PX))


_OFF_PAPER = """
return [...document.querySelectorAll("table, pre, figure svg")].filter((node) => {
  const paper = node.closest(".wide") && node.tagName === "TABLE" ? arguments[1] : arguments[0];
  const box = node.getBoundingClientRect();
  const clipped = node.parentElement.scrollWidth > node.parentElement.clientWidth + 1
    && getComputedStyle(node.parentElement).overflowX !== "visible";
  return box.width && (box.width > paper + 1 || clipped);
}).map((node) => `${node.tagName.toLowerCase()}: ${node.textContent.trim().slice(0, 40)}`);
"""


def off_paper(browser: Any) -> list[str]:
    """Tables, figures and code that A4 cuts off; to be asked with the medium ``print``."""
    return list(browser.execute_script(_OFF_PAPER, PAPER_PX, PAPER_ACROSS_PX))


_AXE = """
const done = arguments[0];
axe.run({exclude: ["svg > *"]}, {resultTypes: ["violations"]}).then(
  (found) => done(found.violations.map((one) => `${one.id}: ${one.nodes.map((n) => n.html.slice(0, 120))}`)),
  (error) => done([`axe failed: ${error}`]));
"""


def violations(browser: Any) -> list[str]:
    """What axe-core objects to, by rule. A figure is an image with a name: its parts are left out."""
    if browser.execute_script("return typeof axe === 'undefined'"):
        browser.execute_script((files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8"))
    browser.set_script_timeout(120)
    return list(browser.execute_async_script(_AXE))


def printed(browser: Any) -> bytes:
    """The page as a PDF, on the paper that it asks for."""
    asked = {"preferCSSPageSize": True, "printBackground": True}
    return base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", asked)["data"])

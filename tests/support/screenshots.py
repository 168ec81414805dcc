"""Pictures of a report page: ``python tests/support/screenshots.py report.html build/page``.

Writes ``page-1280.png``, which README shows as ``docs/images/report.png``, ``page-figures.png``,
``page-390.png``, ``page-390-figures.png`` and ``page-dark.png``, and ``page-print.png``, the first printed
page, where ``pdftoppm`` (poppler-utils) is.
"""

from __future__ import annotations

import base64
import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from support.browsing import opened, printed, seen_as

COLOURS, HEIGHT = 64, 1000
VIEWS: dict[str, tuple[int, str, str]] = {
    "1280": (1280, "light", "body"),
    "figures": (1280, "light", "h2[id$=figures]"),
    "390": (390, "light", "body"),
    "390-figures": (390, "light", "h2[id$=figures]"),
    "dark": (1280, "dark", "body"),
}
"""By name: width in CSS pixels, colour scheme, and the element that the picture begins with."""


def take(browser: Any, width: int, scheme: str, selector: str) -> bytes:
    """A PNG of the page from an element on, ``HEIGHT`` pixels high."""
    top = "return document.querySelector(arguments[0]).getBoundingClientRect().top + scrollY"
    with seen_as(browser, width, scheme=scheme, height=HEIGHT):
        clip = {"x": 0, "y": browser.execute_script(top, selector), "width": width, "height": HEIGHT}
        asked = {"format": "png", "captureBeyondViewport": True, "clip": {**clip, "scale": 1}}
        return base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", asked)["data"])


def keep(png: bytes, path: Path) -> None:
    """Write the picture with few colours, so that it is small."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def first_page(pdf: bytes) -> bytes:
    """The first page as a PNG."""
    command = ["pdftoppm", "-png", "-r", "80", "-singlefile", "-"]
    return subprocess.run(command, input=pdf, capture_output=True, check=True).stdout


def main(page: Path, prefix: str) -> None:
    """All views of a page."""
    with tempfile.TemporaryDirectory() as profile, opened(Path(profile)) as browser:
        for name, (width, scheme, selector) in VIEWS.items():
            browser.get(page.resolve().as_uri())
            keep(take(browser, width, scheme, selector), Path(f"{prefix}-{name}.png"))
        if shutil.which("pdftoppm"):
            keep(first_page(printed(browser)), Path(f"{prefix}-print.png"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

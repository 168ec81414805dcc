"""The section of report.md that shows the figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spsbench.report.figures import Gallery
from spsbench.report.wording import escape
from spsbench.summary_types import Summary

FOLDER = "figures"


def described(gallery: Gallery) -> dict[str, Any]:
    """What ``figures`` needs to know of a gallery, to be given to ``render`` within the run's record."""
    return {
        "figures": [
            {"name": plate.name, "title": plate.title, "caption": plate.caption} for plate in gallery.plates
        ],
        "figures_left_out": [list(pair) for pair in gallery.left_out],
    }


def figures(summary: Summary, run: Mapping[str, Any]) -> list[str]:
    """Each figure with its caption, and which could not be drawn; nothing where none was asked for."""
    drawn, left_out = run.get("figures") or [], run.get("figures_left_out") or []
    if not drawn and not left_out:
        return []
    lines = ["## Figures"]
    for plate in drawn:
        lines += ["", f"### {escape(plate['title'])}", ""]
        lines += [f"![{escape(plate['title'])}]({FOLDER}/{plate['name']}.svg)", "", escape(plate["caption"])]
    if left_out:
        lines += ["", "Not drawn:", ""]
        lines += [f"* {escape(title)}: {escape(reason)}." for title, reason in left_out]
    return lines

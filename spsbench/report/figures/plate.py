"""A figure with its words, and the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure as matplotlib knows it.

    Attributes:
        name: of its files, e.g. ``figure1``.
        title: a few words.
        caption: what one sees, with the caveats that belong to it.
        figure: ready to be printed.
    """

    name: str
    title: str
    caption: str
    figure: Figure


@dataclass(frozen=True, slots=True)
class Plate:
    """A printed figure: see ``Drawing``, with the bytes of its files."""

    name: str
    title: str
    caption: str
    png: bytes
    svg: str


class LeftOut(Exception):
    """A figure cannot be drawn from this run; the message is the reason, without a full stop."""

"""What one test of the sampler found."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict of one test, with what it rests on.

    Attributes:
        test: its name.
        passed: whether the sampler looks right to it.
        found: the decisive figure, in words.
        bounds: what a pass excludes, and how surely.
        numbers: every number behind it.
    """

    test: str
    passed: bool
    found: str
    bounds: str
    numbers: dict[str, float | int | str | None] = field(default_factory=dict)

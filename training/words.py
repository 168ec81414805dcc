"""Word lists written as running text."""

from __future__ import annotations


def words(text: str) -> list[str]:
    """The words of a text; keeps long lists on few lines."""
    return text.split()

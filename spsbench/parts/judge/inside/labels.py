"""What the judge calls how a program fared."""

from __future__ import annotations

PASSED = "passed"
TIMED_OUT = "timed out"
OUT_OF_MEMORY = "out of memory"
ENDED = "ended before the check did"

_FAILED = "failed: "
_MOST_CHARS = 500


def failed(type_name: str, message: str) -> str:
    """The label of a program that raised something, or whose answer a test found wrong."""
    return (f"{_FAILED}{type_name}: {message}" if message else f"{_FAILED}{type_name}")[:_MOST_CHARS]


def is_label(text: str) -> bool:
    """Whether a verdict can be called so."""
    plain = text in (PASSED, TIMED_OUT, OUT_OF_MEMORY, ENDED)
    return plain or (text.startswith(_FAILED) and len(text) <= _MOST_CHARS)

"""What the judge says of a program."""

from __future__ import annotations

from dataclasses import dataclass

PASSED = "passed"
TIMED_OUT = "timed out"
OUT_OF_MEMORY = "out of memory"
ENDED = "ended before the check did"

_MAX_RESULT_CHARS = 500


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a program passed its tests, and in a word why.

    ``result`` is ``passed``, ``timed out``, ``out of memory``, ``ended before the check did`` or
    ``failed: <Type>: <message>`` (at most 500 characters).
    """

    passed: bool
    result: str


def failed(type_name: str, message: str) -> str:
    """The label of a program that raised something, or whose answer a test found wrong."""
    text = f"failed: {type_name}: {message}" if message else f"failed: {type_name}"
    return text[:_MAX_RESULT_CHARS]

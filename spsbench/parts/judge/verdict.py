"""The judge's verdict on a program, and the secrets that keep it from being forged."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProgramVerdict:
    """Whether a program passed its tests, and in a word why.

    ``result`` is ``passed``, ``timed out``, ``out of memory``, ``ended before the check did`` or
    ``failed: <Type>: <message>`` (at most 500 characters). Behind ``timed out`` stands how much CPU time a
    program had that did not spend its own.
    """

    passed: bool
    result: str


@dataclass(frozen=True)
class Seeds:
    """What ``random`` is seeded with on either side.

    Some tests draw their inputs. With one seed on both sides a program that looks at no argument and
    draws the same numbers would pass; so would one that knows the tests' seed and seeds itself. Hence
    both come from a secret that never enters a sandbox, and neither reveals anything about the other.
    """

    tests: str
    program: str

    @classmethod
    def of(cls, secret: bytes, task_id: str) -> Seeds:
        """The seeds of a problem: the same for every program and attempt under one secret."""
        texts = (f"{side}\0{task_id}".encode("utf-8", "surrogatepass") for side in ("tests", "program"))
        return cls(*(hashlib.blake2b(text, key=secret, digest_size=16).hexdigest() for text in texts))

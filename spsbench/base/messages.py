"""Messages: what a person is told beside numbers, be it a warning, a verdict, a cause or a note."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from typing import dataclass_transform
else:  # a worker may run on Python 3.10, where typing has none

    def dataclass_transform(**_: object) -> Callable[[type], type]:
        return lambda kind: kind


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Message:
    """The facts of a sentence, a frozen dataclass; the sentence is the message's text.

    Code decides which message is true, and tests compare messages; their wording is edited in the
    ``messages.py`` of a room or part alone. An error is none: flag, value and remedy stand where it is
    raised.

    Attributes:
        sentence: with facts by their names in braces, formatted as ``str.format`` does; where facts decide
            about words, ``__str__`` is defined in its place.
    """

    sentence: ClassVar[str]

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        dataclass(frozen=True)(cls)

    def __getitem__(self, fact: str) -> object:
        """A fact by its name."""
        return getattr(self, fact)

    def __str__(self) -> str:
        return self.sentence.format_map(self)


def listed(names: Sequence[str], most: int = 4) -> str:
    """``a, b, c, d and 2 more``."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


class OtherLoad(Message):
    """CPUs that other processes use, of so many."""

    used: float
    cpus: int
    sentence = "Other processes use {used:.1f} of {cpus} CPUs now."


REFERENCE = "transformers' reference code"


class PackagesMissing(Message):
    """Without these packages reference code computes layers."""

    packages: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{REFERENCE} computes layers that {' and '.join(self.packages)} would compute faster, so that "
            f"times are not those of a served model: pip install {' '.join(self.packages)}."
        )


class TokensReadAgain(Message):
    """Why states of a model's layers are not kept."""

    role: str
    reason: str
    sentence = "The {role} reads accepted tokens again after a rejection (replay): {reason}."


class FewerLayersCompiled(Message):
    """Why not all layers of a model are compiled."""

    compiled: int
    layers: int
    role: str
    reason: str
    sentence = "{compiled} of {layers} layers of the {role} are compiled: {reason}."


RAPL_STANDS_STILL = "RAPL's counters do not move"
NVML_STANDS_STILL = "NVML's counter does not move"


class RaplUnreadable(Message):
    """Why the counters of processors cannot be read."""

    problem: OSError | ValueError

    def __str__(self) -> str:
        if isinstance(self.problem, PermissionError):
            return f"RAPL's counters may be read by root alone: {self.problem.filename}"
        return f"RAPL's counters cannot be read: {self.problem}"

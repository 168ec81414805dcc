"""Messages: what a person is told beside numbers, be it a warning, a verdict, a cause or a note."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


class Message(ABC):
    """The facts of a sentence; the sentence is the message's text.

    A message is a frozen dataclass in the ``messages.py`` of its room or part. Code decides which message is
    true, and tests compare messages; their wording is edited in that file alone. An error is none: flag,
    value and remedy stand where it is raised.
    """

    @abstractmethod
    def __str__(self) -> str:
        """The sentence, as the screen and every report have it."""


@dataclass(frozen=True, slots=True)
class OtherLoad(Message):
    """CPUs that other processes use, of so many."""

    used: float
    cpus: int

    def __str__(self) -> str:
        return f"Other processes use {self.used:.1f} of {self.cpus} CPUs now."


REFERENCE = "transformers' reference code"


@dataclass(frozen=True, slots=True)
class PackagesMissing(Message):
    """Without these packages reference code computes layers."""

    packages: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{REFERENCE} computes layers that {' and '.join(self.packages)} would compute faster, so that "
            f"times are not those of a served model: pip install {' '.join(self.packages)}."
        )


@dataclass(frozen=True, slots=True)
class TokensReadAgain(Message):
    """Why states of a model's layers are not kept."""

    role: str
    reason: str

    def __str__(self) -> str:
        return f"The {self.role} reads accepted tokens again after a rejection (replay): {self.reason}."


@dataclass(frozen=True, slots=True)
class FewerLayersCompiled(Message):
    """Why not all layers of a model are compiled."""

    compiled: int
    layers: int
    role: str
    reason: str

    def __str__(self) -> str:
        return f"{self.compiled} of {self.layers} layers of the {self.role} are compiled: {self.reason}."


RAPL_STANDS_STILL = "RAPL's counters do not move"
NVML_STANDS_STILL = "NVML's counter does not move"


@dataclass(frozen=True, slots=True)
class RaplUnreadable(Message):
    """Why the counters of processors cannot be read."""

    problem: OSError | ValueError

    def __str__(self) -> str:
        if isinstance(self.problem, PermissionError):
            return f"RAPL's counters may be read by root alone: {self.problem.filename}"
        return f"RAPL's counters cannot be read: {self.problem}"

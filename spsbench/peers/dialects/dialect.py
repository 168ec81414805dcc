"""What one kind of server is asked, and how its answers are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from spsbench.peers.peer import PeerError
from spsbench.peers.protocol import LARGEST, Answer, Ask, Described, Sampling, shortened


@dataclass(frozen=True, slots=True)
class Heard:
    """What one event of a stream says. None wherever it does not."""

    text: bool
    tokens: int | None = None
    added: int | None = None
    drafted: int | None = None
    accepted: int | None = None


@dataclass(frozen=True, slots=True)
class Counters:
    """Names in ``/metrics`` of what a server counts over all of its requests."""

    written: str
    drafted: str
    accepted: str


class Dialect(Protocol):
    """One kind of server, for one model that it serves."""

    @property
    def described(self) -> Described:
        """What it is and runs with."""
        ...

    @property
    def path(self) -> str:
        """Of generation."""
        ...

    @property
    def counters(self) -> Counters | None:
        """What ``/metrics`` counts; None where it is not known."""
        ...

    def body(self, ask: Ask, *, stream: bool) -> dict[str, Any]:
        """The request; everything that would bend the distribution is set, and off."""
        ...

    def answer(self, found: dict[str, Any], ask: Ask) -> Answer:
        """The answer in a response."""
        ...

    def heard(self, event: dict[str, Any]) -> Heard:
        """What an event of a stream says."""
        ...


def sampler_fields(sampling: Sampling) -> dict[str, float]:
    """Of a request, as vLLM and SGLang name them: greedy is temperature 0, and everything else is off."""
    drawn = Sampling(temperature=0.0) if sampling.greedy else sampling
    return {
        "temperature": drawn.temperature,
        "top_p": drawn.top_p,
        "top_k": drawn.top_k or -1,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
    }


def part(found: Any, *names: str | int) -> Any:
    """The value at a path of names and places; None where it ends early."""
    value: Any = found
    for name in names:
        if isinstance(name, str):
            value = value.get(name) if isinstance(value, Mapping) else None
        else:
            value = value[name] if isinstance(value, list) and len(value) > name else None
    return value


def whole(value: Any) -> int | None:
    """A count, or None for anything else."""
    return value if type(value) is int and 0 <= value < LARGEST else None


def decimal(value: Any) -> float | None:
    """A number, or None for anything else."""
    return float(value) if type(value) in (int, float) and abs(value) < LARGEST else None


def token_ids(value: Any, where: str) -> list[int]:
    """A list of token ids."""
    if isinstance(value, list) and all(type(each) is int for each in value):
        return value
    raise PeerError(f"{where} is {shortened(repr(value))} and no list of token ids")

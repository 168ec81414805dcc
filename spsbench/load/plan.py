"""What is to be measured, and on which servers."""

from __future__ import annotations

from dataclasses import dataclass

from spsbench.errors import UsageError
from spsbench.peers.protocol import Ask
from spsbench.peers.registry import OPENAI, server_address


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What is to be measured.

    Attributes:
        servers: one, or the plain and the speculating one, each as ``openai:URL``.
    """

    servers: tuple[str, ...]
    asks: tuple[Ask, ...]
    samples: int
    concurrencies: tuple[int, ...]
    seed: int


def server_names(text: str, flag: str = "--engine") -> tuple[str, ...]:
    """``openai:A`` or ``openai:A,openai:B`` as its parts; a comma may belong to a URL."""
    first, *others = text.split(f",{OPENAI}")
    names = (first, *(OPENAI + other for other in others))
    if not first.startswith(OPENAI) or len(names) > 2:
        raise UsageError(
            f"it must name one or two servers, got {text or 'nothing'}.",
            flag=flag,
            remedy="With --concurrency give openai:URL, or the plain server and the speculating one: "
            "openai:URL,openai:URL.",
        )
    for name in names:
        server_address(name, flag)
    if len(set(names)) < len(names):
        raise UsageError(
            f"{names[0]} is named twice.", flag=flag, remedy="Give one server, or two different ones."
        )
    return names

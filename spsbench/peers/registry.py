"""Which engine of others a name stands for, and how it is opened."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spsbench.errors import UsageError
from spsbench.peers.peer import Peer
from spsbench.peers.protocol import Load
from spsbench.peers.worker import Command, Worker

WORKER = "worker:"


@dataclass(frozen=True, slots=True)
class PeerKind:
    """An engine of others that can be opened.

    Attributes:
        name: as it was given, and in tables.
        open: a peer with one setting; ``log`` takes what it prints, ``paused`` keeps it stopped between
            requests.
        converted: what ``Load.target`` and ``Load.draft`` are to hold for a Hugging Face folder; made once.
    """

    name: str
    open: Callable[[Load, Path, bool], Peer]
    converted: Callable[[Path], str] = str


def find_peer(text: str, flag: str = "--engine") -> PeerKind:
    """The engine that a text stands for.

    Args:
        text: ``worker:COMMAND``.
        flag: the flag that named it.

    Raises:
        UsageError: there is no such engine, or no command behind the colon.
    """
    if text.startswith(WORKER):
        return _worker(text, flag)
    raise UsageError(f"{text!r} is unknown.", flag=flag, remedy='Give worker:"COMMAND".')


def _worker(text: str, flag: str) -> PeerKind:
    try:
        argv = shlex.split(text.removeprefix(WORKER))
    except ValueError as error:
        raise UsageError(f"{text!r} cannot be read: {error}.", flag=flag) from error
    if not argv:
        raise UsageError(
            "no command stands behind the colon.", flag=flag, remedy=f'E.g. {WORKER}"python my_engine.py".'
        )
    return PeerKind(text, lambda load, log, paused: started(argv, load, log, paused))


def started(argv: Sequence[str], load: Load, log: Path, paused: bool) -> Peer:
    """A worker by its command; it runs when it is first asked."""
    return Worker(Command(argv, log), load, paused=paused)

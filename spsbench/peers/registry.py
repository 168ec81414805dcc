"""Which external engine a name stands for, and how it is opened."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from spsbench.errors import UnavailableError, UsageError
from spsbench.peers.catalogue import load_entry
from spsbench.peers.environment import Environment
from spsbench.peers.named import NAMED
from spsbench.peers.peer import Peer
from spsbench.peers.protocol import Load
from spsbench.peers.worker import Command, Worker
from spsbench.plugins import unknown
from spsbench.records import Spec

WORKER = "worker:"
OPENAI = "openai:"

_MODEL = ":model="


@dataclass(frozen=True, slots=True)
class PeerKind:
    """An external engine that can be opened.

    Attributes:
        open: a peer with one setting; ``log`` takes what it prints, ``paused`` keeps it stopped between
            requests.
        converted: what ``Load.target`` and ``Load.draft`` are to hold for a Hugging Face folder; made once.
    """

    name: str
    open: Callable[[Load, Path, bool], Peer]
    converted: Callable[[Path], str] = str
    served: bool = False


def find_peer(text: str, flag: str = "--engine") -> PeerKind:
    """The engine that a text stands for."""
    if text.startswith(WORKER):
        return _worker(text, flag)
    if text.startswith(OPENAI):
        return PeerKind(text, _server_opener(text, flag), served=True)
    spec = Spec.parse(text)
    if spec.name not in NAMED:
        raise unknown(spec.name, NAMED, flag, f', or give {WORKER}"COMMAND" or {OPENAI}URL')
    entry = load_entry(spec.name, flag)
    NAMED[spec.name].settled(spec, flag)
    if not entry.environment.is_here:
        raise UnavailableError(
            f"{spec.name} is not installed.", flag=flag, remedy=f"Type `spsbench get {spec.name}`."
        )
    return peer_in(entry.environment, spec, flag)


def peer_in(environment: Environment, spec: Spec, flag: str = "--engine") -> PeerKind:
    """A named engine that is installed in a certain place."""
    named = NAMED[spec.name]
    options = named.settled(spec, flag)
    return PeerKind(
        str(spec),
        lambda load, log, paused: named.open(environment, options, load, log, paused),
        lambda model: named.converted(model, environment),
    )


def server_address(text: str, flag: str) -> tuple[str, str | None]:
    """URL and model of ``openai:URL[:model=NAME]``; None where no model is named."""
    url, named, model = text.removeprefix(OPENAI).partition(_MODEL)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(
            f"{url.rpartition('@')[2] or 'an empty text'} is not the URL of a server.",
            flag=flag,
            remedy=f"E.g. {OPENAI}http://127.0.0.1:8000/v1.",
        )
    if named and not model:
        raise UsageError(f"a name is missing after {_MODEL}.", flag=flag)
    return url, model or None


def _server_opener(text: str, flag: str) -> Callable[[Load, Path, bool], Peer]:
    """What opens a server; it has its models already, and a folder's tokenizer serves those of text alone."""
    url, model = server_address(text, flag)

    def opened(load: Load, log: Path, paused: bool) -> Peer:
        # Not at the top: requests takes 0.1 s to import, and every run looks names up here.
        from spsbench.peers.server import Server
        from spsbench.peers.texts import texts_in

        return Server(url, model, texts_in(load.target))

    return opened


def _worker(text: str, flag: str) -> PeerKind:
    try:
        argv = shlex.split(text.removeprefix(WORKER))
    except ValueError as error:
        raise UsageError(f"{text} cannot be read: {error}.", flag=flag) from error
    if not argv:
        raise UsageError(
            "no command follows the colon.", flag=flag, remedy=f'E.g. {WORKER}"python my_engine.py".'
        )
    return PeerKind(text, lambda load, log, paused: started(argv, load, log, paused))


def started(argv: Sequence[str], load: Load, log: Path, paused: bool) -> Peer:
    """A worker by its command; it runs when it is first asked."""
    return Worker(Command(argv, log), load, paused=paused)

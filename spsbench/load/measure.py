"""Servers under load: checked, warmed up, and measured in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spsbench.errors import UnavailableError
from spsbench.load.plan import LoadPlan
from spsbench.load.turns import turns
from spsbench.load.wave import Wave, run_wave
from spsbench.peers.dialects import Texts
from spsbench.peers.protocol import Ask, Described, PeerGone
from spsbench.peers.registry import server_address
from spsbench.peers.server import Server, first_token

_COMPARED = 16
_TOLERATED = 1 / 8
"""Of the prompts, at which two servers of one model may differ: near ties."""

_WARMUP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was measured."""

    names: tuple[str, ...]
    described: tuple[Described, ...]
    waves: tuple[Wave, ...]
    ended: str | None = None


def measure(load: LoadPlan, texts: Texts | None, say: Callable[[str], None]) -> Loaded:
    """Measure servers in turns; where one of them ends, what all of them had finished is kept."""
    addresses = [server_address(name, "--engine") for name in load.servers]
    servers = [Server(url, model, texts, alone=False) for url, model in addresses]
    described = tuple(map(_described, load.servers, servers))
    _require_one_model(load, servers)
    say("Warming up")
    _warm_up(load, servers)
    waves, ended = _waves(load, servers, say)
    return Loaded(load.servers, described, waves, ended)


def _warm_up(load: LoadPlan, servers: Sequence[Server]) -> None:
    """As many short requests at once as will ever be in flight."""
    most = max(load.concurrencies)
    short = [replace(ask, max_new_tokens=min(_WARMUP_TOKENS, ask.max_new_tokens)) for ask in load.asks]
    asks = [short[place % len(short)] for place in range(most)]
    for place, (name, server) in enumerate(zip(load.servers, servers, strict=True)):
        _sent(name, server, asks, place, most, -1)


def _waves(
    load: LoadPlan, servers: Sequence[Server], say: Callable[[str], None]
) -> tuple[tuple[Wave, ...], str | None]:
    """Those that all servers finished, and why there are no more."""
    waves: list[Wave] = []
    begun: list[Wave] = []
    for turn in turns(load.asks, load.samples, load.concurrencies, len(servers), load.seed):
        if not begun and turn.concurrency == load.concurrencies[0]:
            say(f"Wave {turn.number + 1}")
        name, server = load.servers[turn.server], servers[turn.server]
        try:
            begun.append(_sent(name, server, turn.asks, turn.server, turn.concurrency, turn.number))
        except UnavailableError as error:
            if not waves:
                raise
            return tuple(waves), error.message
        if len(begun) == len(servers):
            waves += begun
            begun = []
    return tuple(waves), None


def _described(name: str, server: Server) -> Described:
    try:
        return server.describe()
    except PeerGone as error:
        raise _gone(name, error) from error


def _sent(name: str, server: Server, asks: Sequence[Ask], place: int, concurrency: int, number: int) -> Wave:
    try:
        return run_wave(server, asks, place, concurrency, number)
    except PeerGone as error:
        raise _gone(name, error) from error


def _gone(name: str, error: PeerGone) -> UnavailableError:
    return UnavailableError(f"{name}: {error}.", flag="--engine")


def _require_one_model(load: LoadPlan, servers: Sequence[Server]) -> None:
    """Refuse two servers whose greedy tokens differ at more than a few prompts.

    One alone is asked for a token, so that what it cannot do with these prompts shows now.
    """
    asks = load.asks[: 1 if len(servers) == 1 else _COMPARED]
    seen = [
        [first_token(server, ask.prompt_ids, ask.stop_ids, name) for ask in asks]
        for name, server in zip(load.servers, servers, strict=True)
    ]
    differing = sum(one != other for one, other in zip(seen[0], seen[-1], strict=True))
    if differing > _TOLERATED * len(asks):
        raise UnavailableError(
            f"{' and '.join(load.servers)} serve different models: at {differing} of {len(asks)} prompts "
            "their most probable tokens differ.",
            flag="--engine",
            remedy="Start both with the same target.",
        )

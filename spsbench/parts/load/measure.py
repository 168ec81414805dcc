"""Servers under load: checked, warmed up, and measured in turns, wave by wave."""

from __future__ import annotations

import random
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

from spsbench.base import OPENAI, Ask, Described, PeerError, PeerGone, UnavailableError, UsageError
from spsbench.parts.external.dialects import Texts
from spsbench.parts.external.messages import CHAT_ALONE
from spsbench.parts.external.registry import server_address
from spsbench.parts.external.server import Server, first_token
from spsbench.tasks import spoken

FEWEST_WAVES = 6
"""Of one server at one concurrency; an interval is over waves."""

_SMALLEST, _IN_FLIGHT_TIMES = 6, 2
"""Requests of a wave: so many, or so many times those in flight."""

_COMPARED, _TOLERATED = 16, 1 / 8
"""Prompts at which two servers of one model are compared, and the share that may differ: near ties."""

_WARMUP_TOKENS = 8


def server_names(text: str) -> tuple[str, ...]:
    """Return the parts of ``openai:A`` or ``openai:A,openai:B``; a comma may belong to a URL."""
    first, *others = text.split(f",{OPENAI}")
    names = (first, *(OPENAI + other for other in others))
    if not first.startswith(OPENAI) or len(names) > 2:
        raise UsageError(
            f"it must name one or two servers, got {text or 'nothing'}.",
            flag="--engine",
            remedy="With --concurrency give openai:URL, or the plain server and the speculating one: "
            "openai:URL,openai:URL.",
        )
    for name in names:
        server_address(name, "--engine")
    if len(set(names)) < len(names):
        raise UsageError(
            f"{names[0]} is named twice.", flag="--engine", remedy="Give one server, or two different ones."
        )
    return names


@dataclass(frozen=True, slots=True)
class LoadTurn:
    """A wave that is to be sent."""

    server: int
    concurrency: int
    number: int
    asks: tuple[Ask, ...]


def turns(
    asks: Sequence[Ask], samples: int, concurrencies: Sequence[int], servers: int, seed: int
) -> Iterator[LoadTurn]:
    """Yield waves in the order in which they are sent.

    All servers get the same prompts at once, now one first and now the other, so that a machine that becomes
    slower meanwhile slows all of them. Every request has its own seed, which servers share. No prompt comes
    twice in a wave unless ``samples`` says more than once.
    """
    waves = {}
    for concurrency in concurrencies:
        size = wave_size(len({tuple(ask.prompt_ids) for ask in asks}), samples, concurrency)
        requests = max(FEWEST_WAVES * _full_size(concurrency), samples * len(asks))
        drawn = random.Random(f"{seed} {concurrency}")
        deck = _Deck(asks, drawn, may_repeat=samples > 1)
        waves[concurrency] = [deck.wave(size) for _ in range(-(-requests // size))]
    for number in range(max(map(len, waves.values()))):
        for concurrency, waves_there in waves.items():
            if number < len(waves_there):
                for server in range(servers) if number % 2 == 0 else range(servers - 1, -1, -1):
                    yield LoadTurn(server, concurrency, number, waves_there[number])


def _full_size(concurrency: int) -> int:
    return max(_SMALLEST, _IN_FLIGHT_TIMES * concurrency)


def wave_size(prompts: int, samples: int, concurrency: int) -> int:
    """Return the requests of a wave; prompts that are asked once each make it smaller.

    Raises:
        UsageError: they do not keep so many requests in flight.
    """
    full = _full_size(concurrency)
    if samples > 1 or prompts >= full:
        return full
    if prompts < concurrency:
        raise UsageError(
            f"{prompts} prompts do not keep {concurrency} requests in flight without asking one of them "
            "twice at once, which a server's cache would answer.",
            flag="--concurrency",
            remedy=f"Give {concurrency} prompts or more, or --samples 2 to ask them again.",
        )
    return prompts


class _Deck:
    """Prompts in an order of its own each time round, every request with its own seed."""

    def __init__(self, asks: Sequence[Ask], drawn: random.Random, *, may_repeat: bool) -> None:
        self._asks, self._drawn, self._may_repeat = list(asks), drawn, may_repeat
        self._left: list[Ask] = []

    def wave(self, size: int) -> tuple[Ask, ...]:
        """Take so many; in a wave that may not repeat, what was taken already waits for the next."""
        taken: list[Ask] = []
        waiting: list[Ask] = []
        prompts: list[list[int]] = []
        while len(taken) < size:
            if not self._left:
                self._left = self._drawn.sample(self._asks, len(self._asks))
            ask = self._left.pop(0)
            if self._may_repeat or ask.prompt_ids not in prompts:
                taken.append(ask)
                prompts.append(ask.prompt_ids)
            else:
                waiting.append(ask)
        self._left = waiting + self._left
        return tuple(replace(ask, seed=self._drawn.getrandbits(31)) for ask in taken)


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """One request: when tokens came, and how many there were then. Seconds since the start of its wave.

    Attributes:
        unstreamed: tokens that the server counted and did not send; ``counts`` are without them.
        came_before: its server had read the prompt for an earlier request.
        cached: prompt tokens that the server says it did not read again.
        thought: events of a thought that came before the answer; 0 without one.
        reasoning_tokens: tokens of a thought, streamed or not, as the server counts them.
    """

    sent: float
    done: float
    times: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()
    drafted: int | None = None
    accepted: int | None = None
    error: str | None = None
    retokenised: bool = False  # the server counts no tokens: its text was tokenized again
    unstreamed: int = 0
    came_before: bool = False
    cached: int | None = None
    thought: int = 0
    reasoning_tokens: int | None = None

    @property
    def tokens(self) -> int:
        """Number of tokens that were written."""
        return round(self.counts[-1]) if self.counts else 0

    @property
    def is_contradicted(self) -> bool:
        """Whether the server kept more draft tokens than it proposed, by its own counts."""
        return self.drafted is not None and self.accepted is not None and self.accepted > self.drafted

    @property
    def ttft_s(self) -> float | None:
        """Seconds until the first token."""
        return self.times[0] - self.sent if self.times else None

    @property
    def answer_ttft_s(self) -> float | None:
        """Seconds until the first token of the answer behind a thought; None without thought or answer."""
        return self.times[self.thought] - self.sent if 0 < self.thought < len(self.times) else None

    @property
    def thought_tokens(self) -> int:
        """Number of tokens of the thought that came: as the server says, else by its events."""
        if not self.thought or not self.counts:
            return 0
        return self.reasoning_tokens or round(self.counts[self.thought - 1])

    @property
    def tpot_s(self) -> float | None:
        """Seconds for each further token; None where all came at once."""
        if not self.times or self.counts[-1] <= self.counts[0]:
            return None
        return (self.times[-1] - self.times[0]) / (self.counts[-1] - self.counts[0])

    def tokens_by(self, time_s: float) -> float:
        """Return how many tokens were there at that time."""
        place = bisect_right(self.times, time_s)
        return self.counts[place - 1] if place else 0.0


def listened(server: Server, ask: Ask, started: float) -> TimedAnswer:
    """Ask for one output and listen to it."""
    sent = time.perf_counter() - started
    heard: list[tuple[float, int | None, int]] = []
    said: list[tuple[str, bool]] = []
    retokenised = False
    unstreamed = 0
    latest: dict[str, int | None] = dict.fromkeys(("tokens", "drafted", "accepted", "cached", "unspoken"))
    try:
        for event in server.stream(ask):
            now = time.perf_counter() - started
            for name in latest:
                if (value := getattr(event, name)) is not None:
                    latest[name] = value
            retokenised, unstreamed = event.retokenised, event.unstreamed
            if event.text:
                heard.append((now, event.tokens, len(event.said)))
                said.append((event.said, event.thought))
            written = 0 if retokenised else latest["tokens"] or 0
            if max(written, len(heard)) > ask.max_new_tokens:
                raise PeerError(f"it wrote more than the {ask.max_new_tokens} tokens that were asked for")
    except PeerGone:
        raise
    except PeerError as error:
        return TimedAnswer(sent, time.perf_counter() - started, error=str(error))
    done = time.perf_counter() - started
    total = latest["tokens"]
    if not total and not unstreamed:
        return TimedAnswer(sent, done, error="it does not say how many tokens it wrote")
    times, counts = _times_and_counts(heard, total, done) if total else ((), ())
    if any(later < earlier for earlier, later in pairwise(counts)):
        return TimedAnswer(sent, done, error="its count of tokens goes backwards")
    return TimedAnswer(
        sent,
        done,
        times,
        counts,
        latest["drafted"],
        latest["accepted"],
        retokenised=retokenised,
        unstreamed=unstreamed,
        cached=latest["cached"],
        thought=_events_of_thought(said),
        reasoning_tokens=latest["unspoken"],
    )


def _events_of_thought(said: Sequence[tuple[str, bool]]) -> int:
    """By the server's field for it, else by its marks in the text."""
    if any(is_thought for _, is_thought in said):
        return max(place for place, (_, is_thought) in enumerate(said, 1) if is_thought)
    text = "".join(piece for piece, _ in said)
    thought, answer = spoken(text)
    if thought is None:
        return 0
    begins = text.rfind(answer) if answer else len(text)
    ends = accumulate(len(piece) for piece, _ in said)
    return sum(end <= begins for end in ends)


def _times_and_counts(
    heard: Sequence[tuple[float, int | None, int]], total: int, done: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """They end with all tokens; each event has characters, time and count."""
    if any(count is None for _, count, _ in heard):  # only the sum is reported: shares are by characters
        so_far = list(accumulate(max(1, length) for *_, length in heard))
        pairs = zip(heard, so_far, strict=True)
        points = [(time_s, total * length / so_far[-1]) for (time_s, *_), length in pairs]
    else:
        points = [(time_s, float(count or 0)) for time_s, count, _ in heard]
        if not points or points[-1][1] < total:
            points.append((done, float(total)))  # e.g. a stop token, which has no text
    times, counts = zip(*points, strict=True)
    return times, counts


@dataclass(frozen=True, slots=True)
class LoadWave:
    """Requests of one wave to one server."""

    server: int
    concurrency: int
    number: int
    readings: tuple[TimedAnswer, ...]
    drafted: int | None
    accepted: int | None

    @property
    def answered(self) -> list[TimedAnswer]:
        """The requests that did not fail."""
        return [reading for reading in self.readings if reading.error is None]

    @property
    def window_s(self) -> float:
        """How long all slots were in use: until a request ended and none was left to begin."""
        last_sent = max(reading.sent for reading in self.readings)
        return min(reading.done for reading in self.readings if reading.done > last_sent)

    @property
    def window_tokens(self) -> float:
        """Number of tokens that came within ``window_s``."""
        return sum(reading.tokens_by(self.window_s) for reading in self.answered)


@dataclass(frozen=True, slots=True)
class _Client:
    """A server by its name, and the prompts that it has read."""

    name: str
    server: Server
    read: set[tuple[int, ...]] = field(default_factory=set)

    def apart(self, ask: Ask) -> Ask:
        """Return a request whose prompt begins otherwise, where ids are sent: no cache helps the other."""
        return replace(ask, prompt_ids=ask.prompt_ids[1:] or ask.prompt_ids) if self.server.takes_ids else ask


def _sent(client: _Client, turn: LoadTurn) -> LoadWave:
    """Send requests, each as soon as one of those in flight is answered.

    What a server counts in ``/metrics`` is used only at concurrency 1, where other clients would be noticed.
    """
    server = client.server
    try:
        counted = server.counting() if turn.concurrency == 1 else None
        started = time.perf_counter()
        pool = ThreadPoolExecutor(turn.concurrency)
        try:
            came_before = []
            for ask in turn.asks:
                came_before.append(tuple(ask.prompt_ids) in client.read)
                client.read.add(tuple(ask.prompt_ids))
            heard = pool.map(lambda ask: listened(server, ask, started), turn.asks)
            readings = tuple(
                replace(reading, came_before=before)
                for reading, before in zip(heard, came_before, strict=True)
            )
        finally:
            pool.shutdown(cancel_futures=True)
        # An output that was too short for a draft reports none.
        told = [reading for reading in readings if not reading.is_contradicted]
        counts = [(r.drafted, r.accepted) for r in told if r.drafted is not None and r.accepted is not None]
        drafted, accepted = (sum(column) for column in zip(*counts, strict=True)) if counts else (None, None)
        if drafted is None and counted is not None:
            drafted, accepted = counted(sum(reading.tokens for reading in readings))
    except PeerGone as error:
        raise _gone(client.name, error) from error
    return LoadWave(turn.server, turn.concurrency, turn.number, readings, drafted, accepted)


def _gone(name: str, error: PeerGone) -> UnavailableError:
    return UnavailableError(f"{name}: {error}.", flag="--engine")


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was measured."""

    names: tuple[str, ...]
    described: tuple[Described, ...]
    waves: tuple[LoadWave, ...]
    ended: str | None = None


def measure(
    names: tuple[str, ...],
    asks: Sequence[Ask],
    samples: int,
    concurrencies: Sequence[int],
    seed: int,
    texts: Texts | None,
    say: Callable[[str], None],
) -> Loaded:
    """Measure servers in turns; where one of them ends, what all of them had finished is kept."""
    clients = [_Client(name, Server(*server_address(name, "--engine"), texts, alone=False)) for name in names]
    described = []
    for client in clients:
        try:
            description = client.server.describe()
            if CHAT_ALONE in description.limits:
                say(f"{client.name}: {CHAT_ALONE}")
            described.append(description)
        except PeerGone as error:
            raise _gone(client.name, error) from error
    _require_one_model(clients, asks)
    say("Warming up")  # with as many short requests at once as will ever be in flight
    most = max(concurrencies)
    short = [replace(ask, max_new_tokens=min(_WARMUP_TOKENS, ask.max_new_tokens)) for ask in asks]
    for place, client in enumerate(clients):
        at_once = tuple(client.apart(short[number % len(short)]) for number in range(most))
        _sent(client, LoadTurn(place, most, -1, at_once))
    waves: list[LoadWave] = []
    begun: list[LoadWave] = []
    ended = None
    for turn in turns(asks, samples, concurrencies, len(clients), seed):
        if not begun and turn.concurrency == concurrencies[0]:
            say(f"Wave {turn.number + 1}")
        try:
            begun.append(_sent(clients[turn.server], turn))
        except UnavailableError as error:
            if not waves:
                raise
            ended = error.message
            break
        if len(begun) == len(clients):
            waves += begun
            begun = []
    return Loaded(names, tuple(described), tuple(waves), ended)


def _require_one_model(clients: Sequence[_Client], asks: Sequence[Ask]) -> None:
    """Refuse two servers whose greedy tokens differ at more than a few prompts.

    One alone is asked for a token, so that what it cannot do with these prompts shows now.
    """
    asks = asks[: 1 if len(clients) == 1 else _COMPARED]
    if not all(client.server.takes_ids for client in clients):
        for client in clients:
            client.read.update(tuple(ask.prompt_ids) for ask in asks)
        compared = list(asks)
    else:
        compared = [clients[0].apart(ask) for ask in asks]
    seen = [
        [first_token(client.server, ask.prompt_ids, ask.stop_ids, client.name) for ask in compared]
        for client in clients
    ]
    differing = sum(one != other for one, other in zip(seen[0], seen[-1], strict=True))
    if differing > _TOLERATED * len(asks):
        raise UnavailableError(
            f"{' and '.join(client.name for client in clients)} serve different models: at {differing} of "
            f"{len(asks)} prompts their most probable tokens differ.",
            flag="--engine",
            remedy="Start both with the same target.",
        )

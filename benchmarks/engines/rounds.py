"""The measuring: every engine loaded once, then rounds in which all take their turn."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from spsbench.base.errors import SpsbenchError
from spsbench.base.protocol import FLOAT32, Answer, Ask, Described, Load, Peer, PeerError
from spsbench.parts.external.registry import PeerKind

ARS, SPS = "ars", "sps"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        target, draft: Hugging Face folders; without a draft ArS alone is measured.
        k: lookahead.
        threads: of each engine's pool.
        requests: the prompts, greedy.
        rounds: turns of every engine.
        warmup: requests that an engine answers before the first round.
        logs: a folder for what engines print.
        dtype: of weights and arithmetic.
    """

    target: Path
    draft: Path | None
    k: int
    threads: int
    requests: Sequence[Ask]
    rounds: int
    warmup: int
    logs: Path
    dtype: str = FLOAT32

    @property
    def methods(self) -> tuple[str, ...]:
        """``ars``, and ``sps`` where there is a draft."""
        return (ARS,) if self.draft is None else (ARS, SPS)

    @property
    def context(self) -> int:
        """The longest sequence with the K tokens beyond it, in tokens, rounded up."""
        longest = max(len(request.prompt_ids) + request.max_new_tokens for request in self.requests)
        return -(-(longest + self.k + 1) // 256) * 256


@dataclass(frozen=True)
class Turn:
    """The answers of one engine and method in one round, one a request."""

    engine: str
    method: str
    round: int
    answers: tuple[Answer, ...]

    @property
    def ms_per_token(self) -> float | None:
        """Decode time over the tokens that it paid for; None where there was none."""
        decoded = sum(answer.decoded or 0 for answer in self.answers)
        return sum(answer.decode_ms or 0.0 for answer in self.answers) / decoded if decoded else None


@dataclass
class Measured:
    """What came of a plan.

    Attributes:
        loaded: what each engine said of itself.
        turns: of engines that answered to the end.
        failed: why others did not, by engine.
    """

    loaded: dict[str, Described] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Runner:
    """An engine with one method, in a process of its own."""

    name: str
    method: str
    peer: Peer

    @property
    def label(self) -> str:
        return f"{self.name} {self.method}"


def measure(plan: Plan, contenders: Sequence[PeerKind], say: Say, seed: int = 0) -> Measured:
    """Load all, warm up all, then let them take turns in an order that is shuffled in every round.

    Only one process runs at a time. An engine that fails is left out from there on, with all its turns.
    """
    found = Measured()
    with ExitStack() as stack:
        runners: list[_Runner] = []
        for contender in contenders:
            runners += _started(plan, contender, stack, found, say)
        shuffler = random.Random(seed)
        for number in range(plan.rounds):
            shuffler.shuffle(runners)
            for runner in runners:
                if runner.name in found.failed:
                    continue
                say(f"round {number + 1} of {plan.rounds}: {runner.label}")
                try:
                    answers = tuple(runner.peer.generate(request) for request in plan.requests)
                except PeerError as error:
                    found.failed[runner.name] = f"{runner.method}: {error}"
                else:
                    found.turns.append(Turn(runner.name, runner.method, number, answers))
    found.turns = [turn for turn in found.turns if turn.engine not in found.failed]
    return found


def _started(
    plan: Plan, contender: PeerKind, stack: ExitStack, found: Measured, say: Say
) -> Iterator[_Runner]:
    """An engine's processes, loaded and warm; none if one of them fails."""
    started = []
    try:
        target = contender.converted(plan.target)
        draft = None if plan.draft is None else contender.converted(plan.draft)
        for method in plan.methods:
            log = plan.logs / f"{contender.name}-{method}.log".replace(" ", "-").replace(":", "-")
            drafting = None if method == ARS else draft
            load = Load(
                target, drafting, plan.k, threads=plan.threads, context=plan.context, dtype=plan.dtype
            )
            peer = contender.open(load, log, True)
            stack.callback(peer.close)
            runner = _Runner(contender.name, method, peer)
            say(f"loading {runner.label}")
            found.loaded[contender.name] = peer.describe()
            for request in plan.requests[: plan.warmup]:
                peer.generate(request)
            started.append(runner)
    except (PeerError, SpsbenchError, ValueError, OSError) as error:
        found.failed[contender.name] = str(error)
        return
    yield from started

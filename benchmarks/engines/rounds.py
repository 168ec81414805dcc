"""The measuring: every engine loaded once, then rounds in which all take their turn."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.engines.contenders import Contender
from benchmarks.engines.messages import ARS, SPS, Answer, Loaded, Request, Settings
from benchmarks.engines.worker_process import WorkerFailed, WorkerProcess

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        target, draft: Hugging Face folders; without a draft ArS alone is measured.
        k: lookahead.
        threads, cores: see ``Settings``.
        requests: the prompts, greedy.
        rounds: turns of every engine.
        warmup: requests that an engine answers before the first round.
        logs: a folder for what engines print.
    """

    target: Path
    draft: Path | None
    k: int
    threads: int
    cores: tuple[int, ...]
    requests: Sequence[Request]
    rounds: int
    warmup: int
    logs: Path

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
        decoded = sum(answer.decoded for answer in self.answers)
        return sum(answer.decode_ms for answer in self.answers) / decoded if decoded else None


@dataclass
class Measured:
    """What came of a plan.

    Attributes:
        loaded: what each engine said of itself.
        turns: of engines that answered to the end.
        failed: why others did not, by engine.
    """

    loaded: dict[str, Loaded] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Runner:
    """A contender with one method, in a process of its own."""

    contender: Contender
    method: str
    process: WorkerProcess

    @property
    def label(self) -> str:
        return f"{self.contender.name} {self.method}"


def measure(plan: Plan, contenders: Sequence[Contender], say: Say, seed: int = 0) -> Measured:
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
                if runner.contender.name in found.failed:
                    continue
                say(f"round {number + 1} of {plan.rounds}: {runner.label}")
                try:
                    answers = tuple(_answers(runner, plan.requests))
                except WorkerFailed as error:
                    found.failed[runner.contender.name] = f"{runner.method}: {error}"
                else:
                    found.turns.append(Turn(runner.contender.name, runner.method, number, answers))
    found.turns = [turn for turn in found.turns if turn.engine not in found.failed]
    return found


def _started(
    plan: Plan, contender: Contender, stack: ExitStack, found: Measured, say: Say
) -> Iterator[_Runner]:
    """A contender's processes, loaded and warm; none if one of them fails."""
    started = []
    try:
        target = contender.convert(plan.target)
        draft = None if plan.draft is None else contender.convert(plan.draft)
        for method in plan.methods:
            log = plan.logs / f"{contender.name}-{method}.log".replace(" ", "-").replace(":", "-")
            environment = {"OMP_NUM_THREADS": str(plan.threads)} | dict(contender.environment)
            process = WorkerProcess(contender.python, contender.module, environment, log)
            runner = _Runner(contender, method, stack.enter_context(process))
            say(f"loading {runner.label}")
            settings = Settings(
                str(target),
                None if method == ARS or draft is None else str(draft),
                plan.k,
                plan.threads,
                plan.cores,
                plan.context,
                dict(contender.options),
            )
            with process.awake():
                found.loaded[contender.name] = process.load(settings)
                for request in plan.requests[: plan.warmup]:
                    process.generate(request)
            started.append(runner)
    except (WorkerFailed, RuntimeError, ValueError, OSError) as error:
        found.failed[contender.name] = str(error)
        return
    yield from started


def _answers(runner: _Runner, requests: Sequence[Request]) -> Iterator[Answer]:
    with runner.process.awake():
        for request in requests:
            yield runner.process.generate(request)

"""The worker's side of a distributed run: a process that measures for another one.

It knows nothing of how it is reached. It finds task, data and models by itself, as the run's own settings
name them, so that only keys travel to it, and finished samples back.
"""

from __future__ import annotations

import logging
import os
import platform
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

import psutil

from spsbench import __version__
from spsbench.base.cluster import FLAG, LOCAL
from spsbench.base.environment import describe_environment
from spsbench.base.errors import SpsbenchError, UnavailableError, UsageError, first_line
from spsbench.base.files import plain
from spsbench.base.records import Arm
from spsbench.config import RunConfig
from spsbench.engines.local import Engine
from spsbench.models.device import Gpu
from spsbench.models.pair import Pair
from spsbench.runner.conditions import conditions_of
from spsbench.runner.engines import EngineFactory
from spsbench.runner.execution import facts_of, generated_samples, load, warm_up
from spsbench.runner.finishing import peak_memory_bytes
from spsbench.runner.messages import CONTINUE
from spsbench.runner.planning import Plan, plan
from spsbench.runner.proof import proven
from spsbench.runner.turns import Turn, all_turns, together
from spsbench.store import Key, differences
from spsbench.store.schema import of_any_board
from spsbench.store.summary_types import Conditions

Work = Literal["measure", "score", "prove"]

MOST_LOST = 3
"""So many workers may be lost over one item: it is then the item that ends them."""


class Item(NamedTuple):
    """A part of a block that is answered by itself."""

    key: Key
    content: Any = None


@dataclass(frozen=True, slots=True)
class Block:
    """What one worker does in one go, item by item."""

    work: Work
    items: tuple[Item, ...]


# What happens in a pool: a worker finished an item, or its block, or is gone with its machine or without it.
class Completed(NamedTuple):
    worker: int
    key: Key
    value: Any


class Free(NamedTuple):
    worker: int


class Lost(NamedTuple):
    worker: int
    reason: str


def blocks_to_measure(turns: Iterable[Turn]) -> list[Block]:
    """Return a block for every prompt, or wave of prompts: all of its samples and arms, in their order.

    They are compared with each other, so one worker measures them. Larger blocks would gain nothing, since a
    block costs a message, and would leave workers idle at the end.
    """
    units = groupby(turns, key=lambda turn: turn.unit)
    return [Block("measure", tuple(Item(turn.key) for turn in unit)) for _, unit in units]


def hand_out(
    blocks: Iterable[Block], pool: Any, workers: Sequence[int], lost: Callable[[int, str], None]
) -> Iterator[Completed]:
    """Have a ``RayPool`` carry out all blocks, and yield each item's answer once, as they arrive.

    A lost worker's items that were not answered go to the next free worker, before all others. Answers that
    come twice, from a worker that was thought lost, count once.
    """
    hands = _Hands(blocks, pool, workers)
    while hands.busy():
        event = pool.wait()
        if isinstance(event, Completed):
            if event.key not in hands.done:
                hands.done.add(event.key)
                yield event
        elif isinstance(event, Free):
            hands.put_back(event.worker)
            hands.free.append(event.worker)
        else:
            lost(event.worker, event.reason)
            hands.lost(event)


class _Hands:
    """Which worker has which block."""

    def __init__(self, blocks: Iterable[Block], pool: Any, workers: Sequence[int]) -> None:
        self._waiting, self.free, self._pool = deque(blocks), deque(workers), pool
        self._at_work: dict[int, Block] = {}
        self.done: set[Key] = set()
        self._losses: Counter[Key] = Counter()

    def busy(self) -> bool:
        """Give blocks to free workers; return whether there is anything to wait for."""
        while self._waiting and self.free:
            if due := self._due_block(self._waiting.popleft()):
                worker = self.free.popleft()
                self._at_work[worker] = due
                self._pool.give(worker, due)
        if self._waiting and not self._at_work:
            raise SpsbenchError("every worker was lost.", flag=FLAG, remedy=CONTINUE)
        return bool(self._at_work)

    def lost(self, event: Lost) -> None:
        """Have another worker finish a lost worker's block."""
        if event.worker in self.free:
            self.free.remove(event.worker)
        left = self.put_back(event.worker)
        if left is None:
            return
        at = left.items[0].key
        self._losses[at] += 1
        if self._losses[at] >= MOST_LOST:
            raise SpsbenchError(
                f"{MOST_LOST} workers were lost over {' '.join(map(str, at))}. The last one: {event.reason}",
                flag=FLAG,
                remedy=f"Too little memory ends them like this. {CONTINUE}",
            )

    def put_back(self, worker: int) -> Block | None:
        """Queue what a worker left of its block first; return it, or None if nothing is left."""
        block = self._at_work.pop(worker, None)
        left = None if block is None else self._due_block(block)
        if left is not None:
            self._waiting.appendleft(left)
        return left

    def _due_block(self, block: Block) -> Block | None:
        left = tuple(item for item in block.items if item.key not in self.done)
        return Block(block.work, left) if left else None


@dataclass(frozen=True, slots=True)
class Introduction:
    """Who a worker is; ``environment`` is that of ``describe_environment``."""

    machine: str
    process: int
    environment: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.machine}:{self.process}"


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The models and engines of a plan, warmed up."""

    plan: Plan
    pair: Pair
    backends: EngineFactory
    engines: dict[Arm, Engine]
    turns: dict[Key, Turn]

    @classmethod
    def of(cls, plan: Plan) -> _Loaded:
        pair = load(plan)
        backends = EngineFactory(pair, plan.slots, corpus=tuple(prompt.ids for prompt in plan.prompts))
        engines = backends.all(plan.arms)
        turns = {turn.key: turn for turn in all_turns(plan)}
        warm_up(plan, engines, next(iter(turns.values())))
        return cls(plan, pair, backends, engines, turns)

    def samples(self, items: Sequence[Item]) -> Iterator[tuple[Key, Any]]:
        turns = [self.turns[item.key] for item in items]
        for sample in generated_samples(self.plan, self.engines, together(turns), self.pair):
            yield sample.key, sample

    def proofs(self, items: Sequence[Item]) -> Iterator[tuple[Key, Any]]:
        for item in items:
            yield item.key, proven(self.plan, self.pair, self.backends)


class RunWorker:
    """Measures what it is given; asked in this order: ``introduce``, ``prepare``, ``load``, ``work``."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self._config = config
        with suppress(OSError):
            os.chdir(folder)
        self._plan: Plan | None = None
        self._loaded: _Loaded | None = None
        self._answers: Iterator[tuple[Key, Any]] = iter(())

    def introduce(self) -> Introduction:
        """Return who this is; nothing is loaded for it."""
        return Introduction(platform.node(), os.getpid(), describe_environment())

    def prepare(self, identity: dict[str, Any]) -> Conditions:
        """Find task, data and models; return the conditions that this worker measures under."""
        with _errors_name_this_machine():
            self._plan = plan(self._config, later_turns=True)
            if lines := differences(identity, plain(self._plan.identity())):
                raise UsageError(
                    "\n".join(
                        ["something else would be measured (the run's value -> the worker's):", *lines, ""]
                    ),
                    flag=FLAG,
                    remedy="Give all the same files.",
                )
        gpu = Gpu.of(self._plan.device)
        return of_any_board(conditions_of(self._plan, describe_environment(), gpu))

    def load(self) -> dict[str, Any]:
        """Load the models and warm every arm up; return what run.json keeps of them, see ``facts_of``."""
        assert self._plan is not None, "prepared first"
        with _errors_name_this_machine():
            loaded = self._loaded = _Loaded.of(self._plan)
        return facts_of(loaded.plan, loaded.engines, loaded.pair, loaded.backends.fallbacks)

    def work(self, block: Block | None = None) -> tuple[Key, Any] | None:
        """Return the next item's key and answer; None when the block is done."""
        if block is not None:
            self._answers = self._answers_to(block)
        return next(self._answers, None)

    def peak_memory_bytes(self) -> int:
        return peak_memory_bytes()

    def _answers_to(self, block: Block) -> Iterator[tuple[Key, Any]]:
        if block.work == "score":  # for which nothing is loaded
            return self._scores(block.items)
        assert self._loaded is not None, "loaded first"
        return (
            self._loaded.samples(block.items) if block.work == "measure" else self._loaded.proofs(block.items)
        )

    def _scores(self, items: Sequence[Item]) -> Iterator[tuple[Key, Any]]:
        assert self._plan is not None, "prepared first"
        prompts, texts = zip(*(item.content for item in items), strict=True)
        scores = self._plan.task.score(prompts, texts)
        yield from zip((item.key for item in items), scores, strict=True)


@contextmanager
def _errors_name_this_machine() -> Iterator[None]:
    try:
        yield
    except SpsbenchError as error:
        error.message = f"on {platform.node()}: {error.message}"
        raise


START_S = 120.0
"""How long workers may take to begin: Ray starts a process for each where CPUs are free."""

_OBJECT_STORE_BYTES = 100 * 2**20
"""Of a cluster started here; what travels are keys and single samples."""


class RayPool:
    """A ``Pool`` of actors that all measure the same run. Made by ``ray_pool``."""

    def __init__(self, actors: Sequence[Any]) -> None:
        self._actors = dict(enumerate(actors))
        self._pending: dict[Any, int] = {}  # what was asked and not answered, with its worker
        self._to_ask: int | None = None  # whose last answer was taken, and is kept once it asks for more

    @property
    def workers(self) -> list[int]:
        return list(self._actors)

    def give(self, worker: int, block: Block) -> None:
        self._pending[self._actors[worker].work.remote(block)] = worker

    def wait(self) -> Completed | Free | Lost:
        if self._to_ask is not None:
            self._pending[self._actors[self._to_ask].work.remote()] = self._to_ask
            self._to_ask = None
        (answer,) = _ready(list(self._pending), 1)
        worker = self._pending.pop(answer)
        try:
            result = _result_of(answer)
        except _Gone as gone:
            self._drop(worker)
            return Lost(worker, str(gone))
        if result is None:
            return Free(worker)
        self._to_ask = worker
        return Completed(worker, *result)

    def ask(self, method: str, *arguments: Any, within_s: float | None = None) -> dict[int, Any]:
        """Return each worker's answer to a call; lost workers are left out."""
        worker_of = {
            getattr(actor, method).remote(*arguments): worker for worker, actor in self._actors.items()
        }
        ready = _ready(list(worker_of), len(worker_of), within_s)
        answer_of: dict[int, Any] = {}
        reasons = []
        for answer, worker in worker_of.items():
            if answer not in ready:
                self._drop(worker)
                why = f"it did not answer within {within_s:g} s."
                reasons.append(why)
                continue
            try:
                answer_of[worker] = _result_of(answer)
            except _Gone as gone:
                self._drop(worker)
                reasons.append(str(gone))
        if not answer_of:
            raise UnavailableError(
                f"no worker of {len(worker_of)} is there: {reasons[0]}",
                flag=FLAG,
                remedy=f"Each machine needs spsbench {__version__} with its libraries, free CPUs and memory.",
            )
        return answer_of

    def close(self) -> None:
        for worker in self.workers:
            self._drop(worker)

    def _drop(self, worker: int) -> None:
        """Stop using a worker; one that is only cut off must not compute on."""
        import ray

        ray.kill(self._actors.pop(worker))


@contextmanager
def ray_pool(address: str, config: RunConfig, threads: int, most: int, *, gpu: bool) -> Iterator[RayPool]:
    """Yield workers for a run, as many as there is room for; they end with the block."""
    import ray

    is_new = not ray.is_initialized()
    if is_new:
        _join_or_start_cluster(address)
    try:
        pool = RayPool(_start_actor_in_each_place(config, threads, most, gpu=gpu))
        try:
            yield pool
        finally:
            pool.close()
    finally:
        if is_new:
            ray.shutdown()


def _join_or_start_cluster(address: str) -> None:
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # disable Ray's usage statistics
        cores = len(psutil.Process().cpu_affinity() or ()) or os.cpu_count()
        quiet |= {"num_cpus": cores, "include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, **quiet)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray's own would exit without a word
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        reason = first_line(error)
        raise UnavailableError(
            f"Ray cannot be used at {address}: {reason.rstrip('.')}.",
            flag=FLAG,
            remedy="Versions of Ray and Python must be the cluster's, and its token must be known here; "
            "see docs/scale.md.",
        ) from error


def _start_actor_in_each_place(config: RunConfig, threads: int, most: int, *, gpu: bool) -> list[Any]:
    import ray

    places = sum(_places(node.get("Resources", {}), threads, gpu) for node in ray.nodes() if node["Alive"])
    if not places:
        wanted = f"{threads} CPUs" + (" and a GPU" if gpu else "")
        remedy = "Give fewer, or add machines."
        raise UsageError(f"no machine has the {wanted} that a worker takes.", flag="--threads", remedy=remedy)
    actor = ray.remote(RunWorker).options(num_cpus=threads, num_gpus=int(gpu), max_restarts=0)
    return [actor.remote(config, Path.cwd()) for _ in range(min(places, most))]


def _places(resources: dict[str, float], threads: int, gpu: bool) -> int:
    by_cpu = int(resources.get("CPU", 0) // threads)
    return min(by_cpu, int(resources.get("GPU", 0))) if gpu else by_cpu


class _Gone(Exception):
    """A worker's process or machine is not there any more."""


def _ready(pending: list[Any], count: int, within_s: float | None = None) -> list[Any]:
    import ray

    try:
        return list(ray.wait(pending, num_returns=count, timeout=within_s)[0])
    except ConnectionError as error:
        raise _cut_off(error) from error


def _result_of(answer: Any) -> Any:
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        return ray.get(answer)
    except RayTaskError as error:
        raise error.cause from None
    except RayError as error:
        raise _Gone(first_line(error)) from error
    except ConnectionError as error:
        raise _cut_off(error) from error


def _cut_off(error: ConnectionError) -> SpsbenchError:
    why = f"the connection to the cluster was lost: {error}."
    return SpsbenchError(why, flag=FLAG, remedy=CONTINUE)

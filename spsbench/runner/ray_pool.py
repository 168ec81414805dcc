"""Workers as Ray's actors, on this machine or on those of a cluster that is running."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil

from spsbench import __version__
from spsbench.cluster import FLAG, LOCAL
from spsbench.config import RunConfig
from spsbench.errors import SpsbenchError, UnavailableError, UsageError
from spsbench.runner.spread import Answer, Block, Free, Lost
from spsbench.runner.worker import Worker

Told = TypeVar("Told")

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
        """The numbers of those that are there."""
        return list(self._actors)

    def give(self, worker: int, block: Block) -> None:
        """See ``Pool.give``."""
        self._pending[self._actors[worker].work.remote(block)] = worker

    def wait(self) -> Answer | Free | Lost:
        """See ``Pool.wait``."""
        if self._to_ask is not None:
            self._pending[self._actors[self._to_ask].work.remote()] = self._to_ask
            self._to_ask = None
        (answer,) = _first(list(self._pending))
        worker = self._pending.pop(answer)
        try:
            found = _got(answer)
        except _Gone as gone:
            self._drop(worker)
            return Lost(worker, str(gone))
        if found is None:
            return Free(worker)
        self._to_ask = worker
        return Answer(worker, *found)

    def ask(self, method: str, *given: Any, within_s: float | None = None) -> dict[int, Any]:
        """What each worker answers to a call; those that are gone are left out."""
        asked = {getattr(actor, method).remote(*given): worker for worker, actor in self._actors.items()}
        ready = _all_of(list(asked), within_s)
        found: dict[int, Any] = {}
        reasons = []
        for answer, worker in asked.items():
            if answer not in ready:
                self._drop(worker)
                reasons.append(f"it did not answer within {within_s:g} s.")
                continue
            try:
                found[worker] = _got(answer)
            except _Gone as gone:
                self._drop(worker)
                reasons.append(str(gone))
        if not found:
            raise UnavailableError(
                f"no worker of {len(asked)} is there: {reasons[0]}",
                flag=FLAG,
                remedy=f"Each machine needs spsbench {__version__} with its libraries, free CPUs and memory.",
            )
        return found

    def close(self) -> None:
        """End all workers."""
        import ray

        for actor in self._actors.values():
            ray.kill(actor)

    def _drop(self, worker: int) -> None:
        """Have nothing more to do with a worker; one that is only cut off must not compute on."""
        import ray

        ray.kill(self._actors.pop(worker))


@contextmanager
def ray_pool(address: str, config: RunConfig, threads: int, most: int, *, gpu: bool) -> Iterator[RayPool]:
    """Workers for a run, as many as there is room for; they end with the block."""
    import ray

    ours = not ray.is_initialized()
    if ours:
        _connect(address)
    try:
        pool = RayPool(_start_actors(config, threads, most, gpu=gpu))
        try:
            yield pool
        finally:
            pool.close()
    finally:
        if ours:
            ray.shutdown()


def _connect(address: str) -> None:
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
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise UnavailableError(
            f"Ray cannot be used at {address}: {reason.rstrip('.')}.",
            flag=FLAG,
            remedy="Versions of Ray and Python must be the cluster's, and its token must be known here; "
            "see docs/clusters.md.",
        ) from error


def _start_actors(config: RunConfig, threads: int, most: int, *, gpu: bool) -> list[Any]:
    """Start an actor for each place that the cluster's machines have."""
    import ray

    places = sum(_places(node.get("Resources", {}), threads, gpu) for node in ray.nodes() if node["Alive"])
    if not places:
        wanted = f"{threads} CPUs" + (" and a GPU" if gpu else "")
        raise UsageError(
            f"no machine has the {wanted} that a worker takes.",
            flag="--threads",
            remedy="Give fewer, or add machines.",
        )
    actor = ray.remote(Worker).options(num_cpus=threads, num_gpus=int(gpu), max_restarts=0)
    return [actor.remote(config, Path.cwd()) for _ in range(min(places, most))]


def _places(resources: dict[str, float], threads: int, gpu: bool) -> int:
    """How many workers fit on a machine."""
    by_cpu = int(resources.get("CPU", 0) // threads)
    return min(by_cpu, int(resources.get("GPU", 0))) if gpu else by_cpu


class _Gone(Exception):
    """A worker's process or machine is not there any more."""


def _first(pending: list[Any]) -> list[Any]:
    import ray

    try:
        return list(ray.wait(pending, num_returns=1)[0])
    except ConnectionError as error:
        raise _cut_off(error) from error


def _all_of(pending: list[Any], within_s: float | None) -> list[Any]:
    import ray

    try:
        return list(ray.wait(pending, num_returns=len(pending), timeout=within_s)[0])
    except ConnectionError as error:
        raise _cut_off(error) from error


def _got(answer: Any) -> Any:
    """What a worker answered."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        return ray.get(answer)
    except RayTaskError as error:
        raise error.cause from None
    except RayError as error:
        raise _Gone(next(iter(str(error).splitlines()), type(error).__name__)) from error
    except ConnectionError as error:
        raise _cut_off(error) from error


def _cut_off(error: ConnectionError) -> SpsbenchError:
    return SpsbenchError(
        f"the connection to the cluster was lost: {error}.",
        flag=FLAG,
        remedy="What was finished is on the disk; continue it with --resume.",
    )

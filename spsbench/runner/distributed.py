"""A run that several workers measure: planned, recorded and finalized here, nothing generated in this
process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from spsbench.base.cluster import FLAG
from spsbench.base.energy import FoundMeter
from spsbench.base.errors import UsageError
from spsbench.base.files import plain
from spsbench.base.records import Prompt, Sample
from spsbench.drafters.registry import drafter_kind
from spsbench.engines.arms import is_peer
from spsbench.models.checkpoint import Checkpoint
from spsbench.models.memory import suitable_threads
from spsbench.models.source import files_of
from spsbench.runner.conditions import (
    AUTO,
    noted,
    recorded_threads,
    require_unchanged,
    settle,
    software_of,
    with_sharing,
)
from spsbench.runner.execution import Outcome, conclude, execute, note_facts, opened
from spsbench.runner.finishing import Scores, unscored
from spsbench.runner.messages import (
    SHARED_COUNTERS,
    LogitsOfWorkers,
    ModelsInWorkers,
    WorkerLost,
    WorkersLate,
)
from spsbench.runner.planning import Plan, Watcher
from spsbench.runner.proof import announce_proof, note_proof
from spsbench.runner.stopping import due_turns, proof_is_due
from spsbench.runner.turns import Turn
from spsbench.runner.worker import (
    START_S,
    Block,
    Completed,
    Introduction,
    Item,
    RayPool,
    blocks_to_measure,
    hand_out,
    ray_pool,
)
from spsbench.stats.conditions import unlike
from spsbench.store import RunStore
from spsbench.store.opening import check_identity, require_usable
from spsbench.store.schema import RUN_FILE
from spsbench.store.summary_types import Conditions
from spsbench.tasks.task import Task

WORKER = "worker"
"""Among a sample's conditions: the place in run.json's list ``workers`` of the one that measured it."""

_OUTPUTS = 32
"""Of a block that is scored, at least; all outputs of an example are in one."""

_UNCOUNTED = FoundMeter(None, None, SHARED_COUNTERS)

_PROOF = ("proof", 0, "")


@dataclass(frozen=True, slots=True)
class WorkerSet:
    """The workers of a run."""

    pool: RayPool
    known: dict[int, Introduction]
    conditions: dict[int, Conditions]

    def done(
        self, blocks: Iterable[Block], watcher: Watcher, free: Sequence[int] | None = None
    ) -> Iterator[Completed]:
        """Have the workers carry out blocks, all of them unless named; see ``hand_out``."""

        def lost(worker: int, reason: str) -> None:
            watcher.warned(WorkerLost(self.known[worker].name, reason))

        return hand_out(blocks, self.pool, self.pool.workers if free is None else free, lost)


def execute_on(
    address: str, plan: Plan, directory: Path, *, resume: bool, watcher: Watcher, allow_mixed: bool = False
) -> Outcome:
    """Carry out ``execute`` on the workers of a cluster; arguments and tokens are the same."""
    require_distributable(plan)
    threads = _threads_of_worker(plan, directory, resume=resume)
    gpu = plan.device.type == "cuda"
    config = plan.config.model_copy(update={"threads": plan.config.threads if gpu else threads})
    most = useful_workers(plan, directory, resume=resume)
    if not most:
        return execute(plan, directory, resume=resume, watcher=watcher, allow_mixed=allow_mixed)
    watcher.loading(f"workers of {threads} threads each")
    with ray_pool(address, config, threads, most, gpu=gpu) as pool:
        workers = _prepare_workers(pool, plan, watcher)
        identity = plan.identity()
        if resume:
            asked = [] if allow_mixed else workers.conditions.values()
            require_unchanged(directory, plan, identity, asked, latest=False)
        with opened(plan, directory, identity, plan.info(), resume=resume) as store:
            missing = due_turns(plan, store)
            if missing or proof_is_due(store):
                _measure_and_prove(plan, store, missing, workers, watcher)
            return conclude(plan, store, watcher, partial(_scores_by_workers, workers, watcher))


def useful_workers(plan: Plan, directory: Path, *, resume: bool) -> int:
    """Return how many workers have something to do; 0 for a run that lacks nothing.

    Known before a cluster is asked for anything, and so is a directory that cannot be used.
    """
    require_usable(directory)
    if not resume or not (directory / RUN_FILE).is_file():
        return len(plan.prompts)
    check_identity(directory, plan.identity())
    with RunStore.open(directory) as store:
        prompts = {turn.prompt.example_id for turn in due_turns(plan, store)}
        if plan.config.score:
            prompts |= {sample.example_id for sample in unscored(plan.task, store)}
        return len(prompts) or int(proof_is_due(store))


def require_distributable(plan: Plan) -> None:
    """Refuse external engines, and what depends on the order of prompts or on several devices."""
    config = plan.config
    split = config.ranks if config.ranks > 1 else None
    for flag, value in (("--device-map", config.device_map), ("--tensor-parallel", split)):
        if value is not None:
            raise UsageError(
                f"{value} is given together with {FLAG}, whose workers hold the target whole, on one device.",
                flag=flag,
                remedy="Leave one of the two out.",
            )
    if config.until is not None:
        why = f"{config.until} ends a run after a prompt, and with {FLAG} several are measured at once."
        raise UsageError(why, flag="--until", remedy=f"Give --limit in its place, or leave {FLAG} out.")
    if any(prompt.conversation is not None for prompt in plan.prompts):
        why = "later turns of a conversation follow from answers that are in the journal, not at a worker."
        raise UsageError(why, flag=FLAG, remedy="Leave it out, or give --turns first.")
    for arm in plan.arms:
        if is_peer(arm):
            raise UsageError(
                f"{arm.engine} is started, stopped and logged beside the run itself, not by its workers.",
                flag=FLAG,
                remedy="Measure external engines with --shard, or in a run without it.",
            )
        if arm.method == "sps" and drafter_kind(arm.drafter.name).outlives(arm.drafter):
            raise UsageError(
                f"{arm.drafter} proposes what earlier prompts taught it, and no worker sees all of them.",
                flag=FLAG,
                remedy="Choose options with which it starts afresh for each sequence, or leave it out.",
            )


def _threads_of_worker(plan: Plan, directory: Path, *, resume: bool) -> int:
    """As given, as the run began with, or by the target's size."""
    if plan.device.type == "cuda":
        return 1
    if plan.config.threads != AUTO:
        return int(plan.config.threads)
    if resume and (directory / RUN_FILE).is_file():
        with RunStore.open(directory) as store:
            if (recorded := recorded_threads(plan, store)) is not None:
                return recorded
    target = plan.source.target
    folder = files_of(target.location, target.commit)
    weights = 0 if folder is None else Checkpoint(folder).parameters
    if not weights:
        why = f"{AUTO} goes by the size of {target.name}, which is not known here before it is loaded."
        raise UsageError(why, flag="--threads", remedy="Give a number.")
    return suitable_threads(weights)


def _prepare_workers(pool: RayPool, plan: Plan, watcher: Watcher) -> WorkerSet:
    """Have the workers introduce themselves, refuse unlike ones, and let them plan the same run."""
    started = len(pool.workers)
    known: dict[int, Introduction] = pool.ask("introduce", within_s=START_S)
    if len(known) < started:
        watcher.warned(WorkersLate(started - len(known), started))
    require_memory_of_machines(plan, known.values())
    here = software_of(plan.info()["environment"], quantised=plan.quantiser is not None)
    require_same_software(here, known.values())
    alone: dict[int, Conditions] = pool.ask("prepare", plain(plan.identity()))
    sharing = Counter(known[worker].machine for worker in alone)
    conditions = {
        worker: with_sharing(conditions_alone, sharing[known[worker].machine])
        for worker, conditions_alone in alone.items()
    }
    source = plan.source
    watcher.loading(str(ModelsInWorkers(source.target.name, source.draft.name, len(alone), len(sharing))))
    for warning in unlike(conditions.values()):
        watcher.warned(str(warning))
    return WorkerSet(pool, known, conditions)


def require_memory_of_machines(plan: Plan, workers: Iterable[Introduction]) -> None:
    """Refuse workers of a machine that together need more memory than it has free; weights alone count."""
    if plan.device.type != "cpu":
        return
    pair_bytes = plan.weights.known
    ordered = sorted(workers, key=lambda worker: worker.machine)
    for machine, here in groupby(ordered, key=lambda worker: worker.machine):
        free = [int(worker.environment["memory_available_bytes"]) for worker in here]
        if len(free) * pair_bytes > min(free):
            raise UsageError(
                f"{len(free)} workers need {len(free) * pair_bytes / 2**30:.3g} GiB for their weights on "
                f"{machine}, which has {min(free) / 2**30:.3g} GiB free.",
                flag="--threads",
                remedy="Give more, so that fewer workers share a machine, or choose smaller models.",
            )


def require_same_software(here: Conditions, workers: Iterable[Introduction]) -> None:
    """Refuse a worker that has another version of anything that tokens or times may depend on."""
    for worker in workers:
        theirs = software_of(worker.environment, quantised="torchao" in here)
        other = {
            name: (theirs.get(name), expected)
            for name, expected in here.items()
            if theirs.get(name) != expected
        }
        if other:
            versions = ", ".join(
                f"{name} {found} where the run has {expected}" for name, (found, expected) in other.items()
            )
            remedy = "Install the same versions on every machine: tokens and times depend on them."
            raise UsageError(f"the worker {worker.name} has {versions}.", flag=FLAG, remedy=remedy)


def _measure_and_prove(
    plan: Plan, store: RunStore, missing: list[Turn], workers: WorkerSet, watcher: Watcher
) -> None:
    facts: dict[int, dict[str, Any]] = workers.pool.ask("load")
    for differing in _differing_logits(workers, facts):
        watcher.warned(differing)
    note_facts(store, facts[min(facts)], watcher)
    if missing:
        _measure_sequences(plan, store, missing, workers, watcher, facts)
    announce_proof(plan, watcher)
    for answer in workers.done([Block("prove", (Item(_PROOF),))], watcher):
        note_proof(store, answer.value, watcher)


def _measure_sequences(
    plan: Plan,
    store: RunStore,
    missing: list[Turn],
    workers: WorkerSet,
    watcher: Watcher,
    facts: Mapping[int, Mapping[str, Any]],
) -> None:
    watcher.started(plan.total, plan.total - len(missing), plan.arms)
    settled: list[Conditions] = [
        {**workers.conditions[worker], "threads": report["models"]["threads"]}
        for worker, report in facts.items()
    ]
    condition = dict(zip(facts, settle(store, settled), strict=True))
    places = _Places(store, workers, condition)
    store.note(proof=None, energy=noted(_UNCOUNTED, store.run_info()))
    for worker, _, sample in workers.done(blocks_to_measure(missing), watcher):
        sample.condition = condition[worker]
        sample.conditions[WORKER] = float(places.of(worker))
        store.append(sample)
        watcher.finished(sample)
    store.note(peak_memory_bytes=max(workers.pool.ask("peak_memory_bytes").values()))


class _Places:
    """Where in run.json's ``workers`` each worker is, from its first sample on."""

    def __init__(self, store: RunStore, workers: WorkerSet, condition: Mapping[int, int]) -> None:
        self._store = store
        self._workers = workers
        self._condition = condition
        self._noted = list(store.run_info().get("workers") or [])
        self._session = 1 + max((entry.get("session", 1) for entry in self._noted), default=0)
        self._place: dict[int, int] = {}

    def of(self, worker: int) -> int:
        """Return the worker's place, which is recorded if it is new."""
        if worker not in self._place:
            self._place[worker] = len(self._noted)
            known = self._workers.known[worker]
            entry = {
                "session": self._session,
                "machine": known.machine,
                "process": known.process,
                "condition": self._condition[worker],
                "environment": known.environment,
            }
            self._noted.append(entry)
            self._store.note(workers=self._noted)
        return self._place[worker]


def _differing_logits(
    workers: WorkerSet, facts: Mapping[int, Mapping[str, Any]]
) -> Iterator[LogitsOfWorkers]:
    for role in ("target", "draft"):
        bits = {worker: report["models"][role]["self_test"].get("bits") for worker, report in facts.items()}
        if len(set(bits.values())) > 1:
            first, *others = bits
            other = next(worker for worker in others if bits[worker] != bits[first])
            yield LogitsOfWorkers(role, workers.known[first].name, workers.known[other].name)


def _scores_by_workers(
    workers: WorkerSet, watcher: Watcher, task: Task, samples: Sequence[Sample], prompts: Mapping[str, Prompt]
) -> Scores:
    """A ``Scorer`` by one worker of each machine: judging programs takes all of its cores."""
    one_each = {workers.known[worker].machine: worker for worker in workers.pool.workers}
    for answer in workers.done(blocks_to_score(samples, prompts), watcher, list(one_each.values())):
        yield answer.key, answer.value


def blocks_to_score(samples: Sequence[Sample], prompts: Mapping[str, Prompt]) -> list[Block]:
    """Return blocks of outputs to be scored; those of an example stay together, being judged alike."""
    ordered = sorted(samples, key=lambda sample: sample.example_id)
    blocks, items = [], list[Item]()
    for example_id, of_example in groupby(ordered, key=lambda sample: sample.example_id):
        items += [Item(sample.key, (prompts[example_id], sample.generation.text)) for sample in of_example]
        if len(items) >= _OUTPUTS:
            blocks.append(Block("score", tuple(items)))
            items = []
    return [*blocks, Block("score", tuple(items))] if items else blocks

"""A run that several workers measure: planned, kept and concluded here, nothing generated in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from spsbench.cluster import FLAG
from spsbench.drafters.registry import drafter_kind
from spsbench.energy import FoundMeter
from spsbench.errors import UsageError
from spsbench.models.checkpoint import Checkpoint
from spsbench.models.memory import suitable_threads
from spsbench.models.source import files_of
from spsbench.records import Prompt, Sample
from spsbench.runner.arms import is_peer
from spsbench.runner.conditions import (
    AUTO,
    recorded_threads,
    require_known,
    settle_all,
    software_of,
    with_sharing,
)
from spsbench.runner.energy import noted
from spsbench.runner.execute import Outcome, Watcher, due_turns, note_facts
from spsbench.runner.finalize import Scores, finalize, score
from spsbench.runner.plan import Plan
from spsbench.runner.proof import announce_proof, note_proof
from spsbench.runner.ray_pool import START_S, RayPool, ray_pool
from spsbench.runner.schedule import Turn
from spsbench.runner.spread import Block, Item, hand_out, measuring
from spsbench.runner.worker import Introduction
from spsbench.stats.workers import unlike
from spsbench.store import RunStore, plain
from spsbench.store.opening import RUN_FILE
from spsbench.summary_types import Conditions
from spsbench.tasks.task import Task

WORKER = "worker"
"""Among a sample's conditions: the place in run.json's list ``workers`` of the one that measured it."""

_OUTPUTS = 32
"""Of a block that is scored, at least; all outputs of an example are in one."""

_UNCOUNTED = FoundMeter(None, None, "workers share machines, whose meters do not tell them apart")

_PROOF = ("proof", 0, "")


@dataclass(frozen=True, slots=True)
class Staff:
    """The workers of a run.

    Attributes:
        pool: by which they are reached.
        known: who they are, by their numbers in the pool.
        conditions: that each measures under, how many share its machine included.
    """

    pool: RayPool
    known: dict[int, Introduction]
    conditions: dict[int, Conditions]

    @property
    def one_a_machine(self) -> list[int]:
        """A worker of each machine that has any left."""
        return list({self.known[worker].machine: worker for worker in self.pool.workers}.values())


def execute_on(
    address: str, plan: Plan, directory: Path, *, resume: bool, watcher: Watcher, allow_mixed: bool = False
) -> Outcome:
    """``execute`` on the workers of a cluster; the arguments are those, and tokens are the same.

    Args:
        address: of ``cluster.require_cluster``.

    Raises:
        UsageError: as ``execute``; also a run that cannot be spread, and a worker of other versions.
        UnavailableError: no worker is there, or lacks data or a model.
        SpsbenchError: all workers were lost; what was finished is on the disk.
    """
    require_spreadable(plan)
    threads = _threads(plan, directory, resume=resume)
    gpu = plan.device.type == "cuda"
    config = plan.config.model_copy(update={"threads": plan.config.threads if gpu else threads})
    watcher.loading(f"workers of {threads} threads each")
    with ray_pool(address, config, threads, len(plan.prompts), gpu=gpu) as pool:
        staff = _prepared(pool, plan, watcher)
        if resume and not allow_mixed:
            require_known(directory, plan, partial(due_turns, plan), staff.conditions.values())
        opener = RunStore.open_or_create if resume else RunStore.create
        settings, info = plan.config.model_dump(mode="json"), plan.info()
        with opener(
            directory, identity=plan.identity(), config=settings, info=info, prompts=plan.prompts
        ) as store:
            missing = due_turns(plan, store)
            if missing or store.run_info().get("proof", "none was begun") is None:
                _generate(plan, store, missing, staff, watcher)
            if plan.config.score:
                score(plan.task, store, watcher.scoring, scorer=partial(_scores, staff, watcher))
            summary = finalize(store, plan.source.tokenizer, plan.task)
    return Outcome(directory, summary, bool(summary["complete"]))


def require_spreadable(plan: Plan) -> None:
    """Refuse what depends on the order in which prompts are measured, and engines that are no part of us.

    Raises:
        UsageError: naming the flag.
    """
    for flag, value in (("--until", plan.config.until), ("--budget", plan.config.budget_s)):
        if value is not None:
            raise UsageError(
                f"{value} ends a run behind a prompt, and with {FLAG} several are measured at once.",
                flag=flag,
                remedy=f"Give --limit in its place, or leave {FLAG} out.",
            )
    for arm in plan.arms:
        if is_peer(arm):
            raise UsageError(
                f"{arm.engine} is started, stopped and logged beside the run itself, not by its workers.",
                flag=FLAG,
                remedy="Measure engines of others with --shard, or in a run without it.",
            )
        if arm.method == "sps" and drafter_kind(arm.drafter.name).outlives(arm.drafter):
            raise UsageError(
                f"{arm.drafter} proposes what earlier prompts taught it, and no worker sees all of them.",
                flag=FLAG,
                remedy="Choose options with which it begins anew, or leave it out.",
            )


def _threads(plan: Plan, directory: Path, *, resume: bool) -> int:
    """CPU threads of a worker: as given, as the run began with, or by the target's size.

    Raises:
        UsageError: the size is not known before the target is loaded.
    """
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
        raise UsageError(
            f"{AUTO} goes by the size of {target.name}, which is not known here before it is loaded.",
            flag="--threads",
            remedy="Give a number.",
        )
    return suitable_threads(weights)


def _prepared(pool: RayPool, plan: Plan, watcher: Watcher) -> Staff:
    """Have the workers introduce themselves, refuse unlike ones, and let them plan the same run.

    Raises:
        UsageError: one has other versions, or would measure something else.
        UnavailableError: one lacks data or a model; or none is left.
    """
    hired = len(pool.workers)
    known: dict[int, Introduction] = pool.ask("introduce", within_s=START_S)
    if len(known) < hired:
        watcher.warned(f"Of {hired} workers {hired - len(known)} did not begin; the others measure.")
    here = software_of(plan.info()["environment"])
    require_same_software(here, known.values())
    alone: dict[int, Conditions] = pool.ask("prepare", plain(plan.identity()))
    sharing = Counter(known[worker].machine for worker in alone)
    conditions = {
        worker: with_sharing(found, sharing[known[worker].machine]) for worker, found in alone.items()
    }
    watcher.loading(
        f"{plan.source.target.name} and {plan.source.draft.name} in {len(alone)} "
        f"{'worker' if len(alone) == 1 else 'workers'} on {len(sharing)} "
        f"{'machine' if len(sharing) == 1 else 'machines'}"
    )
    for sentence in unlike(conditions.values()):
        watcher.warned(sentence)
    return Staff(pool, known, conditions)


def require_same_software(here: Conditions, workers: Iterable[Introduction]) -> None:
    """Refuse a worker that has another version of anything that tokens or times may depend on.

    Raises:
        UsageError: naming worker, package and both versions.
    """
    for worker in workers:
        theirs = software_of(worker.environment)
        other = {name: (theirs.get(name), ours) for name, ours in here.items() if theirs.get(name) != ours}
        if other:
            told = ", ".join(f"{name} {his} where the run has {ours}" for name, (his, ours) in other.items())
            raise UsageError(
                f"the worker {worker.name} has {told}.",
                flag=FLAG,
                remedy="Install the same versions on every machine: tokens and times depend on them.",
            )


def _generate(plan: Plan, store: RunStore, missing: list[Turn], staff: Staff, watcher: Watcher) -> None:
    """Have every missing sequence written, each into the store as soon as it is there, and then the proof."""
    facts = staff.pool.ask("load")
    for sentence in _computing_otherwise(staff, facts):
        watcher.warned(sentence)
    told = facts[min(facts)]
    for arm, reason in told["engine_fallbacks"].items():
        watcher.warned(f"{arm} runs with the engine eager: {reason}.")
    note_facts(store, told)
    if missing:
        _measure(plan, store, missing, staff, watcher, facts)
    announce_proof(plan, watcher)
    one = Block("prove", (Item(_PROOF),))
    for answer in hand_out([one], staff.pool, staff.pool.workers, partial(_say_lost, staff, watcher)):
        note_proof(store, answer.value, watcher)


def _measure(
    plan: Plan,
    store: RunStore,
    missing: list[Turn],
    staff: Staff,
    watcher: Watcher,
    facts: Mapping[int, Mapping[str, Any]],
) -> None:
    watcher.started(plan.total, plan.total - len(missing), plan.arms)
    settled: list[Conditions] = [
        {**staff.conditions[worker], "threads": told["models"]["threads"]} for worker, told in facts.items()
    ]
    condition = dict(zip(facts, settle_all(store, settled), strict=True))
    place = _note_workers(store, staff, condition)
    store.note(proof=None, energy=noted(_UNCOUNTED, store.run_info()))
    lost = partial(_say_lost, staff, watcher)
    for worker, _, sample in hand_out(measuring(missing), staff.pool, staff.pool.workers, lost):
        sample.condition = condition[worker]
        sample.conditions[WORKER] = float(place[worker])
        store.append(sample)
        watcher.finished(sample)
    store.note(peak_memory_bytes=max(staff.pool.ask("peak_memory_bytes").values()))


def _note_workers(store: RunStore, staff: Staff, condition: Mapping[int, int]) -> dict[int, int]:
    """Put the workers into run.json behind those from before; the place of each in its list."""
    before = list(store.run_info().get("workers") or [])
    place = {worker: len(before) + index for index, worker in enumerate(condition)}
    told = [
        {
            "machine": staff.known[worker].machine,
            "process": staff.known[worker].process,
            "condition": index,
            "environment": staff.known[worker].environment,
        }
        for worker, index in condition.items()
    ]
    store.note(workers=[*before, *told])
    return place


def _computing_otherwise(staff: Staff, facts: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    """A sentence for each role whose logits are not the same bits in all workers."""
    for role in ("target", "draft"):
        bits = {worker: told["models"][role]["self_test"].get("bits") for worker, told in facts.items()}
        if len(set(bits.values())) > 1:
            first, *others = bits
            other = next(worker for worker in others if bits[worker] != bits[first])
            yield (
                f"the {role}'s logits are not the same bits in {staff.known[first].name} and in "
                f"{staff.known[other].name}: where two tokens are all but equal, texts depend on the writer."
            )


def _scores(
    staff: Staff, watcher: Watcher, task: Task, samples: Sequence[Sample], prompts: Mapping[str, Prompt]
) -> Scores:
    """A ``Scorer`` by one worker of each machine: judging programs takes all of a machine's cores."""
    lost = partial(_say_lost, staff, watcher)
    for answer in hand_out(scoring(samples, prompts), staff.pool, staff.one_a_machine, lost):
        yield answer.key, answer.value


def scoring(samples: Sequence[Sample], prompts: Mapping[str, Prompt]) -> list[Block]:
    """Blocks of outputs to be scored; those of an example stay together, since they are judged alike."""
    ordered = sorted(samples, key=lambda sample: sample.example_id)
    blocks, items = [], list[Item]()
    for example_id, own in groupby(ordered, key=lambda sample: sample.example_id):
        items += [Item(sample.key, (prompts[example_id], sample.generation.text)) for sample in own]
        if len(items) >= _OUTPUTS:
            blocks.append(Block("score", tuple(items)))
            items = []
    return [*blocks, Block("score", tuple(items))] if items else blocks


def _say_lost(staff: Staff, watcher: Watcher, worker: int, reason: str) -> None:
    name = staff.known[worker].name
    watcher.warned(f"The worker {name} was lost: {reason} What it had begun is done elsewhere.")

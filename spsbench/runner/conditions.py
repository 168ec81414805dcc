"""The conditions of a measurement besides the run's identity: recorded per sequence, never mixed silently.

Threads, backends, versions and hardware may change tokens (in the last bits of a logit) and do change
times. A run that goes on under others would pool the speeds of two configurations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import torch

from spsbench.base.energy import EnergyMeter, FoundMeter, find_nvml, find_rapl
from spsbench.base.errors import UsageError, as_typed
from spsbench.base.files import plain
from spsbench.config import RunConfig, resolve
from spsbench.models.device import Gpu, uuid_of
from spsbench.models.pair import Pair
from spsbench.runner.messages import ONE_DEVICE_COUNTED, NoEnergyCounter, OneBoardCounted
from spsbench.runner.planning import Plan
from spsbench.runner.stopping import due_turns, proof_is_due
from spsbench.runner.turns import all_turns
from spsbench.stats.latency import ENERGY
from spsbench.store import RunStore, differences
from spsbench.store.opening import CONFIG_FILE, check_identity
from spsbench.store.schema import RUN_FILE
from spsbench.store.summary_types import Conditions

AUTO = "auto"
FLAG = "--allow-mixed"
SHARED: Literal["workers_per_machine"] = "workers_per_machine"


_OF_GPU = {
    "gpu_uuid": "uuid",
    "gpu_mig": "mig",
    "gpu_ecc": "ecc",
    "gpu_power_limit_w": "power_limit_w",
    "gpu_driver": "driver",
    "cuda": "cuda",
    "cudnn": "cudnn",
    "tf32": "tf32_matmul",
    "matmul_precision": "matmul_precision",
}
"""Conditions by what ``gpu_facts`` calls them."""


def conditions_of(plan: Plan, environment: Mapping[str, Any], gpu: Gpu | None) -> Conditions:
    """Return the conditions that a plan would be measured under now; ``threads`` as asked for, perhaps
    ``auto``.

    Of the machine's GPUs the one that computes is a condition.
    """
    of_gpu = {} if gpu is None else {name: gpu.facts[fact] for name, fact in _OF_GPU.items()}
    conditions: Conditions = {
        "threads": plan.config.threads,
        "backend": plan.backend,
        "cpu": environment["cpu"]["model"],
        "cores": environment["cpu"]["usable_threads"],
        "gpus": [] if gpu is None else [gpu.facts["name"]],
        **cast("Conditions", of_gpu),
        **software_of(environment, quantised=plan.quantiser is not None),
    }
    if kernels := plan.layer_kernels:
        conditions["layer_kernels"] = kernels
    if plan.placement is not None:
        conditions["device_map"] = plan.placement.content
    return conditions


def software_of(environment: Mapping[str, Any], *, quantised: bool) -> Conditions:
    """Return the conditions that may be the same on all machines: every version that counts."""
    libraries = environment["libraries"]
    git = environment["git"] or {}
    return {
        "python": environment["python"],
        "spsbench": environment["spsbench"],
        "commit": git.get("commit"),
        "torch": libraries.get("torch"),
        "transformers": libraries.get("transformers"),
        "tokenizers": libraries.get("tokenizers"),
        "numpy": libraries.get("numpy"),
        "onnxruntime": libraries.get("onnxruntime"),
        **(Conditions(torchao=libraries.get("torchao")) if quantised else {}),
    }


def require_unchanged(
    directory: Path, plan: Plan, identity: dict[str, Any], workers: Iterable[Conditions], *, latest: bool
) -> None:
    """Refuse to continue another run, or one under other conditions than its last, or than any of its own.

    Nothing is written, so that a refused attempt leaves the run as it was. A directory without a run is not
    this function's business. Fewer prompts or samples than the run has are refused, and of a run that lacks
    nothing other settings: they would change what its folder says of the measurement, and nothing else.
    """
    if not (directory / RUN_FILE).is_file():
        return
    info = check_identity(directory, identity)
    with RunStore.open(directory) as store:
        _refuse_leaving_out_measured(plan, store)
        if not store.done():
            return
        if not due_turns(plan, store):
            if not proof_is_due(store):
                _refuse_changes_to_complete_run(directory, plan.config)
            return
    known: list[Conditions] = info.get("conditions") or [{}]
    known = known[-1:] if latest else known
    for now in workers:
        changes = (differences(before, plain(_with_recorded_auto(now, before))) for before in known)
        _refuse(directory, min(changes, key=len))


OF_EXTENT = ("limit", "samples", "ids", "turns")
"""Settings that say what is asked of the task, and are no part of a run's identity: it may be extended."""


def _refuse_leaving_out_measured(plan: Plan, store: RunStore) -> None:
    left_out = (store.done() | store.failed()) - {turn.key for turn in all_turns(plan)}
    if not left_out:
        return
    before = resolve({}, store.directory / CONFIG_FILE)
    for name in OF_EXTENT:
        was, now = (as_typed(getattr(config, name)) for config in (before, plan.config))
        if was != now:
            raise UsageError(
                f"{store.directory} has {len(left_out)} sequences that {now} leaves out; it was {was}.",
                flag=f"--{RunConfig.model_fields[name].title or name}",
                remedy="Leave it out, or measure with another --out.",
            )


OF_MEASURING = ("device", "threads", "backend", "device_map", "trace", "warmup")
"""Settings that say how a run is measured, and are no part of its identity."""


def _refuse_changes_to_complete_run(directory: Path, asked: RunConfig) -> None:
    before = resolve({}, directory / CONFIG_FILE)
    for name in OF_MEASURING:
        was, now = (as_typed(getattr(config, name)) for config in (before, asked))
        if was != now:
            raise UsageError(
                f"{directory} is complete, and {name} of a completed run cannot change: it was {was}.",
                flag=f"--{name.replace('_', '-')}" if name in _TYPED else f"--set {name}",
                remedy=f"Leave {now} out, or measure again with another --out.",
            )


_TYPED = OF_MEASURING[:4]
"""Those that have an option of their own."""


def with_engines(store: RunStore, now: Conditions, versions: Mapping[str, str]) -> Conditions:
    """Add the versions of external engines; those that did not start keep the recorded one."""
    known = _latest(store).get("engines", {}) | dict(versions)
    return {**now, "engines": known} if known else now


def require_same_engines(store: RunStore, now: Conditions) -> None:
    """Refuse to continue a run with another version of an engine than measured before."""
    before = _latest(store).get("engines", {})
    here = now.get("engines", {})
    if store.done():
        _refuse(store.directory, differences(before, {name: here[name] for name in before}))


def _refuse(directory: Path, lines: Sequence[str]) -> None:
    if lines:
        raise UsageError(
            "\n".join([f"{directory} was measured under other conditions (its value -> yours):", *lines, ""]),
            flag=FLAG,
            remedy=f"Use the same, or name another --out. {FLAG} continues all the same: the report then "
            "shows the times under each and pools none.",
        )


def computing_otherwise(store: RunStore, pair: Pair, now: Conditions) -> list[str]:
    """Return the roles whose model gives other bits than in the process that measured last.

    There are none unless the conditions are equal.
    """
    info = store.run_info()
    before = info.get("models")
    last = (info.get("conditions") or [None])[-1]
    if before is None or last is None:
        return []
    beside: Conditions = {"threads": 0, "engines": {}}  # neither is known yet
    if differences(last | beside, comparable(now, last) | beside):
        return []
    self_tests = {
        role: (before[role]["self_test"], pair.info[role]["self_test"]) for role in ("target", "draft")
    }
    return [role for role, (then, here) in self_tests.items() if then.get("bits") not in (None, here["bits"])]


def recorded_threads(plan: Plan, store: RunStore) -> int | None:
    """Return what ``auto`` was resolved to when the run began; None if not yet, or if a number is given."""
    if plan.config.threads != AUTO or not store.done():
        return None
    recorded = _latest(store).get("threads")
    return None if recorded is None else int(recorded)


def settle(store: RunStore, workers: Iterable[Conditions]) -> list[int]:
    """Record the conditions that workers measure under from now on; return their places in the run's list."""
    known: list[Conditions] = list(store.run_info().get("conditions") or []) if store.done() else []
    if store.done() and not known:
        known = [{}]  # a run of a version that kept none
    places = []
    for reported in map(plain, workers):
        engines = reported.get("engines", {})
        same = (
            place
            for place, other in enumerate(known)
            if not differences(other | {"engines": {}}, comparable(reported, other) | {"engines": {}})
            # and no external engine has two versions
            and not any(engines.get(name, v) != v for name, v in other.get("engines", {}).items())
        )
        place = next(same, len(known))
        before = known[place] if place < len(known) else reported
        # An engine that could not be started before has measured nothing under other conditions.
        known[place : place + 1] = [comparable(reported, before)]
        places.append(place)
    store.note(conditions=known)
    return places


def with_sharing(now: Conditions, workers: int) -> Conditions:
    """Return the conditions of a process beside which others of the same run measure on its machine."""
    alone: Conditions = {**now}
    alone.pop(SHARED, None)
    return {**alone, SHARED: workers} if workers > 1 else alone


def comparable(now: Conditions, before: Conditions) -> Conditions:
    """Return the conditions now, with the recorded value of a GPU fact that either side does not know."""
    result, recorded = dict[str, Any](now), dict[str, Any](before)
    for name in _OF_GPU:
        if result.get(name) is None or recorded.get(name) is None:
            result.pop(name, None)
            if name in recorded:
                result[name] = recorded[name]
    return cast("Conditions", result)


def _with_recorded_auto(now: Conditions, before: Conditions) -> Conditions:
    """The conditions now with ``auto`` as it was resolved when the run began.

    External engines report their versions when they are started, see ``require_same_engines``. How many
    workers share a machine is not a reason to refuse: a run goes on with others or without, its times apart.
    """
    now = comparable(with_sharing(now, before.get(SHARED, 1)), before)
    if "engines" in before:
        now = {**now, "engines": before["engines"]}
    if now["threads"] == AUTO and "threads" in before:
        return {**now, "threads": before["threads"]}
    return now


def _latest(store: RunStore) -> Conditions:
    known: list[Conditions] = store.run_info().get("conditions") or [{}]
    return known[-1]


def meter_of(device: torch.device, processes: int = 1, *, placed: bool = False) -> FoundMeter:
    """Return the energy meter of a device: a GPU's own board, a CPU's packages and their memory."""
    if placed:
        return FoundMeter(None, None, ONE_DEVICE_COUNTED)
    if device.type == "cpu":
        return find_rapl()
    if processes > 1:
        return FoundMeter(None, None, str(OneBoardCounted(processes)))
    if device.type != "cuda":
        return FoundMeter(None, None, str(NoEnergyCounter(device.type)))
    uuid = uuid_of(device)
    return find_nvml(None if uuid is None else f"GPU-{uuid}")


def noted(meter: FoundMeter, info: Mapping[str, Any]) -> dict[str, Any]:
    """Return for ``run.json`` what counts now, or what counted when the run began and does no longer."""
    before: dict[str, Any] = info.get("energy") or {}
    return before if meter.meter is None and before.get("source") else meter.record()


@contextmanager
def metered(meter: EnergyMeter | None) -> Iterator[dict[str, float]]:
    """Yield a dict that has the block's joules when it ends, under the name that a sequence keeps them by.

    The next answer of a batch takes what all rows drew since the last one: only their sum means something.
    """
    drawn: dict[str, float] = {}
    before = None if meter is None else meter.joules()
    yield drawn
    after = None if meter is None else meter.joules()
    if before is not None and after is not None and after >= before:
        drawn[ENERGY] = after - before

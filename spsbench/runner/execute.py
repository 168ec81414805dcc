"""Carry out a plan: load, warm up, measure arm beside arm, score, conclude."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from spsbench.engines.engine import Engine
from spsbench.environment import load_1m, stolen_s
from spsbench.models.bandwidth import cache_bytes, measured_bandwidth
from spsbench.models.packing import choose_modes
from spsbench.models.pair import Pair, load_pair
from spsbench.models.threads import fastest_threads
from spsbench.records import Arm, Generation, Request, Sample
from spsbench.runner.backends import EAGER, GRAPHED, Backends
from spsbench.runner.conclude import conclude, peak_memory_bytes, score
from spsbench.runner.plan import Plan
from spsbench.runner.proof import drawn_by_lot, is_cheap, prove, read_again
from spsbench.runner.schedule import Turn, turns
from spsbench.store import RunStore

_MODES = {GRAPHED: "graphs"}  # others than ours run the stock model


class Watcher(Protocol):
    """Whoever wants to know how far a run is."""

    def loading(self, what: str) -> None:
        """Something slow begins, e.g. loading a model."""
        ...

    def warned(self, message: str) -> None:
        """Something is not as it was asked for."""
        ...

    def started(self, total: int, done: int) -> None:
        """Measuring begins; ``done`` of ``total`` sequences are there from before."""
        ...

    def finished(self, sample: Sample) -> None:
        """A sequence is done and on the disk."""
        ...

    def proving(self, total: int) -> None:
        """At most ``total`` sequences are drawn for the proof of losslessness alone."""
        ...

    def scoring(self, total: int) -> None:
        """Scoring of ``total`` sequences begins."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to.

    Attributes:
        directory: where everything lies.
        summary: the content of ``summary.json``.
        complete: whether every planned sequence is there and none failed.
    """

    directory: Path
    summary: dict[str, Any]
    complete: bool


def execute(plan: Plan, directory: Path, *, resume: bool, watcher: Watcher) -> Outcome:
    """Measure what is still missing of a plan in a run directory.

    Args:
        plan: the run.
        directory: made if need be.
        resume: continue a run that is there already, if it is the same.
        watcher: told of the progress.

    Raises:
        UsageError: the directory is foreign, in use, or holds another run.
        KeyboardInterrupt: as it came; what was finished is on the disk.
    """
    opener = RunStore.open_or_create if resume else RunStore.create
    settings = plan.config.model_dump(mode="json")
    with opener(
        directory, identity=plan.identity(), config=settings, info=plan.info(), prompts=plan.prompts
    ) as store:
        missing = [turn for turn in _turns(plan) if turn.key not in store.done()]
        if missing or store.run_info().get("proof", "none was begun") is None:
            _generate(plan, store, missing, watcher)
        if plan.config.score:
            score(plan.task, store, watcher.scoring)
        summary = conclude(store, plan.source.tokenizer)
    return Outcome(directory, summary, bool(summary["complete"]))


def _generate(plan: Plan, store: RunStore, missing: list[Turn], watcher: Watcher) -> None:
    """Load the pair and write every missing sequence into the store, each as soon as it is there."""
    watcher.loading(f"{plan.source.target.name} and {plan.source.draft.name}")
    pair = load(plan, keep_plain=any(arm.engine != EAGER for arm in plan.arms))
    backends = Backends(pair, plan.slots)
    engines = backends.all(plan.arms)
    for arm, reason in backends.fallbacks.items():
        watcher.warned(f"{arm} runs with the engine eager: {reason}.")
    modes = _modes(engines, pair)
    store.note(models=pair.info, **modes, **_memory(plan.device), engine_fallbacks=backends.fallbacks)
    began_s = time.perf_counter()
    if missing:
        _measure_all(plan, store, engines, missing, pair, watcher)
    prove(plan, store, pair, backends, time.perf_counter() - began_s, watcher)


def _measure_all(
    plan: Plan,
    store: RunStore,
    engines: dict[Arm, Engine],
    missing: list[Turn],
    pair: Pair,
    watcher: Watcher,
) -> None:
    """Warm up, and write every missing sequence into the store."""
    watcher.started(plan.total, plan.total - len(missing))
    warmed = _warm_up(plan, engines, missing[0])
    store.note(proof=None, reread=_reread(store, warmed, pair))
    began_s, stolen_before_s = time.perf_counter(), stolen_s()
    for sample in measure(plan, engines, missing, pair, store.run_info()["reread"] == "all"):
        store.append(sample)
        watcher.finished(sample)
    share = _share(stolen_before_s, stolen_s(), time.perf_counter() - began_s)
    store.note(peak_memory_bytes=peak_memory_bytes(), stolen_share=share)


def _share(before_s: float | None, after_s: float | None, wall_s: float) -> float | None:
    """How much of one CPU others had while it was wanted here; None where the machine does not tell."""
    return None if before_s is None or after_s is None else (after_s - before_s) / wall_s


def load(plan: Plan, *, keep_plain: bool = True) -> Pair:
    """Load the pair of a plan, set the number of CPU threads that suits it, choose how it multiplies.

    Args:
        plan: what will run.
        keep_plain: see ``choose_modes``.
    """
    pair = load_pair(plan.source, plan.config.model_dtype, plan.device)
    pair.info["threads"] = _set_threads(plan, pair)
    ks = [arm.k for arm in plan.arms]
    pair.info["target"]["modes"] = choose_modes(pair.target, [1, *(k + 1 for k in ks)], keep_plain=keep_plain)
    pair.info["draft"]["modes"] = choose_modes(pair.draft, [1, 2], keep_plain=keep_plain)
    return pair


def _modes(engines: Mapping[Arm, Engine], pair: Pair) -> dict[str, dict[str, str]]:
    """How each arm multiplies: for the target by its rows a forward, for the draft by one row."""
    target, draft = pair.info["target"]["modes"], pair.info["draft"]["modes"]
    own = {"ars": target["1"], "draft": draft["1"]}
    ours = [arm for arm, engine in engines.items() if engine.name == EAGER]
    stock = {arm.name: _MODES.get(engine.name, "stock") for arm, engine in engines.items() if arm not in ours}
    return {
        "target_mode": {arm.name: own.get(arm.method) or target[str(arm.k + 1)] for arm in ours} | stock,
        "draft_mode": {arm.name: draft["1"] for arm in ours if arm.method == "sps"},
    }


def _memory(device: torch.device) -> dict[str, float | None]:
    """What bounds a forward from below: how fast memory is read, and what never leaves the cache."""
    return {"bandwidth_bytes_per_s": measured_bandwidth(device), "cache_bytes": cache_bytes(device)}


def _reread(store: RunStore, warmed: list[tuple[Turn, Generation]], pair: Pair) -> str:
    """Whether all outputs are read again or those that are drawn; a continued run keeps to it."""
    known = store.run_info().get("reread")
    return str(known or ("all" if is_cheap(warmed, pair) else "drawn"))


def measure(
    plan: Plan, engines: dict[Arm, Engine], missing: list[Turn], pair: Pair, everything: bool
) -> Iterator[Sample]:
    """Generate the missing sequences, one sample each; a failure is a recorded failure.

    Those that are drawn for it, or all, are read again by an uncached forward, between two sequences.
    """
    traced = set(plan.everyone[: plan.config.trace])
    witnessed = drawn_by_lot(plan)
    for turn in missing:
        trace = turn.prompt.example_id in traced and turn.sample_index == 0
        engine = engines[turn.arm]
        try:
            generation = engine.generate(_request(plan, turn, trace))
            if everything or (turn.prompt.example_id in witnessed and turn.sample_index == 0):
                read_again(turn.arm, turn.prompt, generation, turn.seed, pair)
            yield _sample(turn, engine, generation, None)
        except (RuntimeError, ValueError, IndexError, ArithmeticError, MemoryError) as error:
            failed = Generation([], "", None, 0.0, 0.0, "error")
            reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
            yield _sample(turn, engine, failed, reason)


def _turns(plan: Plan) -> Iterator[Turn]:
    return turns(plan.prompts, plan.samples, plan.arms, plan.config.seed)


def _request(plan: Plan, turn: Turn, trace: bool) -> Request:
    return Request(
        prompt_ids=turn.prompt.ids,
        max_new_tokens=plan.max_new_tokens,
        stop=plan.stop,
        sampling=turn.arm.sampling,
        seed=turn.seed,
        fixed_length=plan.config.fixed_length,
        trace=trace,
    )


def _sample(turn: Turn, engine: Engine, generation: Generation, error: str | None) -> Sample:
    return Sample(
        example_id=turn.prompt.example_id,
        sample_index=turn.sample_index,
        arm=turn.arm.name,
        method=turn.arm.method,
        engine=engine.name,
        sampling=turn.arm.sampling_name,
        k=turn.arm.k,
        prompt_tokens=len(turn.prompt.ids),
        generation=generation,
        order=turn.order,
        conditions={"load_1m": load_1m()},
        error=error,
    )


def _warm_up(plan: Plan, engines: dict[Arm, Engine], first: Turn) -> list[tuple[Turn, Generation]]:
    """One full sequence an arm, thrown away: the first of a shape is slow and no arm should pay it."""
    if not plan.config.warmup:
        return []
    asked = [Turn(first.prompt, first.sample_index, arm, 0, first.seed) for arm in engines]
    return [(turn, engines[turn.arm].generate(_request(plan, turn, trace=False))) for turn in asked]


def _set_threads(plan: Plan, pair: Pair) -> int:
    """Use as many CPU threads as asked for, or as are fastest for one row of the target."""
    wanted = plan.config.threads
    if plan.device.type == "cpu":
        torch.set_num_threads(fastest_threads(pair.target) if wanted == "auto" else wanted)
    return torch.get_num_threads()

"""Carry out a plan: load, warm up, measure arms in turns, score, finalize."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from spsbench.base.axes import EAGER
from spsbench.base.energy import EnergyMeter
from spsbench.base.environment import load_1m, taken, taken_since
from spsbench.base.errors import UnavailableError
from spsbench.base.other_layers import slow_kernels, slower_than_asked
from spsbench.base.protocol import PeerError
from spsbench.base.records import ELAPSED, GRAPHS, SPENT, Arm, Prompt, Sample
from spsbench.drafters.checked import DrafterFault
from spsbench.engines.arms import GRAPHED, is_peer
from spsbench.engines.hf import ASSISTED
from spsbench.engines.local import Engine, torch_threads
from spsbench.models.device import Gpu, computing_by, title
from spsbench.models.faults import settle
from spsbench.models.memory import (
    cache_bytes,
    cache_shared,
    device_peak,
    forget_device_peak,
    measured_bandwidth,
    threads_by_size,
)
from spsbench.models.pair import Pair
from spsbench.models.recommended import ENSEMBLE
from spsbench.models.torch_lm import TorchLM
from spsbench.parts.external.engine import PeerEngine
from spsbench.runner import conditions, messages, stopping
from spsbench.runner.dialogue import Dialogues, Unasked
from spsbench.runner.engines import FAILURES, Attempt, answers, reason_of
from spsbench.runner.finishing import Scorer, finalize, peak_memory_bytes, score, score_here
from spsbench.runner.peers import LOGS, PeerArms, require_any
from spsbench.runner.planning import Plan, Watcher
from spsbench.runner.proof import answer_read_again, prove
from spsbench.runner.ranks import engine_factory, ranks_of
from spsbench.runner.remeasure import Read, Remeasuring, is_due
from spsbench.runner.turns import Turn, all_turns, request_of, together
from spsbench.stats.summary import engine_of, other_fallbacks
from spsbench.store import RunStore
from spsbench.store.schema import RUN_FILE
from spsbench.store.summary_types import Conditions, Summary

_WARM_UP_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to: its summary, and whether every sequence is there and none failed, of all prompts or
    of those up to where ``until`` ended the run."""

    directory: Path
    summary: Summary
    complete: bool


def execute(
    plan: Plan,
    directory: Path,
    *,
    resume: bool,
    watcher: Watcher,
    allow_mixed: bool = False,
    pair: Pair | None = None,
    rule_of: Callable[[Plan, RunStore], stopping.StoppingRule | None] = stopping.stopping_rule,
) -> Outcome:
    """Measure what is still missing of a plan in a run directory."""
    gpu = Gpu.of(plan.device)
    identity, info, now = _start_facts(plan, directory, gpu, resume=resume, allow_mixed=allow_mixed)
    with opened(plan, directory, identity, info, resume=resume) as store:
        rule = rule_of(plan, store)
        missing = stopping.due_turns(plan, store, rule)
        again = is_due(plan, store)
        if missing or stopping.proof_is_due(store) or again:
            _measure_and_prove(
                plan, store, missing, watcher, now, rule, pair, gpu, again=again, allow_mixed=allow_mixed
            )
        if rule is not None:
            rule.note(store, ended=True)
        return conclude(plan, store, watcher)


def opened(
    plan: Plan, directory: Path, identity: dict[str, Any], info: dict[str, Any], *, resume: bool
) -> RunStore:
    """Return the store of a plan's run, begun if missing, continued if allowed."""
    settings = plan.config.model_dump(mode="json")
    return RunStore.create(
        directory, identity=identity, config=settings, info=info, prompts=plan.prompts, resume=resume
    )


def conclude(plan: Plan, store: RunStore, watcher: Watcher, scorer: Scorer = score_here) -> Outcome:
    if plan.config.score:
        score(plan.task, store, watcher.scoring, scorer=scorer)
    summary = finalize(store, plan.source.tokenizer, plan.task)
    return Outcome(store.directory, summary, bool(summary["complete"]))


def require_continuable(plan: Plan, directory: Path, *, allow_mixed: bool = False) -> None:
    """Refuse a run directory that ``execute`` with ``resume`` would refuse; nothing is written or loaded."""
    if (directory / RUN_FILE).is_file():
        _start_facts(plan, directory, Gpu.of(plan.device), resume=True, allow_mixed=allow_mixed)


class _StartFacts(NamedTuple):
    """What run.json says of a plan, and the conditions under which it is measured now."""

    identity: dict[str, Any]
    info: dict[str, Any]
    now: Conditions


def _start_facts(
    plan: Plan, directory: Path, gpu: Gpu | None, *, resume: bool, allow_mixed: bool
) -> _StartFacts:
    """Resuming another run is refused, and under other conditions than before unless they may mix."""
    identity, info = plan.identity(), plan.info()
    now = conditions.conditions_of(plan, info["environment"], gpu)
    if resume:
        asked = [] if allow_mixed else [now]
        conditions.require_unchanged(directory, plan, identity, asked, latest=True)
    return _StartFacts(identity, info, now)


def _measure_and_prove(
    plan: Plan,
    store: RunStore,
    missing: list[Turn],
    watcher: Watcher,
    now: Conditions,
    rule: stopping.StoppingRule | None,
    pair: Pair | None,
    gpu: Gpu | None,
    *,
    again: bool,
    allow_mixed: bool,
) -> None:
    """Load the pair unless it is given, and write each missing sequence into the store at once.

    With a ``rule`` as many as it lets be run. With ``again`` some are timed further whether or not one is
    missing, so that every engine starts.
    """
    _warn_of_claims(plan, watcher)
    _warn_of_unused_ensemble(plan, watcher)
    pair = pair or _load_here(plan, store, watcher)
    for role in conditions.computing_otherwise(store, pair, now):
        watcher.warned(messages.LogitsSinceBegun(role))
    now = now | {"threads": pair.info["threads"]}
    with PeerArms(plan, pair, store.directory / LOGS) as peers:
        arms = {*plan.arms} if again else {turn.arm for turn in missing}
        if arms:  # external engines start before anything is measured, and say their versions
            peers.start(arms, watcher.loading)
            require_any(set(plan.arms), peers.left_out)
            for arm, reason in peers.left_out.items():
                watcher.warned(messages.ArmLeftOut(arm.name, reason))
            now = conditions.with_engines(store, now, peers.versions())
            if not allow_mixed:
                conditions.require_same_engines(store, now)
            _note_external_engines(store, peers)
        due = [turn for turn in missing if turn.arm not in peers.left_out]
        arms -= peers.left_out.keys()
        corpus = tuple(prompt.ids for prompt in plan.prompts if prompt.ids)
        backends = engine_factory(pair, plan.slots, corpus, peers.engine)
        engines = backends.all([arm for arm in plan.arms if arm in arms or not is_peer(arm)])
        note_facts(store, facts_of(plan, engines, pair, backends.fallbacks), watcher)
        if due or again:
            forget_device_peak(plan.device)  # of what only looked at the machine
            condition = conditions.settle(store, [now])[0]
            meter_choice = conditions.meter_of(
                plan.device, plan.config.ranks, placed=plan.placement is not None
            )
            store.note(energy=conditions.noted(meter_choice, store.run_info()))
            sampler = _Sampler(plan, store, engines, pair, meter_choice.meter, gpu, condition)
            with _gpu_recorded(gpu, engines, pair, store, watcher):
                if due:
                    sampler.generate(due, rule, len(peers.left_out), watcher)
                else:
                    warm_up(plan, engines, next(all_turns(plan)))
                sampler.time_again(watcher)
            store.note(peak_memory_bytes=peak_memory_bytes(), **device_peak(plan.device))
            _note_external_engines(store, peers)
        prove(plan, store, pair, backends, watcher)


@dataclass(frozen=True, slots=True)
class _Sampler:
    """Has sequences generated, and puts each into the store at once, under one ``condition``."""

    plan: Plan
    store: RunStore
    engines: dict[Arm, Engine]
    pair: Pair
    meter: EnergyMeter | None
    gpu: Gpu | None
    condition: int

    @property
    def _ask_turns(self) -> Callable[[Turn], Turn]:
        return Dialogues(self.plan, self.store).asked

    def generate(
        self, due: list[Turn], rule: stopping.StoppingRule | None, left_out: int, watcher: Watcher
    ) -> None:
        """Generate what is due; with a ``rule`` as much as it allows."""
        plan, store = self.plan, self.store
        watcher.started(plan.total, plan.total - len(due), plan.arms)
        first = due[0] if due[0].prompt.ids else next(all_turns(plan))
        failed = warm_up(plan, self.engines, first)
        due = _turns_without(failed, due, store, watcher)
        store.note(proof=None)
        groups = together(due)
        if rule is not None:
            rule.leave_out(left_out + len(failed))
            rule.note(store, ended=False)
            stopping.foretell(plan, store, rule, watcher)
            groups = rule.until_over(groups)
        made = generated_samples(
            plan, self.engines, groups, self.pair, self.meter, gpu=self.gpu, asked=self._ask_turns
        )
        for sample in made:
            sample.condition = self.condition
            store.append(sample)
            watcher.finished(sample)
            if rule is not None:
                stopping.follow(plan, rule, sample, watcher)
        if rule is not None:
            rule.note(store, ended=True)

    def time_again(self, watcher: Watcher) -> None:
        """Time again what CPU contention disturbed, and all of a short run."""
        Remeasuring(self.plan, self.store, self.condition, self.engines).carry_out(self._timed_again, watcher)

    def _timed_again(self, groups: Iterable[list[Turn]], read: Read) -> Iterator[Sample]:
        return generated_samples(
            self.plan, self.engines, groups, self.pair, self.meter, read, self.gpu, self._ask_turns
        )


@contextmanager
def _gpu_recorded(
    gpu: Gpu | None, engines: Mapping[Arm, Engine], pair: Pair, store: RunStore, watcher: Watcher
) -> Iterator[None]:
    """Record the GPU in run.json, and its state before the block and after; see ``Gpu.watched``."""
    if gpu is None:
        yield
        return
    if (reason := gpu.not_followed()) is not None:
        watcher.warned(messages.GpuNotFollowed(reason))
    models = {"target": pair.target, "draft": pair.draft}
    built = {role: model.model for role, model in models.items() if isinstance(model, TorchLM)}
    graphs = any(engine.name == GRAPHED for engine in engines.values())
    record = gpu.facts | computing_by(built) | {"graphs": graphs, "before": gpu.state(), "after": None}
    store.note(gpu=record)
    with gpu.watched():
        yield
    store.note(gpu=record | {"after": gpu.state()})


def _warn_of_claims(plan: Plan, watcher: Watcher) -> None:
    for arm, claim in plan.claims.items():
        if claim.refuted:
            watcher.warned(messages.ClaimRefuted(arm, claim.refuted))
        elif claim.untested:
            watcher.warned(messages.ClaimUntested(arm, claim.untested))


def _warn_of_unused_ensemble(plan: Plan, watcher: Watcher) -> None:
    target = plan.source.target
    weight = (target.generation or {}).get(ENSEMBLE)
    if weight is not None and any(arm.engine == ASSISTED for arm in plan.arms):
        watcher.warned(messages.EnsembleUnused(target.title, weight, ASSISTED))


def _load_here(plan: Plan, store: RunStore, watcher: Watcher) -> Pair:
    """On as many threads as the run began with."""
    source = plan.source
    memory = None if plan.room is None or plan.device.type == "cpu" else plan.room.needed(plan.device)
    here = messages.ModelsHere(source.target.name, source.draft.name, title(plan.device), memory)
    watcher.loading(str(here))
    if slow := slow_kernels(plan.layer_kernels):
        watcher.warned(slow)
    if plan.fallback:
        watcher.warned(messages.ForwardsOverTorch(plan.fallback))
    recorded = conditions.recorded_threads(plan, store)
    pair = load(plan, threads=recorded)
    for sentence in slower_than_asked(pair.info):
        watcher.warned(sentence)
    if plan.config.threads == conditions.AUTO and recorded is None and pair.device.type == "cpu":
        by_size = threads_by_size(pair.target.parameters)
        threads = pair.info["threads"]
        if threads < by_size:
            watcher.warned(messages.FewThreads(threads, by_size))
    return pair


def load(plan: Plan, *, threads: int | None = None) -> Pair:
    """Load the pair of a plan, and set the number of CPU threads."""
    return plan.load(threads=threads, ranks=ranks_of(plan.config))


def facts_of(
    plan: Plan, engines: Mapping[Arm, Engine], pair: Pair, fallbacks: Mapping[str, str]
) -> dict[str, Any]:
    """Return what run.json keeps of loaded models and their engines, and what bounds a forward from below."""
    target, draft = (pair.info[role]["backend"] for role in ("target", "draft"))
    target_mode: dict[str, str] = {}
    draft_mode: dict[str, str] = {}
    for arm, engine in engines.items():  # others than ours run the stock model, or their own forward
        if engine.name == EAGER:
            target_mode[arm.name] = draft if arm.method == "draft" else target
            if arm.method == "sps":
                draft_mode[arm.name] = draft
        else:
            stock = GRAPHS if engine.name == GRAPHED else "stock"
            target_mode[arm.name] = "its own" if isinstance(engine, PeerEngine) else stock
    with torch_threads(pair.info["threads"]):
        bandwidth = measured_bandwidth(plan.device)
    return {
        "models": pair.info,
        "target_mode": target_mode,
        "draft_mode": draft_mode,
        "bandwidth_bytes_per_s": bandwidth,
        "cache_bytes": cache_bytes(plan.device),
        "cache_shared": cache_shared(plan.device),
        "engine_fallbacks": dict(fallbacks),
    }


def note_facts(store: RunStore, facts: Mapping[str, Any], watcher: Watcher) -> None:
    """Put ``facts_of`` into run.json; modes of arms that are not built this time stay."""
    info = store.run_info()
    engine = engine_of({**info, **facts}) or ""
    if engine.startswith(EAGER):
        watcher.warned(messages.EngineFellBack(engine))
    for arm, reason in other_fallbacks(facts, engine):
        watcher.warned(messages.ArmFellBack(arm, reason))
    modes = {key: (info.get(key) or {}) | facts[key] for key in ("target_mode", "draft_mode")}
    store.note(**{**facts, **modes})


def _note_external_engines(store: RunStore, peers: PeerArms) -> None:
    info = store.run_info()
    reported = peers.record()
    if not reported:
        return
    rules = (info.get("verification_rule") or {}) | peers.rules()
    left_out = {arm.name: reason for arm, reason in peers.left_out.items()}
    engines = (info.get("engines") or {}) | reported
    store.note(engines=engines, verification_rule=rules, engines_left_out=left_out)


def generated_samples(
    plan: Plan,
    engines: dict[Arm, Engine],
    groups: Iterable[list[Turn]],
    pair: Pair,
    meter: EnergyMeter | None = None,
    read: Read | None = None,
    gpu: Gpu | None = None,
    asked: Callable[[Turn], Turn] | None = None,
) -> Iterator[Sample]:
    """Generate the missing sequences, one sample each; a failure is a recorded failure.

    Each is read again by an uncached forward, between two sequences, in a batch as soon as it is done; or
    what ``read`` makes of it. ``asked`` makes of a later turn what its arm is asked, once the turns before it
    are in the journal.
    """
    read = read or partial(_sample_read_again, pair)
    traced = set(plan.everyone[: plan.config.trace])
    for due in groups:
        group = list[Turn]()
        for turn in due:
            try:
                group.append(turn if asked is None else asked(turn))
            except Unasked as reason:
                yield read(turn, reason)
        if not group:
            continue
        engine = engines[group[0].arm]
        counted = None if is_peer(group[0].arm) else meter
        requests = [
            request_of(plan, turn, turn.prompt.example_id in traced and turn.sample_index == 0)
            for turn in group
        ]
        stream = answers(engine, requests)
        for _ in group:
            worker = _pid_of_engine(engine)
            began_s = perf_counter()
            before = taken(worker)
            with conditions.metered(counted) as joules:
                place, answer = next(stream)
            # A worker restarted in between waited while it started: that is not part of this sequence.
            lost = taken_since(before, worker if worker == _pid_of_engine(engine) else None) | joules
            if group[place].arm.batch > 1:  # a row is not charged with all that passed
                lost[ELAPSED] = perf_counter() - began_s
            if gpu is not None:
                lost |= gpu.of_sequence()
            sample = read(group[place], answer)
            # What a sequence took as a whole is for a time of --until; no table of times has it.
            sample.conditions |= {"load_1m": load_1m()} | lost | {SPENT: perf_counter() - began_s}
            yield sample


def _pid_of_engine(engine: Engine) -> int | None:
    return engine.pid if isinstance(engine, PeerEngine) else None


def _sample_read_again(pair: Pair, turn: Turn, answer: Attempt) -> Sample:
    generation, error, unread = answer_read_again(turn.arm, turn.prompt, turn.seed, answer, pair)
    return Sample(
        example_id=turn.prompt.example_id,
        sample_index=turn.sample_index,
        arm=turn.arm.name,
        prompt_tokens=len(turn.prompt.ids),
        generation=generation,
        order=turn.order,
        error=error,
        category=turn.prompt.category,
        wave=turn.wave,
        unread=unread,
        **({} if turn.prompt.conversation is None else _fields_of_later_turn(turn.prompt)),
    )


def _fields_of_later_turn(prompt: Prompt) -> dict[str, Any]:
    return {"conversation": prompt.conversation, "turn": prompt.turn, "prompt_ids": [*prompt.ids] or None}


def _turns_without(
    failed: Mapping[Arm, str], due: list[Turn], store: RunStore, watcher: Watcher
) -> list[Turn]:
    """Those of the arms that did not fail while they were warmed up; the others are noted.

    Raises:
        UnavailableError: none is left.
    """
    for arm, reason in failed.items():
        watcher.warned(messages.WarmUpFailed(arm.name, reason))
    if failed:
        before = store.run_info().get("engines_left_out") or {}
        store.note(engines_left_out=before | {arm.name: reason for arm, reason in failed.items()})
    rest = [turn for turn in due if turn.arm not in failed]
    if not rest:
        reasons = "; ".join(dict.fromkeys(failed.values()))
        raise UnavailableError(
            f"every arm failed while it was warmed up: {reasons}.",
            remedy="Choose a smaller pair or batch, another --dtype or --device; --debug shows where.",
        )
    return rest


def warm_up(plan: Plan, engines: dict[Arm, Engine], first: Turn) -> dict[Arm, str]:
    """Generate and drop some tokens of every arm: a shape's first forward is slow, and no arm should pay it.

    Returns:
        Arms that failed, each with the reason. What breaks a drafter from a file or an engine of others here
        breaks it again where it is recorded.
    """
    failed: dict[Arm, str] = {}
    if plan.config.warmup:
        for arm, engine in engines.items():
            request = request_of(plan, Turn(first.prompt, first.sample_index, arm, 0, first.seed))
            short = replace(request, max_new_tokens=min(plan.max_new_tokens, _WARM_UP_TOKENS))
            try:
                engine.generate(short)
            except (DrafterFault, PeerError):
                continue
            except FAILURES as error:
                settle(error)
                failed[arm] = reason_of(error).rstrip(".")
    return failed

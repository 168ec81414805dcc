"""``spsbench advise``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.cli import options, values
from spsbench.cli.console import present, say, say_if_busy
from spsbench.cli.interruption import continued_by, typed
from spsbench.cli.options import takes
from spsbench.cli.values import sought_of
from spsbench.errors import SpsbenchError, UsageError
from spsbench.paths import results_dir
from spsbench.whatif.replay import MEAN, OBJECTIVES

if TYPE_CHECKING:
    from spsbench.cli.progress import BarProgress, LogProgress
    from spsbench.config import RunConfig
    from spsbench.models.pair import Pair, PairSource
    from spsbench.records import Arm, Sample, Spec
    from spsbench.runner import Plan
    from spsbench.runner.stopping import StoppingRule
    from spsbench.store import RunStore
    from spsbench.whatif.replay.advice import Advice, Candidate, Check, Readings
    from spsbench.whatif.replay.texts import TargetText, Written

    Progress = LogProgress | BarProgress

_PROMPTS, _CHECKED = 24, 8
_TEXTS, _TIMES, _LIVE = 0.5, 0.12, 0.2
"""Shares of the budget: of writing texts and reading them, of timing, and of the live run at least."""
_LIVE_TOKENS = 96
"""Of an output in the live run, whose interval is over prompts: many of them tell more than long ones."""
_ENDING_S = 15.0
"""What the live run takes besides its sequences, and the half of a prompt that it ends late."""
_WRITING = "Writing texts and reading them"


@takes(
    "task pair target draft data limit k drafter sampling budget objective memory out prompts no_check "
    "revision draft_revision turns temperature top_p top_k max_new_tokens seed device dtype quantise "
    "threads backend",
    {
        options.FIRST: {
            "--draft MODEL...": "Draft model; may be repeated, to choose among several.",
            "--k LIST": "Lookaheads to choose from. Default: 1..8.",
            "--drafter LIST": "Drafters to choose from. Default: all that suit the pair.",
        },
        options.WHAT: {
            "--budget TIME": "Time for everything together, e.g. 10min. Default: 3min.",
            "--objective NAME": (
                "Minimise mean (time per token) or p99 (time of slow sequences). Default: mean."
            ),
            "--memory SIZE": "Most memory for weights and caches, e.g. 4GB.",
            "--no-check": "Predict only; do not run the recommended setting.",
        },
    },
)
def advise(**params: Any) -> None:
    """Choose a drafter and K for your prompts, predicted from ArS texts and checked by a run.

    Example: spsbench advise prompts.jsonl --target package:smollm2
    """
    advise_on(params)


def advise_on(params: Mapping[str, Any]) -> None:
    """Write ArS texts, replay every drafter over them, choose, and run what was chosen."""
    from spsbench.cli.run import require_possible

    quiet, began_s = params["quiet"], time.monotonic()
    ks = values.lookaheads(params["k"] or "1..8")
    named = None if params["drafter"] is None else values.drafters(params["drafter"])
    budget_s = values.seconds(params["budget"], 180.0)
    objective, memory = params["objective"] or MEAN, values.memory_bytes(params["memory"])
    if objective not in OBJECTIVES:
        raise UsageError(
            f"{objective} is unknown.", flag="--objective", remedy=f"Choose from {', '.join(OBJECTIVES)}."
        )
    if budget_s == 0:
        raise UsageError("it must be above 0, got 0.", flag="--budget", remedy="Give a time, e.g. 3min.")
    config = _config(params).model_copy(update={"budget_s": _TEXTS * budget_s})
    require_possible(config)
    if config.limit is not None:
        _require_prompts(config.limit)
    say_if_busy(quiet=quiet)
    say("Checking task, data and models", quiet=quiet)
    from spsbench.cli.progress import watching
    from spsbench.cli.whatif_screen import advice_facts, advice_screen
    from spsbench.runner import plan, require_continuable
    from spsbench.store import fresh_directory
    from spsbench.whatif.replay.advice import Readings, advise

    ready = plan(config)
    _require_prompts(len(ready.prompts))
    drafters = _drafters(named, ready.source)
    directory: Path = params["out"] or fresh_directory(results_dir(), "advise", ready.config.pair.name)
    require_continuable(ready, directory)
    continued_by(lambda: typed(*(() if params["out"] else ("--out", str(directory)))))
    with watching(quiet=quiet, moving=True) as progress:
        pairs = _pairs(ready, params["draft"] or (), progress)
        sought = sought_of(drafters, list(pairs.items()))
        progress.stage("Building the drafters", len(sought))
        law, corpus = ready.arms[0].sampling, [prompt.ids for prompt in ready.prompts]
        readings = Readings(sought, law, ks, corpus, lambda spec: progress.step())
        written, told_s = _written(ready, directory, next(iter(pairs.values())), readings, progress, ks)
        progress.stage("Timing drafts and forwards, seconds", round(_TIMES * budget_s))
        readings.time(written.texts, _TIMES * budget_s, config.seed, progress.reach)
        progress.stage("Choosing", 1)
        advice = advise(readings.study(written, ks), objective, memory)
    spent_s = max(time.monotonic() - began_s, told_s + readings.timing_s) + _ENDING_S
    left_s = max(budget_s - spent_s, _LIVE * budget_s)
    checks = [] if params["no_check"] else _check(ready, advice, pairs, directory, left_s, quiet=quiet)
    present(
        lambda: advice_facts(directory, advice, checks),
        lambda: advice_screen(written.label, written.sampling_name, advice, checks),
        json=params["json"],
        quiet=quiet,
    )


def _written(
    ready: Plan, directory: Path, pair: Pair, readings: Readings, progress: Progress, ks: Sequence[int]
) -> tuple[Written, float]:
    """The texts, written and read as far as they were not, and the seconds that both took so far."""
    from spsbench.runner import execute
    from spsbench.whatif.replay.texts import texts_of

    reading = _Reading(progress, readings, ready, ks)
    execute(ready, directory, resume=True, watcher=reading, pair=pair, rule_of=reading.rule)
    try:
        written = texts_of(directory, ready.arms[0].sampling_name)
    except UsageError as short:  # too few tokens: of these prompts there may be more
        raise UsageError(short.message, flag="--limit", remedy="Raise it, or --max-new-tokens.") from short
    reading.catch_up(written.texts)
    readings.require_fitting()
    _require_prompts(len({text.name for text in written.texts}))
    return written, reading.texts.measured_s


def _require_prompts(count: int) -> None:
    from spsbench.stats.predict import FEWEST_PROMPTS

    if count < FEWEST_PROMPTS:
        raise UsageError(
            f"{count} prompts are too few to choose on and to judge on.",
            flag="--limit",
            remedy=f"Give at least {FEWEST_PROMPTS}.",
        )


def _pairs(ready: Plan, drafts: Sequence[str], progress: Progress) -> dict[str, Pair]:
    """The plan's pair, or its target with each draft that is named; of one draft the name is empty."""
    from spsbench.models.pair import load_pair
    from spsbench.runner.execute import load

    several = drafts if len(drafts) > 1 else ("",)
    progress.stage("Loading the models", len(several))
    if ready.fallback:
        progress.warned(f"The forwards run over torch, not ONNX Runtime: {ready.fallback}.")
    found = {several[0]: load(ready)}
    progress.step()
    first = found[several[0]]
    for name in several[1:]:
        own = _with_draft(ready, name)
        place = (own.device, own.backend, first.info["threads"], first, own.placement)
        found[name] = load_pair(own.source, own.dtypes, *place)
        progress.step()
    return found


class _Reading:
    """Watches texts being written, and reads each with every drafter as soon as it is there."""

    def __init__(self, progress: Progress, readings: Readings, ready: Plan, ks: Sequence[int]) -> None:
        self._progress, self._readings, self._ks = progress, readings, ks
        self._prompts = {prompt.example_id: prompt.ids for prompt in ready.prompts}
        self._read: set[tuple[str, int]] = set()
        self._tokens = 0
        self._loops: dict[str, dict[int, float]] = {}
        self.loading, self.warned = progress.loading, progress.warned

    def rule(self, plan: Plan, store: RunStore) -> StoppingRule:
        """See ``TextsRule``; the folder is now this process's, and so is what was read there before."""
        from spsbench.whatif.replay.advice import TextsRule

        self._readings.open(store.directory)
        self.texts = TextsRule(plan, store, self._readings)
        return self.texts

    def started(self, total: int, done: int, arms: Sequence[Arm]) -> None:
        self._progress.stage(_WRITING, total, done)

    def expecting(self, total: int | None, sentence: str) -> None:
        self._progress.expecting(total, "")

    def finished(self, sample: Sample) -> None:
        from spsbench.whatif.replay.texts import TargetText

        if sample.error is None and sample.generation.tokens:
            ids, tokens = self._prompts[sample.example_id], tuple(sample.generation.tokens)
            self._take(TargetText(sample.example_id, sample.sample_index, ids, tokens))
        self._progress.doing(_WRITING)
        self._progress.step(self._interim())

    def proving(self, total: int) -> None:
        """Nothing is proved here."""

    def scoring(self, total: int) -> None:
        """Nothing is scored here."""

    def catch_up(self, texts: Sequence[TargetText]) -> None:
        """Read those of an earlier process, as far as that did not."""
        due = [text for text in texts if (text.name, text.sample) not in self._read]
        if due:
            self._progress.stage("Reading texts", len(due))
        for text in due:
            self._take(text)
            self._progress.step(self._interim())

    def _take(self, text: TargetText) -> None:
        for part in self._readings.read(text):
            self._progress.doing(f"Read with {part.drafter}")
        self._read.add((text.name, text.sample))
        self._tokens += len(text.tokens)
        for sought, found in self._readings.replayed([text]).items():
            loops = self._loops.setdefault(sought.name, dict.fromkeys(self._ks, 0.0))
            for k in self._ks:
                loops[k] += sum(law.loops for law in found.loops(k))

    def _interim(self) -> list[tuple[str, str]]:
        """Tokens per loop by now, of every drafter."""
        title = f"K={', '.join(map(str, self._ks))}:"
        told = [
            (name, ", ".join(f"{self._tokens / loops:.2f}" for loops in by_k.values()))
            for name, by_k in self._loops.items()
        ]
        return [("tokens per loop,", title), *told] if told else []


def _config(params: Mapping[str, Any]) -> RunConfig:
    """ArS alone on the prompts."""
    from spsbench.cli.run import read_settings
    from spsbench.engines.arms import refuse_beams

    given = dict(params) | {"limit": params["limit"] or str(_PROMPTS), "arms": "ars"}
    given |= {"no_score": True, "no_proof": True}
    given["draft"] = params["draft"][0] if params["draft"] else None
    for name in ("k", "drafter", "budget", "objective", "memory", "no_check"):
        del given[name]
    config = read_settings(given)
    refuse_beams(config, "advise")
    return config


def _drafters(named: list[Spec] | None, source: PairSource) -> list[Spec]:
    """Those that were named, or all that are available for this pair."""
    from spsbench.drafters.registry import drafter_kind
    from spsbench.records import Spec

    if named is not None:
        for spec in named:
            drafter_kind(spec.name).require_target(spec, source.target)
        return named
    names = ["lookup", "suffix"]
    if not source.is_one(("", "")):
        names += ["model", "union:of=lookup+model"]
    found = [Spec.parse(name) for name in names]
    for name in ("heads", "heads:bits=8", "union:of=lookup+heads", "quantised", "quantised:bits=4"):
        spec = Spec.parse(name)
        try:
            drafter_kind(spec.name).settled(spec)
            drafter_kind(spec.name).require_target(spec, source.target)
        except SpsbenchError:
            continue
        found.append(spec)
    return found


def _check(
    ready: Plan, advice: Advice, pairs: Mapping[str, Pair], directory: Path, budget_s: float, *, quiet: bool
) -> list[Check]:
    """The two fastest drafters beside ArS, on a few of the judging prompts; none where ArS is the fastest."""
    if advice.best.found is None:
        return []
    ranked = [each for each in (advice.best, *advice.others) if each.found is not None][:2]
    say(f"Running {' and '.join(each.name for each in ranked)} beside ArS", quiet=quiet)
    together: dict[str, list[Candidate]] = {}
    for each in ranked:
        assert each.found is not None
        together.setdefault(each.found.cell.draft or next(iter(together), ""), []).append(each)
    chosen = tuple(prompt for prompt in ready.prompts if prompt.example_id in advice.judging)[:_CHECKED]
    found = []
    for draft, own in together.items():
        with_draft = _with_draft(ready, draft)
        config = with_draft.config.model_copy(update={"budget_s": budget_s / len(together)})
        short = min(ready.max_new_tokens, _LIVE_TOKENS)
        again = replace(with_draft, config=config, prompts=chosen, max_new_tokens=short)
        found += _live(again, own, pairs.get(draft) or next(iter(pairs.values())), directory, quiet=quiet)
    return found


def _live(
    ready: Plan, candidates: Sequence[Candidate], pair: Pair, directory: Path, *, quiet: bool
) -> list[Check]:
    """Candidates with one draft model beside ArS."""
    from spsbench.cli.progress import watching
    from spsbench.records import Arm
    from spsbench.runner import execute
    from spsbench.whatif.replay.advice import Check

    ars = ready.arms[0]
    cells = [each.found.cell for each in candidates if each.found is not None]
    arms = [Arm("sps", cell.k, ars.engine, ars.sampling_name, ars.sampling, cell.drafter) for cell in cells]
    named = sha256(" ".join([cells[0].draft, *(arm.name for arm in arms)]).encode()).hexdigest()[:8]
    folder, again = directory / f"check-{named}", replace(ready, arms=(ars, *arms))
    with watching(quiet=quiet) as watcher:
        summary = execute(again, folder, resume=True, watcher=watcher, pair=pair).summary
    speedups = {row["arm"]: row["speedup"] for row in summary["rows"]}
    judged = (summary["losslessness"] or {"arms": []})["arms"]
    alarmed = {arm["arm"] for arm in judged if arm["verdict"] == "alarm"}
    return [
        Check(each, speedups.get(arm.name), arm.name in alarmed)
        for each, arm in zip(candidates, arms, strict=True)
    ]


def _with_draft(ready: Plan, name: str) -> Plan:
    """The plan with a draft of that name in place of its own; an empty name changes nothing."""
    from spsbench.config import ModelRef
    from spsbench.config.files import with_draft
    from spsbench.runner import plan

    if not name:
        return ready
    pair = ready.config.pair
    draft = ModelRef(id=name, revision=pair.draft.revision)
    return plan(ready.config.model_copy(update={"pair": with_draft(pair, draft)}))

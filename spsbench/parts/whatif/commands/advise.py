"""``spsbench advise``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base import (
    BLOCK,
    EAGER,
    MODEL,
    MODIFIED_REJECTION,
    ONE_HOT,
    SpsbenchError,
    UsageError,
    results_dir,
    unknown,
)
from spsbench.cli import (
    CHECKING,
    LOAD_IN_ROUNDS,
    asks,
    continued_by,
    out,
    present,
    say,
    say_if_busy,
    typed,
    values,
)
from spsbench.cli import written as command_of
from spsbench.config import MaterialSettings, ModelRef, refuse_together
from spsbench.parts.whatif.commands.options import AdviseOptions
from spsbench.parts.whatif.commands.values import sought_of
from spsbench.parts.whatif.messages.advice import (
    K_BY_BATCH_UNKNOWN,
    FasterElsewhere,
    KByBatchOf,
    LoopsRunEager,
    NoDrafterOfEngine,
    NoSpeculation,
    ProofTooLong,
    Worth,
)
from spsbench.parts.whatif.replay import MEAN, OBJECTIVES
from spsbench.parts.whatif.replay.recipes import FORMATS, can_run, recipe, schedule
from spsbench.parts.whatif.replay.trees import shapes_of, trees_of

if TYPE_CHECKING:
    import torch

    from spsbench.base import Spec
    from spsbench.config import RunConfig
    from spsbench.engines import TaskAndArms
    from spsbench.models import Pair
    from spsbench.parts.whatif.replay.advice import Advice, Candidate, Check, Progress, Readings
    from spsbench.parts.whatif.replay.study import Study
    from spsbench.parts.whatif.replay.texts import Written
    from spsbench.runner import Plan

_PROMPTS, _CHECKED, _FEWEST_CHECKED = 24, 8, 3
_TEXTS, _TIMES, _LIVE = 0.5, 0.12, 0.2
"""Shares of the budget: of writing texts and reading them, of timing, and of the live run at least."""
_LIVE_TOKENS = 96
"""Of an output in the live run, whose interval is over prompts: many of them tell more than long ones."""
_ENDING_S = 15.0
"""What the live run takes besides its sequences, and the half of a prompt that it ends late."""


@asks(AdviseOptions, needed="budget hardware")
def advise(wanted: AdviseOptions) -> None:
    """Choose a drafter and K for your prompts, predicted from ArS texts and checked by a run.

    Example: spsbench advise prompts.jsonl --target package:smollm2
    """
    if wanted.hardware is None:
        advise_on(wanted)
    else:
        from spsbench.parts.whatif.commands.hardware import show

        show(wanted.hardware, wanted)


def advise_on(wanted: AdviseOptions) -> None:
    """Write ArS texts, replay every drafter over them, choose, and run what was chosen."""
    quiet, began_s = wanted.quiet, time.monotonic()
    ks = values.lookaheads(wanted.k or "1..8")
    named = None if wanted.drafter is None else values.drafters(wanted.drafter)
    shapes, of_trees = shapes_of(wanted.tree), (ONE_HOT,)
    if named is not None:
        trees_of(named, shapes, of_trees)
    budget_s = values.seconds(wanted.budget, 180.0)
    objective, memory = _objective(wanted.choose)
    if budget_s == 0:
        raise UsageError("it must be above 0, got 0.", flag="--budget", remedy="Give a time, e.g. 3min.")
    engine = _engine(wanted, ks)
    config = _ars_alone(wanted).model_copy(update={"until": f"{_TEXTS * budget_s}s"})
    known = _possible_task_and_arms(config, wanted)
    say_if_busy(LOAD_IN_ROUNDS, quiet=quiet)
    say(CHECKING, quiet=quiet)
    from spsbench.cli import watching
    from spsbench.parts.whatif.commands.screen import advice_facts, advice_screen
    from spsbench.parts.whatif.replay.advice import Readings, advise, advised, disturbed
    from spsbench.runner import plan, require_continuable
    from spsbench.store import fresh_directory

    ready = plan(config, known)
    if ready.device.type == "cuda":
        say(str(LoopsRunEager(EAGER)), quiet=quiet)
    _require_prompts(len(ready.prompts))
    chains = _named_or_all_available(named, ready)
    drafters = {spec: _rules(spec) for spec in chains} | trees_of(chains, shapes, of_trees)
    directory = wanted.out or fresh_directory(results_dir(), "advise", ready.config.pair.name)
    require_continuable(ready, directory)
    continued_by(lambda: typed(*(() if wanted.out else ("--out", str(directory)))))
    with watching(quiet=quiet, moving=True) as progress:
        pairs = _pairs(ready, wanted.draft or (), progress)
        readings = Readings(sought_of(drafters, list(pairs.items())), ready, ks, progress)
        written = _texts_written_and_read(ready, directory, next(iter(pairs.values())), readings)
        readings.time(written.texts, _TIMES * budget_s, config.seed)
        progress.stage("Choosing", 1)
        study = readings.study(written)
        advice = disturbed(advise(study, objective, memory), readings.lost_share)
    spent_s = max(time.monotonic() - began_s, readings.spent_s) + _ENDING_S
    left_s = max(budget_s - spent_s, _LIVE * budget_s)
    checks = (
        []
        if wanted.no_check
        else _check(ready, advice, pairs, directory, left_s, readings.text_s, quiet=quiet)
    )
    use = advised(advice, checks)
    options = None if engine is None else _options(engine, study, advice, checks, use, wanted.times)
    present(
        lambda: advice_facts(directory, advice, checks, use) | ({} if options is None else {engine: options}),
        lambda: advice_screen(
            written.label, written.sampling_name, advice, checks, use, _command(wanted, ready.device, use)
        ),
        json=wanted.json,
        quiet=quiet or options is not None,
    )
    if options is not None and not wanted.json and not quiet:
        out().print(options, soft_wrap=True, markup=False)


def _objective(text: str | None) -> tuple[str, float]:
    """What is minimised, and the most bytes that weights and caches may take."""
    from spsbench.base import Spec

    named = Spec.parse(text or MEAN)
    if named.name not in OBJECTIVES:
        raise unknown(named.name, OBJECTIVES, "--choose")
    flag = f"--choose {named.name}"
    for name, _ in named.options:
        if name != "memory":
            raise unknown(name, ["memory"], flag, sort="option")
    size = dict(named.options).get("memory")
    return named.name, values.memory_bytes(None if size is None else str(size), f"{flag}:memory")


_CARRIED = (
    "pair",
    "target",
    "data",
    "turns",
    "sampling",
    "temperature",
    "top_p",
    "top_k",
    "max_new_tokens",
    "template_arg",
    "seed",
    "device",
    "dtype",
    "threads",
    "backend",
)
"""Options that the run of texts, and a run of what is advised, take as they were typed."""


def _command(wanted: AdviseOptions, device: torch.device, use: Check) -> str | None:
    """What to type to measure what is advised, by the engine of the forecast; None where nothing pays."""
    found = use.candidate.forecast
    if found is None:
        return None
    draft = found.draft or next(iter(wanted.draft or ()), None)
    typed_options = {name: getattr(wanted, name) for name in _CARRIED} | {
        "draft": draft,
        "drafter": None if str(found.drafter) == MODEL else str(found.drafter),
        "rule": None if found.rule == MODIFIED_REJECTION else found.rule,
        "k": found.k,
        "engine": EAGER if device.type == "cuda" else None,  # whose usual engine is another
    }
    arguments = ["run", *([wanted.task] if wanted.task else [])]
    for name, value in typed_options.items():
        for each in value if isinstance(value, list) else [value]:
            if each is not None:
                arguments += [f"--{name.replace('_', '-')}", str(each)]
    return command_of(*arguments)


def _engine(wanted: AdviseOptions, ks: Sequence[int]) -> str | None:
    """Of ``--format``, once it and ``--times`` are known to be possible."""
    engine = wanted.format
    if engine is not None and engine not in FORMATS:
        raise unknown(engine, FORMATS, "--format")
    refuse_together("advise", vars(wanted))
    if wanted.times is not None and engine != "vllm":
        raise UsageError(f"{engine} has one K for all batch sizes.", flag="--times", remedy="Leave it out.")
    values.readable(wanted.times, "--times", "Give what `spsbench bench --batch LIST --json` printed.")
    if wanted.times is not None:  # before minutes are spent
        schedule(wanted.times, dict.fromkeys(ks, 1.0), drafts=False)
    return engine


def _options(
    engine: str, study: Study, advice: Advice, checks: Sequence[Check], use: Check, times: Path | None
) -> str:
    """What an engine takes of the advice, below comments that say what it is worth."""
    first = use.candidate
    alarmed = {id(check.candidate) for check in checks if check.alarm}
    ranked = [first, *(each for each in (advice.best, *advice.others) if each is not first)]
    for candidate in ranked:
        found = candidate.forecast
        if found is None:
            return str(NoSpeculation(engine))
        if not can_run(engine, found) or id(candidate) in alarmed:
            continue
        lines: list[object] = [Worth(candidate.name, candidate.speedup)]
        if candidate is not first:
            lines.append(FasterElsewhere(first.name, engine))
        by_batch = list[tuple[int, int, int]]()
        if times is not None:
            cells = [each for each in study.forecasts if each.name == found.name]
            tokens = {each.k: each.tokens_per_loop.estimate for each in cells if each.rule == found.rule}
            by_batch = [*schedule(times, tokens, drafts=found.drafter.name == "model")]
            lines.append(KByBatchOf(times))
        elif engine == "vllm":
            lines.append(K_BY_BATCH_UNKNOWN)
        named = found.draft
        own = study.written.settings.pair.draft.id
        draft = own if not named else ModelRef(id=named).id  # engines take no @revision
        return "\n".join([*map(str, lines), recipe(engine, found, draft, study.written.sampling, by_batch)])
    return str(NoDrafterOfEngine(engine))


def _texts_written_and_read(ready: Plan, directory: Path, pair: Pair, readings: Readings) -> Written:
    from spsbench.parts.whatif.replay.texts import texts_of
    from spsbench.runner import execute

    execute(ready, directory, resume=True, watcher=readings, pair=pair, rule_of=readings.rule)
    try:
        written = texts_of(directory, ready.arms[0].sampling_name)
    except UsageError as short:  # too few tokens: of these prompts there may be more
        raise UsageError(short.message, flag="--limit", remedy="Raise it, or --max-new-tokens.") from short
    readings.catch_up(written.texts)
    _require_prompts(len({text.name for text in written.texts}))
    return written


def _require_prompts(count: int) -> None:
    from spsbench.stats import FEWEST_PROMPTS

    if count < FEWEST_PROMPTS:
        raise UsageError(
            f"{count} prompts are too few to choose on and to judge on.",
            flag="--limit",
            remedy=f"Give at least {FEWEST_PROMPTS}.",
        )


def _pairs(ready: Plan, drafts: Sequence[str], progress: Progress) -> dict[str, Pair]:
    """The plan's pair, or its target with each draft that is named; of one draft the name is empty."""
    from spsbench.models import title
    from spsbench.runner import ForwardsOverTorch, load

    several = drafts if len(drafts) > 1 else ("",)
    where = "" if (gpu := title(ready.device)) is None else f" on {gpu}"
    progress.stage(f"Loading the models{where}", len(several))
    if ready.fallback:
        progress.warned(str(ForwardsOverTorch(ready.fallback)))
    found = {several[0]: load(ready)}
    progress.step()
    first = found[several[0]]
    for name in several[1:]:
        found[name] = _with_draft(ready, name).load(threads=first.info["threads"], beside=first)
        progress.step()
    return found


def _ars_alone(wanted: AdviseOptions) -> RunConfig:
    from spsbench.cli import RunOptions, read_settings
    from spsbench.engines import refuse_beams

    given: dict[str, Any] = {name: getattr(wanted, name) for name in ("task", *_CARRIED, "quiet")}
    given |= {"limit": wanted.limit or str(_PROMPTS), "draft": wanted.draft[0] if wanted.draft else None}
    given |= {"arms": "ars", "no_score": True, "no_proof": True, "remeasure": "0"}
    config = read_settings(RunOptions(**given))
    refuse_beams(config, "advise")
    return config


def _possible_task_and_arms(config: RunConfig, wanted: AdviseOptions) -> TaskAndArms:
    """What cannot be is refused before torch is imported."""
    from spsbench.cli import RunOptions, require_material, require_possible
    from spsbench.store import require_usable

    known = require_possible(config, typed=RunOptions(turns=wanted.turns))
    first, last = MaterialSettings.of(config).span
    if last is not None:
        _require_prompts(last - first + 1)
    if wanted.out is not None:
        require_usable(wanted.out)
    require_material(config, known[0])
    return known


def _rules(drafter: Spec) -> tuple[str, ...]:
    """Those of a chain: of copies block verification accepts no more."""
    from spsbench.drafters import drafter_kind

    certain = drafter_kind(drafter.name).point_mass
    return (MODIFIED_REJECTION,) if certain else (MODIFIED_REJECTION, BLOCK)


def _named_or_all_available(named: list[Spec] | None, ready: Plan) -> list[Spec]:
    from spsbench.base import Spec
    from spsbench.drafters import drafter_kind

    source = ready.source

    def require(spec: Spec) -> None:
        kind = drafter_kind(spec.name)
        kind.settled(spec)
        kind.require_target(spec, source.target)
        kind.require_backend(spec, ready.backend, ready.dtypes[0])

    if named is not None:
        for spec in named:
            require(spec)
        return named
    names = ["lookup", "suffix"]
    if not source.is_one(("", "")):
        names += ["model", "union:of=lookup+model"]
    found = [Spec.parse(name) for name in names]
    for name in ("heads", "heads:bits=8", "union:of=lookup+heads", "quantised", "quantised:bits=4"):
        spec = Spec.parse(name)
        try:
            require(spec)
        except SpsbenchError:
            continue
        found.append(spec)
    return found


def _check(
    ready: Plan,
    advice: Advice,
    pairs: Mapping[str, Pair],
    directory: Path,
    budget_s: float,
    reading_s: float,
    *,
    quiet: bool,
) -> list[Check]:
    """The two fastest drafters beside ArS, on a few of the judging prompts; none where ArS is the fastest.

    A tree only where a run can draft one. Every output is read again, ``reading_s`` each: where half of the
    budget does not pay that for a few prompts, as with long ones, nothing is run.
    """
    from spsbench.base import Arm, Spec
    from spsbench.cli import watching
    from spsbench.parts.whatif.replay.advice import Check
    from spsbench.runner import duration, execute
    from spsbench.stats import disturbance

    if advice.best.forecast is None:
        return []
    ranked = [each for each in (advice.best, *advice.others) if each.forecast is not None][:2]
    prompt_s = reading_s * (1 + len(ranked))
    count = _CHECKED if prompt_s <= 0 else min(_CHECKED, int(max(budget_s / 2, _ENDING_S) / prompt_s))
    if count < _FEWEST_CHECKED:
        say(str(ProofTooLong(duration(prompt_s), duration(budget_s))), quiet=quiet)
        return []
    budget_s -= max(0.0, count * prompt_s - _ENDING_S)  # what comes behind it is left out already
    say(f"Running {' and '.join(each.name for each in ranked)} beside ArS", quiet=quiet)
    together: dict[str, dict[Arm, Candidate]] = {}
    ars = ready.arms[0]
    for each in ranked:
        assert each.forecast is not None
        rest = ars.sampling_name, ars.sampling, each.forecast.drafter, Spec(each.forecast.rule)
        arm = Arm("sps", each.forecast.k, ars.engine, *rest)
        together.setdefault(each.forecast.draft or next(iter(together), ""), {})[arm] = each
    chosen = tuple(prompt for prompt in ready.prompts if prompt.example_id in advice.judging)[:count]
    short = min(ready.max_new_tokens, _LIVE_TOKENS)
    checks = []
    for draft, own in together.items():
        with_draft = _with_draft(ready, draft)
        own_s = budget_s / len(together)
        config = with_draft.config.model_copy(update={"until": f"{own_s}s", "remeasure_s": own_s / 2})
        again = replace(with_draft, config=config, arms=(ars, *own), prompts=chosen, max_new_tokens=short)
        named = sha256(" ".join([draft, *(arm.name for arm in own)]).encode()).hexdigest()[:8]
        pair = pairs.get(draft) or next(iter(pairs.values()))
        with watching(quiet=quiet) as watcher:
            folder = directory / f"check-{named}"
            summary = execute(again, folder, resume=True, watcher=watcher, pair=pair).summary
        speedups = {row["arm"]: row["speedup"] for row in summary["rows"]}
        judged = (summary["losslessness"] or {"arms": []})["arms"]
        alarmed = {arm["arm"] for arm in judged if arm["verdict"] == "alarm"}
        prompts = {row["arm"]: row["paired_prompts"] or 0 for row in summary["rows"]}
        untrusted = str(disturbance(summary) or "")
        checks += [
            Check(each, speedups.get(arm.name), arm.name in alarmed, prompts.get(arm.name, 0), untrusted)
            for arm, each in own.items()
        ]
    return checks


def _with_draft(ready: Plan, name: str) -> Plan:
    """The plan with a draft of that name in place of its own; an empty name changes nothing."""
    from spsbench.runner import find_models, room_of

    if not name:
        return ready
    models = find_models(MaterialSettings.of(ready.config).with_draft(name))
    room_of(models, ready.arms[:1], ready.slots, ready.max_new_tokens)
    config = ready.config.model_copy(update={"pair": models.pair})
    return replace(ready, config=config, **models.shared())

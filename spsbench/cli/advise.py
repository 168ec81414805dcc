"""``spsbench advise``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spsbench.cli import options, values
from spsbench.cli.console import present, say, say_if_busy
from spsbench.cli.interruption import continued_by, typed
from spsbench.cli.options import option
from spsbench.cli.written import pairs_of, sought_of
from spsbench.errors import SpsbenchError, UsageError
from spsbench.paths import results_dir

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spsbench.config import RunConfig
    from spsbench.models.pair import PairSource
    from spsbench.records import Interval, Spec
    from spsbench.replay.advice import Advice, Candidate
    from spsbench.runner import Plan
    from spsbench.summary_types import RatioInterval

Ks = Annotated[str | None, option("--k", "LIST", options.FIRST, "Lookaheads to choose from. Default: 1..8.")]
Drafters = Annotated[
    str | None,
    option("--drafter", "LIST", options.FIRST, "Drafters to choose from. Default: all that suit the pair."),
]
Drafts = Annotated[
    list[str] | None,
    option("--draft", "MODEL", options.FIRST, "Draft model; may be repeated, to choose among several."),
]
Budget = Annotated[
    str | None,
    option("--budget", "TIME", options.WHAT, "Time to spend on timing loops, e.g. 5min. Default: 60."),
]
Objective = Annotated[
    str | None,
    option(
        "--objective",
        "NAME",
        options.WHAT,
        "Minimise mean (time per token) or p99 (time of slow sequences). Default: mean.",
    ),
]
Memory = Annotated[
    str | None, option("--memory", "SIZE", options.WHAT, "Most memory for weights and caches, e.g. 4GB.")
]
NoCheck = Annotated[
    bool, option("--no-check", "", options.WHAT, "Predict only; do not run the recommended setting.")
]

_PROMPTS, _CHECKED = 24, 8
_SHORTLIST = 3
"""Of each drafter so many K are timed in full: all of them would take a large model hours."""

_NOT_OFFERED: dict[str, Any] = {
    **dict.fromkeys(("resume", "config", "set", "protocol", "fail_on")),
    "no_score": True,
    "no_proof": True,
    "arms": "ars",
}


def advise(
    context: typer.Context,
    task: options.Task = None,
    pair: options.Pair = None,
    target: options.Target = None,
    draft: Drafts = None,
    data: options.Data = None,
    limit: options.Limit = None,
    k: Ks = None,
    drafter: Drafters = None,
    sampling: options.Sampling = None,
    budget: Budget = None,
    objective: Objective = None,
    memory: Memory = None,
    out: options.Out = None,
    prompts: options.Prompts = None,
    no_check: NoCheck = False,
    revision: options.Revision = None,
    draft_revision: options.DraftRevision = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    max_new_tokens: options.MaxNewTokens = None,
    seed: options.Seed = None,
    threads: options.Threads = None,
    backend: options.Backend = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Choose a drafter and K for your prompts, predicted from ArS texts and checked by a run.

    Example: spsbench advise prompts.jsonl --target package:smollm2
    """
    advise_on(context.params)


def advise_on(params: Mapping[str, Any]) -> None:
    """Write ArS texts, replay every drafter over them, choose, and run what was chosen.

    Raises:
        UsageError, UnavailableError: before anything is loaded.
    """
    from spsbench.cli.measure import require_possible
    from spsbench.predict.halves import FEWEST_PROMPTS

    quiet = params["quiet"]
    ks = values.lookaheads(params["k"] or "1..8")
    named = None if params["drafter"] is None else values.drafters(params["drafter"])
    budget_s = values.seconds(params["budget"], 60.0)
    objective, memory = _objective(params["objective"]), values.memory_bytes(params["memory"])
    if budget_s == 0:
        raise UsageError(
            "it must be above 0, got 0.", flag="--budget", remedy="Give a time, e.g. 60 or 5min."
        )
    config = _config(params)
    require_possible(config)
    if config.limit is not None and config.limit < FEWEST_PROMPTS:
        raise UsageError(
            f"{config.limit} prompts are too few to choose on and to judge on.",
            flag="--limit",
            remedy=f"Give at least {FEWEST_PROMPTS}.",
        )
    say_if_busy(quiet=quiet)
    say("Checking task, data and models", quiet=quiet)
    from spsbench.cli.progress import watching
    from spsbench.replay.advice import advise
    from spsbench.replay.study import study
    from spsbench.replay.texts import texts_of
    from spsbench.runner import execute, plan
    from spsbench.store import fresh_directory

    ready = plan(config)
    if len(ready.prompts) < FEWEST_PROMPTS:
        raise UsageError(
            f"{len(ready.prompts)} prompts are too few to choose on and to judge on.",
            flag="--limit",
            remedy=f"Give at least {FEWEST_PROMPTS}.",
        )
    drafters = _drafters(named, ready.source)
    directory: Path = params["out"] or fresh_directory(results_dir(), "advise", ready.config.pair.name)
    continued_by(lambda: typed(*(() if params["out"] else ("--out", str(directory)))))
    with watching(quiet=quiet) as watcher:
        execute(ready, directory, resume=params["out"] is not None, watcher=watcher)
    try:
        written = texts_of(directory, ready.arms[0].sampling_name)
    except UsageError as short:  # too few tokens: of these prompts there may be more
        raise UsageError(short.message, flag="--limit", remedy="Raise it, or --max-new-tokens.") from short
    sought = sought_of(drafters, pairs_of(written, params))
    found = study(written, sought, ks, budget_s, lambda text: say(text, quiet=quiet), _SHORTLIST)
    advice = advise(found, objective, memory)
    del sought
    live = None
    if advice.best.found is not None and not params["no_check"]:
        say("Running what is advised", quiet=quiet)
        live = _check(ready, advice, directory / "check", quiet=quiet)
    present(
        lambda: _facts(directory, advice, live),
        lambda: _screen(written.label, written.sampling_name, advice, live),
        json=params["json"],
        quiet=quiet,
    )


def _objective(text: str | None) -> str:
    from spsbench.replay.objective import MEAN, OBJECTIVES

    if text not in (None, *OBJECTIVES):
        raise UsageError(
            f"{text} is unknown.", flag="--objective", remedy=f"Choose from {', '.join(OBJECTIVES)}."
        )
    return text or MEAN


def _config(params: Mapping[str, Any]) -> RunConfig:
    """ArS alone on the prompts."""
    from spsbench.arms.beams import refuse_beams
    from spsbench.cli.measure import read_settings

    given = dict(params) | _NOT_OFFERED | {"limit": params["limit"] or str(_PROMPTS)}
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


def _check(ready: Plan, advice: Advice, directory: Path, *, quiet: bool) -> RatioInterval | None:
    """The advised arm beside ArS on a few of the judging prompts."""
    from spsbench.cli.progress import watching
    from spsbench.records import Arm
    from spsbench.runner import execute

    assert advice.best.found is not None
    cell = advice.best.found.cell
    ars = ready.arms[0]
    arm = Arm("sps", cell.k, ars.engine, ars.sampling_name, ars.sampling, cell.drafter)
    chosen = [prompt for prompt in ready.prompts if prompt.example_id in advice.judging][:_CHECKED]
    again = replace(_with_draft(ready, cell.draft), arms=(ars, arm), prompts=tuple(chosen))
    with watching(quiet=quiet) as watcher:
        outcome = execute(again, directory, resume=True, watcher=watcher)
    row = next(row for row in outcome.summary["rows"] if row["method"] == "sps")
    return row["speedup"]


def _with_draft(ready: Plan, name: str) -> Plan:
    """The plan with a draft of that name in place of its own; an empty name changes nothing."""
    from spsbench.config import ModelRef
    from spsbench.config.names import with_draft
    from spsbench.runner import plan

    if not name:
        return ready
    pair = ready.config.pair
    draft = ModelRef(id=name, revision=pair.draft.revision)
    return plan(ready.config.model_copy(update={"pair": with_draft(pair, draft)}))


def _facts(directory: Path, advice: Advice, live: RatioInterval | None) -> dict[str, Any]:
    return {
        "run": str(directory),
        "chosen_on": len(advice.choosing),
        "judged_on": len(advice.judging),
        "advised": _of(advice.best),
        "close_k": list(advice.close),
        "too_large": list(advice.too_large),
        "others": [_of(other) for other in advice.others],
        "break_even": None if advice.even is None else asdict(advice.even),
        "live": live,
        "within": _within(advice, live),
    }


def _of(candidate: Candidate) -> dict[str, Any]:
    found = candidate.found
    return {
        "drafter": None if found is None else str(found.cell.drafter),
        "draft": None if found is None else found.cell.draft or None,
        "k": 0 if found is None else found.cell.k,
        "speedup": asdict(candidate.speedup),
        "slower": asdict(candidate.slower),
        "p99_s": candidate.p99_s,
        "bytes": candidate.bytes,
    }


def _within(advice: Advice, live: RatioInterval | None) -> bool | None:
    """Whether the prediction and the live run have a speedup in common."""
    told = advice.best.speedup
    if live is None or live["low"] is None or live["high"] is None or told.low is None or told.high is None:
        return None
    return live["low"] <= told.high and told.low <= live["high"]


def _screen(label: str, sampling: str, advice: Advice, live: RatioInterval | None) -> RenderableType:
    from rich.console import Group

    from spsbench.report.tables import Table, left, right
    from spsbench.report.wording import interval

    rows = [
        [
            _name(each),
            interval(each.speedup, "x"),
            "" if each is advice.best else _longer(each.slower),
            f"{each.p99_s:.2f}",
        ]
        for each in (advice.best, *advice.others)
    ]
    table = Table(
        [left(whole=True), right("speedup [95%]"), right("slower by [95%]"), right("P99 [s]")], rows
    )
    chosen, measured = len(advice.choosing), len(advice.judging)
    return Group(
        f"{label}, {sampling}: chosen on {chosen} prompts, measured on {measured} others",
        "",
        *_sentences(advice, live),
        "",
        table.as_rich(),
    )


def _sentences(advice: Advice, live: RatioInterval | None) -> Sequence[str]:
    from spsbench.report.wording import interval, speedup

    name = _name(advice.best)
    if advice.best.found is None:
        return ["Does not pay here: no drafter and K is predicted to be faster than ArS."]
    lines = [f"Use {name}: {interval(advice.best.speedup, 'x')} per token predicted."]
    within = _within(advice, live)
    if live is not None:
        agrees = (
            ""
            if within is None
            else ", as predicted"
            if within
            else ", which does NOT agree with the prediction"
        )
        lines.append(f"Measured live beside ArS: {speedup(live)}{agrees}.")
    if advice.close:
        lines.append(f"K={', '.join(map(str, advice.close))} cannot be told apart from it.")
    lines += [
        f"{_name(other)} was faster on the measuring prompts: more prompts would decide between the two."
        for other in advice.others
        if other.slower.estimate < 1.0
    ]
    if advice.even is not None and advice.even.c_allowed is not None:
        lines.append(
            f"Break-even: drafting a token may take {advice.even.c_allowed:.2f} ArS steps (now "
            f"{advice.even.c:.2f})."
        )
    if advice.too_large:
        lines.append(f"Left out, too large for --memory: {', '.join(advice.too_large)}.")
    return lines


def _name(candidate: Candidate) -> str:
    found = candidate.found
    return "ArS" if found is None else f"{found.cell.name}, K={found.cell.k}"


def _longer(slower: Interval) -> str:
    """By how much more time a token it takes than the advised one."""
    from spsbench.report.wording import interval_percent

    low, high = (None if end is None else end - 1 for end in (slower.low, slower.high))
    return interval_percent(replace(slower, estimate=slower.estimate - 1, low=low, high=high))

"""``spsbench replay``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group

from spsbench.cli import options, values
from spsbench.cli.console import out, print_json, say
from spsbench.cli.options import _option
from spsbench.errors import UsageError

if TYPE_CHECKING:
    from spsbench.models.pair import Pair
    from spsbench.replay.study import Study
    from spsbench.replay.texts import Written
    from spsbench.report.tables import Table

Ks = Annotated[str | None, _option("--k", "LIST", options.FIRST, "Lookahead: 4, 2,4 or 1..8. Default: 1..8.")]
Name = Annotated[
    str | None,
    _option("--sampling", "NAME", options.FIRST, "Of the texts. Default: the run's first."),
]

Budget = Annotated[
    str | None,
    _option(
        "--budget",
        "TIME",
        options.FIRST,
        "For timing loops here, e.g. 5min; 0 predicts no times. Default: 30.",
    ),
]


def replay(
    context: typer.Context,
    run: options.Run = None,
    drafter: options.Drafter = None,
    draft: options.Draft = None,
    draft_revision: options.DraftRevision = None,
    k: Ks = None,
    sampling: Name = None,
    budget: Budget = None,
    threads: options.Threads = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Predict any drafter and any K from the ArS texts of a run; nothing is generated.

    Example: spsbench replay results/RUN --drafter model,lookup --k 1..8
    """
    from spsbench.paths import results_dir
    from spsbench.store import latest

    replay_run(run or latest(results_dir()), context.params)


def replay_run(directory: Path, params: Mapping[str, Any]) -> None:
    """Replay drafters over a run's ArS texts.

    Raises:
        UsageError: the run cannot be replayed, or not with these drafters.
        UnavailableError: its models cannot be had.
    """
    from spsbench.replay.study import study
    from spsbench.replay.texts import texts_of

    quiet = params["quiet"]
    ks, drafters = values.lookaheads(params["k"] or "1..8"), values.drafters(params["drafter"] or "model")
    budget_s = values.seconds(params["budget"], 30.0)
    say(f"Reading {directory}", quiet=quiet)
    written = texts_of(directory, params["sampling"])
    found = study(
        written, loaded(written, params), drafters, ks, budget_s, lambda text: say(text, quiet=quiet)
    )
    if params["json"]:
        print_json(_facts(found))
    else:
        out().print(Group(_title(written), "", _table(found).as_rich(), "", _note(found)))


def loaded(written: Written, params: Mapping[str, Any]) -> Pair:
    """The run's target, and its draft or the one that was named.

    Raises:
        UsageError: the target is no longer what wrote the texts.
    """
    from spsbench.config import ModelRef
    from spsbench.models.pair import find_pair, load_pair, pair_backend, resolve_device

    config = written.config
    wanted = config.pair
    if params["draft"] is not None:
        named = ModelRef(id=params["draft"], revision=params["draft_revision"])
        wanted = wanted.model_copy(update={"draft": named})
    source = find_pair(wanted)
    before, now = written.info["identity"]["pair"]["target"], source.target.identity()
    if before != now:
        raise UsageError(
            f"the target is now {now['fingerprint']}, and {before['fingerprint']} wrote these texts.",
            flag="RUN",
            remedy="Run it again with this target.",
        )
    device = resolve_device(config.device)
    dtypes = config.model_dtype, config.draft_model_dtype
    backend, _ = pair_backend(config.backend, source, dtypes, device)
    asked = params["threads"] or config.threads
    return load_pair(source, dtypes, device, backend, None if asked == "auto" else int(asked))


def _facts(study: Study) -> dict[str, Any]:
    written = study.written
    return {
        "run": str(written.directory),
        "sampling": written.sampling_name,
        "texts": len(written.texts),
        "tokens": written.tokens,
        "cells": [
            {
                "drafter": str(one.cell.drafter),
                "k": one.cell.k,
                "tokens_per_loop": asdict(one.cell.tokens_per_loop),
                "r_prime": one.cell.r_prime,
                "emitted": one.cell.emitted.tolist(),
                "loops": dict(zip(("p50", "p90", "p99"), one.cell.loops, strict=True)),
                "predicted": None if (told := study.predicted(one)) is None else asdict(told),
                "measured_tokens_per_loop": one.measured,
            }
            for one in study.found
        ],
    }


def _title(written: Written) -> str:
    return (
        f"{written.info['task_label']}, {written.sampling_name}: replayed over {len(written.texts)} texts, "
        f"{written.tokens:,} tokens"
    )


def _table(study: Study) -> Table:
    from spsbench.report.tables import Heading, Row, Table, left, right
    from spsbench.report.wording import interval

    rows: list[Row | Heading] = []
    before = None
    for one in study.found:
        if one.cell.drafter != before:
            before = one.cell.drafter
            rows.append(Heading(str(before)))
        p50, _, p99 = one.cell.loops
        told = study.predicted(one)
        rows.append(
            [
                f"K={one.cell.k}",
                interval(one.cell.tokens_per_loop),
                "" if one.measured is None else f"{one.measured:.2f}",
                f"{p50}, {p99}",
                "" if told is None else f"{told.ms_per_token.estimate:.3g}",
                "" if told is None else interval(told.speedup, "x"),
            ]
        )
    titles = ("tokens/loop [95%]", "in the run", "loops P50, P99", "ms/token", "speedup [95%]")
    return Table([left(), *map(right, titles)], rows)


def _note(study: Study) -> str:
    times = "" if study.ars is None else " Times are of loops run here."
    return f"Predicted: no sequence was generated for these numbers.{times}"

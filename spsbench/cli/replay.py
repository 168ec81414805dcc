"""``spsbench replay``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group

from spsbench.cli import options
from spsbench.cli.console import out, print_json, say
from spsbench.cli.options import _option
from spsbench.errors import UsageError

if TYPE_CHECKING:
    from spsbench.models.pair import Pair
    from spsbench.records import Spec
    from spsbench.replay.cells import Cell
    from spsbench.replay.texts import Written
    from spsbench.report.tables import Table

Ks = Annotated[str | None, _option("--k", "LIST", options.FIRST, "Lookahead: 4, 2,4 or 1..8. Default: 1..8.")]
Name = Annotated[
    str | None,
    _option("--sampling", "NAME", options.FIRST, "Of the texts. Default: the run's first."),
]

_MEASURED = "measured"


def replay(
    context: typer.Context,
    run: options.Run = None,
    drafter: options.Drafter = None,
    draft: options.Draft = None,
    draft_revision: options.DraftRevision = None,
    k: Ks = None,
    sampling: Name = None,
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
    from spsbench.config import parse_ks
    from spsbench.replay.cells import cell
    from spsbench.replay.replaying import replay
    from spsbench.replay.texts import texts_of

    quiet = params["quiet"]
    ks = [k for k in parse_ks(params["k"] or "1..8") if k]
    if not ks:
        raise UsageError("0 is ArS, which is what is replayed.", flag="--k", remedy="Give a K from 1 on.")
    say(f"Reading {directory}", quiet=quiet)
    written = texts_of(directory, params["sampling"])
    drafters = _drafters(params["drafter"])
    pair = _loaded(written, params)
    say(f"Reading {len(written.texts)} texts with {', '.join(map(str, drafters))}", quiet=quiet)
    found = replay(written.texts, pair, written.sampling, drafters, max(ks))
    cells = [cell(replayed, written.texts, k) for replayed in found for k in ks]
    measured = _measured(directory, written)
    if params["json"]:
        print_json(_facts(written, cells, measured))
    else:
        out().print(Group(_title(written), "", _table(cells, measured).as_rich()))


def _drafters(text: str | None) -> list[Spec]:
    from spsbench.drafters.registry import drafter_kind
    from spsbench.records import Spec

    specs = list(dict.fromkeys(Spec.parse(name) for name in (text or "model").split(",")))
    for spec in specs:
        drafter_kind(spec.name).settled(spec)
    return specs


def _loaded(written: Written, params: Mapping[str, Any]) -> Pair:
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


def _measured(directory: Path, written: Written) -> dict[tuple[str, int], float]:
    """Tokens per loop of the run's own SpS arms, by drafter and K."""
    from spsbench.axes import FIXED, MODIFIED_REJECTION
    from spsbench.store import read_frames

    frames = read_frames(directory)
    own = [arm for arm in written.info["arms"] if arm["method"] == "sps"]
    found = {}
    for arm in own:
        plain = arm["rule"] == MODIFIED_REJECTION and arm["policy"] == FIXED
        if plain and arm["sampling"] == written.sampling_name and arm["engine"] == "eager":
            loops = frames.loops[frames.loops["arm"] == arm["arm"]]
            if len(loops):
                found[str(arm["drafter"]), int(arm["k"])] = float(loops["emitted"].mean())
    return found


def _facts(
    written: Written, cells: Sequence[Cell], measured: Mapping[tuple[str, int], float]
) -> dict[str, Any]:
    return {
        "run": str(written.directory),
        "sampling": written.sampling_name,
        "texts": len(written.texts),
        "tokens": written.tokens,
        "cells": [
            {
                "drafter": str(cell.drafter),
                "k": cell.k,
                "tokens_per_loop": cell.tokens_per_loop.estimate,
                "low": cell.tokens_per_loop.low,
                "high": cell.tokens_per_loop.high,
                "r_prime": cell.r_prime,
                "emitted": cell.emitted.tolist(),
                "loops": dict(zip(("p50", "p90", "p99"), cell.loops, strict=True)),
                _MEASURED: measured.get((str(cell.drafter), cell.k)),
            }
            for cell in cells
        ],
    }


def _title(written: Written) -> str:
    return (
        f"{written.info['task_label']}, {written.sampling_name}: replayed over {len(written.texts)} texts, "
        f"{written.tokens:,} tokens"
    )


def _table(cells: Sequence[Cell], measured: Mapping[tuple[str, int], float]) -> Table:
    from spsbench.report.tables import Heading, Table, left, right

    rows: list[Any] = []
    for cell in cells:
        if not rows or cells[cells.index(cell) - 1].drafter != cell.drafter:
            rows.append(Heading(str(cell.drafter)))
        found, seen = cell.tokens_per_loop, measured.get((str(cell.drafter), cell.k))
        ends = "" if found.low is None else f" [{found.low:.2f}, {found.high:.2f}]"
        rows.append(
            [
                f"K={cell.k}",
                f"{found.estimate:.2f}{ends}",
                f"{cell.r_prime:.2f}",
                *(str(count) for count in cell.loops),
                "" if seen is None else f"{seen:.2f}",
            ]
        )
    titles = ("tokens/loop [95%]", "r'", "loops P50", "P90", "P99", _MEASURED)
    return Table([left(), *map(right, titles)], rows)

"""``spsbench paper``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spsbench.cli import options
from spsbench.cli.console import out, print_json, say
from spsbench.errors import IncompleteError, UsageError
from spsbench.paths import results_dir

if TYPE_CHECKING:
    from spsbench.config import RunConfig
    from spsbench.runner import Plan
    from spsbench.summary_types import Summary


WHAT = options.WHAT

Limit = Annotated[
    str | None,
    typer.Option(
        "--limit",
        metavar="N|all",
        rich_help_panel=WHAT,
        help="Prompts of every part. Default: as many as the mini pair does in 20 minutes.",
        show_default=False,
    ),
]
Samples = Annotated[
    str | None,
    typer.Option(
        "--samples",
        metavar="N",
        rich_help_panel=WHAT,
        help="Programs per HumanEval problem; 100 in the paper. Default: 10.",
        show_default=False,
    ),
]


def paper(
    context: typer.Context,
    pair: options.Pair = None,
    data: options.Data = None,
    limit: Limit = None,
    samples: Samples = None,
    no_score: options.NoScore = False,
    allow_code_exec: options.AllowCodeExec = False,
    unsafe_exec: options.UnsafeExec = False,
    extract: options.Extract = None,
    seed: options.Seed = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    backend: options.Backend = None,
    out: options.Out = None,
    resume: options.Resume = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Table 1 and Figure 1 of Chen et al. 2023 for one pair, in one directory.

    Table 1: ArS and SpS (K=4) on XSum, nucleus and greedy, and on HumanEval, nucleus. Figure 1: K from
    0 to 7 on both tasks, 128 tokens each.
    """

    reproduce(context.params)


OPTIONS_FILE, SUMMARY_FILE, PAGE_FILE = "options.json", "paper.json", "paper.md"
FIGURE_FILE = "figures/figure1.svg"
SCHEMA_VERSION = 1
ALL = "all"

_OPTIONS = (
    *("pair", "data", "limit", "samples", "no_score", "allow_code_exec", "unsafe_exec"),
    *("seed", "device", "dtype", "threads", "backend", "extract"),
)
_NUMBERS = ("limit", "samples", "seed", "threads")


@dataclass(frozen=True, slots=True)
class Part:
    """One run of the paper.

    Attributes:
        name: of its directory.
        title: what it stands for.
        settings: fields of ``RunConfig``.
    """

    name: str
    title: str
    settings: Mapping[str, Any]


_FIGURE = {"ks": "0..7", "samplings": "nucleus", "samples": 1, "fixed_length": True, "max_new_tokens": 128}
PARTS = (
    Part(
        "table1-xsum",
        "Table 1, XSum",
        {"task": "xsum", "ks": "4", "samplings": "nucleus,greedy", "samples": 1, "limit": 100},
    ),
    Part(
        "table1-humaneval",
        "Table 1, HumanEval",
        {"task": "humaneval", "ks": "4", "samplings": "nucleus", "samples": 10, "limit": 16},
    ),
    Part("figure1-xsum", "Figure 1, XSum", {"task": "xsum", **_FIGURE, "limit": 12, "score": False}),
    Part(
        "figure1-humaneval",
        "Figure 1, HumanEval",
        {"task": "humaneval", **_FIGURE, "limit": 12, "score": False},
    ),
)


def reproduce(params: Mapping[str, Any]) -> None:
    """Measure every part that is missing and write ``paper.md`` and ``paper.json``.

    Raises:
        UsageError: a setting is wrong or the directory belongs to something else; nothing was measured.
        IncompleteError: sequences failed; what there is is shown all the same.
    """
    from spsbench.store.files import write_json

    quiet: bool = params["quiet"]
    options = _options(params)
    configs = [settings(part, options) for part in PARTS]
    say("Checking tasks, data and models", quiet=quiet)
    from spsbench.runner import plan

    plans = [plan(config) for config in configs]
    directory = _directory(params, configs[0].pair.name)
    write_json(directory / OPTIONS_FILE, options)
    with _telling_how_to_go_on(directory):
        summaries = {
            part.name: _measure(part, ready, directory, quiet=quiet)
            for part, ready in zip(PARTS, plans, strict=True)
        }
    page = _conclude(summaries, directory)
    if params["json"]:
        print_json(page)
    else:
        from spsbench.report.paper import screen

        out().print(screen(page))
    say(f"Everything is in {directory / PAGE_FILE}", quiet=quiet)
    if not page["complete"]:
        raise IncompleteError(
            "some sequences failed or are missing.",
            remedy=f"`spsbench paper --resume {directory}` tries again.",
        )


def settings(part: Part, options: Mapping[str, Any]) -> RunConfig:
    """The configuration of one part under the options that were given."""
    from spsbench.config import resolve

    given: dict[str, Any] = dict(part.settings)
    for name in ("data", "seed", "device", "dtype", "threads", "backend"):
        if options[name] is not None:
            given[name] = options[name]
    if options["limit"] is not None:
        given["limit"] = options["limit"]
    if options["samples"] is not None and given["samples"] > 1:
        given["samples"] = options["samples"]
    if options["no_score"]:
        given["score"] = False
    for name in ("allow_code_exec", "unsafe_exec"):
        if options[name]:
            given[name] = True
    if options.get("extract") is not None and given["task"] == "humaneval":
        given["extract"] = options["extract"]
    if given["limit"] == ALL:
        del given["limit"]  # the paper's protocol sets none
    return resolve(given, None, (), "paper", options["pair"])


def _options(params: Mapping[str, Any]) -> dict[str, Any]:
    """What was typed; with --resume what was typed the first time, unless it is given anew."""
    from spsbench.store.files import read_json

    resume: Path | None = params["resume"]
    if resume is not None and params["out"] is not None:
        raise UsageError(
            f"{params['out']} is given together with --resume.",
            flag="--out",
            remedy="Leave one of the two out.",
        )
    options = {name: _number(name, params[name]) for name in _OPTIONS}
    place = resume or params["out"]
    if place is None or not (resume or (place / OPTIONS_FILE).is_file()):
        return options
    before = read_json(place / OPTIONS_FILE, "--resume" if resume else "--out")
    return {name: options[name] or before.get(name) for name in _OPTIONS}


def _number(name: str, value: Any) -> Any:
    """A number where one was typed; other text stays, for the configuration to refuse."""
    return int(value) if name in _NUMBERS and isinstance(value, str) and value.isdigit() else value


def _directory(params: Mapping[str, Any], pair: str) -> Path:
    """Where everything goes; made if need be."""
    from spsbench.store import fresh_directory

    named: Path | None = params["resume"] or params["out"]
    if named is None:
        return fresh_directory(results_dir(), "paper", pair)
    try:
        named.mkdir(parents=True, exist_ok=True)
        strangers = any(named.iterdir()) and not (named / OPTIONS_FILE).is_file()
    except OSError as problem:
        raise UsageError(
            f"{named} cannot be used ({problem.strerror}).", flag="--out", remedy="Name another directory."
        ) from problem
    if strangers:
        raise UsageError(
            f"{named} is not empty and holds no paper.",
            flag="--out",
            remedy="Name a directory that is empty or does not exist.",
        )
    return named


def _measure(part: Part, plan: Plan, directory: Path, *, quiet: bool) -> Summary:
    """Carry out one part, as far as it is not there already, and draw its figures; answers its summary."""
    from spsbench.cli.progress import watching
    from spsbench.cli.report import derive
    from spsbench.runner import execute

    say(f"{part.title} ({PARTS.index(part) + 1} of {len(PARTS)})", quiet=quiet)
    with watching(quiet=quiet) as watcher:
        execute(plan, directory / part.name, resume=True, watcher=watcher)
    measured, _ = derive(directory / part.name)
    return measured.summary


def _conclude(summaries: Mapping[str, Summary], directory: Path) -> dict[str, Any]:
    from spsbench.report.paper import gather, render
    from spsbench.store.files import write_json, write_text

    titles = {part.name: part.title for part in PARTS}
    images = {name: path for name in titles if (directory / (path := f"{name}/{FIGURE_FILE}")).is_file()}
    page = {"schema_version": SCHEMA_VERSION, **gather(summaries, titles, images)}
    write_json(directory / SUMMARY_FILE, page)
    write_text(directory / PAGE_FILE, render(page))
    return page


@contextmanager
def _telling_how_to_go_on(directory: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        say(f"\nInterrupted; nothing finished is lost. Continue with:\n  spsbench paper --resume {directory}")
        raise

"""``spsbench simulate``: no model at all, theory against simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spsbench.cli import formula as by_formula
from spsbench.cli import options, values
from spsbench.cli.console import out as console
from spsbench.cli.console import print_json, say
from spsbench.cli.options import option
from spsbench.cli.simulate_question import ALPHA, FAULTS, cost_of, question_of
from spsbench.errors import UsageError

if TYPE_CHECKING:
    from spsbench.simulate.study import Question, World

FACTS_FILE = "simulation.json"
"""A folder that has it holds a simulation, and may be written again."""

CLOSENESS = "How close the draft is, instead of --alpha"
TARGET = "The target"

Alpha = Annotated[
    str | None,
    option(
        "--alpha",
        "A",
        options.FIRST,
        "Acceptance probability of a draft token, above 0 and below 1. Default: 0.8.",
    ),
]
Cost = Annotated[
    str | None,
    option(
        *("--cost", "C", options.FIRST),
        "c, time of a draft forward over a target forward. Default: 1.8/14.1, from Chen et al.",
    ),
]
Operations = Annotated[
    str | None,
    option(
        *("--operations", "C", TARGET),
        "c^, operations of a draft forward over a target forward. Default: 4/70, from Chen et al.",
    ),
]
Ks = Annotated[
    str | None,
    option("--k", "LIST", options.FIRST, "Lookahead: 4, 2,4 or 1..8. Default: 1..8; with --formula 0..7."),
]
SourceOption = Annotated[
    str | None,
    option("--source", "NAME", options.FIRST, "dirichlet, temperature or ngram. Default: dirichlet."),
]
Concentration = Annotated[
    str | None,
    option(
        "--concentration", "X", CLOSENESS, "dirichlet: the larger, the closer the draft is to the target."
    ),
]
DraftTemperature = Annotated[
    str | None,
    option("--draft-temperature", "T", CLOSENESS, "temperature: of the draft; 1 is the target itself."),
]
Dependence = Annotated[
    str | None,
    option(
        "--dependence", "X", CLOSENESS, "ngram: share of the target's row that depends on two tokens, 0 to 1."
    ),
]
Vocabulary = Annotated[str | None, option("--vocabulary", "V", TARGET, "Vocabulary size. Default: 32.")]
ContextsOption = Annotated[
    str | None,
    option(
        *("--contexts", "LIST", TARGET),
        "Classes of tokens that a row depends on; 1 is the same row everywhere. Default: 1,32; ngram: 8.",
    ),
]
Sharpness = Annotated[
    str | None, option("--sharpness", "X", TARGET, "Standard deviation of the logits. Default: 2.")
]
Variation = Annotated[
    str | None,
    option("--variation", "X", TARGET, "How unequal easy and hard contexts are, 0 to 0.99. Default: 0.9."),
]
Stay = Annotated[
    str | None,
    option("--stay", "X", TARGET, "Chance that easy stays easy and hard stays hard. Default: 0.95."),
]
Tokens = Annotated[
    str | None,
    option("--tokens", "N", options.FIRST, "Tokens for each K, in sequences of 128. Default: 6400."),
]
RuleOption = Annotated[
    str | None,
    option(
        "--rule",
        "NAME",
        options.FIRST,
        "What accepts draft tokens, see `spsbench list rules`. Default: modified-rejection.",
    ),
]
Fault = Annotated[
    str | None, option("--fault", "NAME", options.FIRST, f"Inject a faulty sampler: {', '.join(FAULTS)}.")
]
Folder = Annotated[
    Path | None,
    option(
        "--out", "DIR", options.FIRST, "Write figures, Markdown and JSON there. Default: nothing is written."
    ),
]
Formula = Annotated[
    bool,
    option("--formula", "", options.FIRST, "Print only what the formula predicts; nothing is simulated."),
]


def simulate(
    context: typer.Context,
    alpha: Alpha = None,
    cost: Cost = None,
    k: Ks = None,
    source: SourceOption = None,
    rule: RuleOption = None,
    fault: Fault = None,
    tokens: Tokens = None,
    seed: options.Seed = None,
    formula: Formula = False,
    out: Folder = None,
    concentration: Concentration = None,
    draft_temperature: DraftTemperature = None,
    dependence: Dependence = None,
    vocabulary: Vocabulary = None,
    contexts: ContextsOption = None,
    sharpness: Sharpness = None,
    variation: Variation = None,
    stay: Stay = None,
    operations: Operations = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Compare theory with simulated loops; target and draft are random tables, no model is needed.

    Example: spsbench simulate --alpha 0.8 --cost 0.13 --k 1..8
    """
    if formula:
        _formula(context.params)
    else:
        simulate_loops(context.params)


_OF_FORMULA = ("alpha", "cost", "k", "formula", "json", "quiet", "debug")


def _formula(params: Mapping[str, Any]) -> None:
    for name, value in params.items():
        if name not in _OF_FORMULA and value is not None:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{value} is for a simulation.", flag=flag, remedy="Leave it or --formula out.")
    alpha = values.between(params["alpha"], "--alpha", 0, 1, ALPHA)
    by_formula.show(alpha, cost_of(params), params["k"], json=params["json"], quiet=params["quiet"])


def simulate_loops(params: Mapping[str, Any]) -> None:
    """Simulate what was asked for, print it and write it."""
    quiet: bool = params["quiet"]
    question = question_of(params)
    from spsbench.cli.progress import counting
    from spsbench.simulate.study import prepare, study, total_loops, total_sequences

    pairs = prepare(question)
    folder = _folder(params["out"])
    with counting("Simulating", total_sequences(question), "sequences", quiet=quiet) as tick:
        worlds = study(question, pairs, tick)
    say(f"{total_loops(worlds):,} loops simulated", quiet=quiet)
    if folder is not None:
        _write(question, worlds, folder)
        say(f"Figures, page and JSON are in {folder}", quiet=quiet)
    if params["json"] or not quiet:
        _show(question, worlds, as_json=params["json"])


def _folder(out: Path | None) -> Path | None:
    """The folder, made before anything is simulated."""
    from spsbench.files import unwritable

    if out is None:
        return None
    try:
        out.mkdir(parents=True, exist_ok=True)
        strangers = any(out.iterdir()) and not (out / FACTS_FILE).is_file()
    except OSError as problem:
        raise unwritable(out, problem, "--out") from problem
    if strangers:
        raise UsageError(
            f"{out} is not empty and holds no simulation.",
            flag="--out",
            remedy="Name a directory that is empty or does not exist.",
        )
    return out


def _write(question: Question, worlds: Sequence[World], folder: Path) -> None:
    from spsbench.files import write_json, write_text
    from spsbench.report.figures.style import save
    from spsbench.simulate.figures import plates
    from spsbench.simulate.summary import facts, page

    drawn = plates(question, worlds)
    for plate in drawn:
        save(plate, folder)
    write_json(folder / FACTS_FILE, facts(question, worlds))
    write_text(folder / "simulation.md", page(question, worlds, drawn))


def _show(question: Question, worlds: Sequence[World], *, as_json: bool) -> None:
    from rich.console import Group, RenderableType
    from rich.text import Text

    from spsbench.simulate.summary import NOTE, factors, facts, heading, lengths, sentences, title

    if as_json:
        print_json(facts(question, worlds))
        return
    parts: list[RenderableType] = [Text(title(question), style="bold")]
    for world in worlds:
        parts += ["", Text(heading(question, world), style="bold"), ""]
        parts += [lengths(world).as_rich(), "", factors(world).as_rich(), ""]
        parts += [Text(sentence) for sentence in sentences(question, world)]
    console().print(Group(*parts, "", NOTE))

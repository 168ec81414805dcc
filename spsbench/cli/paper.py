"""``spsbench paper``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.cli import options
from spsbench.cli.console import say
from spsbench.cli.options import takes
from spsbench.cli.paper_parts import (
    ALL,
    OF_BOTH,
    OF_CHEN,
    OF_LEVIATHAN,
    SCHEMA_VERSION,
    TEMPERATURES,
    Part,
    Setup,
    keep_options,
    keep_page,
    measure_part,
    measured_drafts,
    options_before,
    options_of,
    paper_directory,
    settings_of,
    setup_of,
)
from spsbench.config.together import refuse_together
from spsbench.errors import UsageError

if TYPE_CHECKING:
    from spsbench.config import RunConfig
    from spsbench.report.leviathan import AlphaRow, WalltimeRun
    from spsbench.report.measured import Measured
    from spsbench.runner import Plan
    from spsbench.summary_types import Summary


@takes(
    "of pair target draft task data limit samples no_score unsafe_exec extract seed device dtype threads "
    "backend out resume",
    {
        options.FIRST: {
            "--of PAPER": (
                "chen (Table 1, Figure 1), leviathan (Tables 1 to 3, Figures 2 to 4) or a YAML file. "
                "Default: chen."
            ),
            "--draft [NAME=]MODEL...": "leviathan: a draft, e.g. small=MODEL; may be repeated.",
        },
        options.WHAT: {
            "--task [NAME=]TASK...": "leviathan: a task, e.g. ende=TASK; may be repeated.",
            "--limit N|all": (
                "Prompts of every run, or all. Default: chen 100, 16 and 12 by part; leviathan 40."
            ),
            "--samples N": "chen: programs per HumanEval problem; 100 in the paper. Default: 10.",
        },
    },
)
def paper(**params: Any) -> None:
    """Reproduce a paper's tables and figures from new measurements, in one directory.

    Example: spsbench paper --of leviathan --limit 10
    """
    of = _paper_of(params)
    if of == CHEN:
        reproduce(params)
        return

    reproduce_leviathan(params, of)


def _paper_of(params: Mapping[str, Any]) -> str:
    """What ``--of`` names; of a directory that was begun before, its own paper."""
    begun = options_before(params)
    typed = None if params["of"] is None else _resolved(params["of"])
    before = _resolved(begun.get("of", CHEN)) if begun else None
    if typed is not None and before is not None and typed != before:
        raise UsageError(
            f"{params['resume'] or params['out']} holds the paper {before}, got {typed}.",
            flag="--of",
            remedy="Leave it out, or name another directory.",
        )
    return typed or before or CHEN


def _resolved(of: str) -> str:
    """A file by its full path, so that ``--resume`` finds it from any folder; a paper's name stays."""
    from spsbench.config import is_file_name

    return str(Path(of).resolve()) if is_file_name(of) else of


FIGURE_FILE = "figures/figure1.svg"
CHEN = "chen"

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
    """Measure every part that is missing and write ``paper.md`` and ``paper.json``."""
    quiet: bool = params["quiet"]
    refuse_together("paper", {**params, CHEN: CHEN})
    options = options_of(params, (*OF_BOTH, *OF_CHEN))
    configs = [settings(part, options) for part in PARTS]
    say("Checking tasks, data and models", quiet=quiet)
    from spsbench.runner import plan

    plans = [plan(config) for config in configs]
    directory = paper_directory(params, configs[0].pair.name)
    keep_options(directory, options, zip(PARTS, plans, strict=True))
    summaries = {
        part.name: measure_part(part, ready, directory, (number, len(PARTS)), quiet=quiet).summary
        for number, (part, ready) in enumerate(zip(PARTS, plans, strict=True), start=1)
    }
    page = _gather(summaries, directory)
    from spsbench.report.paper import render, screen

    keep_page(page, render(page), screen(page), directory, params)


def settings(part: Part, options: Mapping[str, Any]) -> RunConfig:
    """The configuration of one part under the options that were given."""
    from spsbench.config import resolve

    given: dict[str, Any] = {**part.settings, **settings_of(options)}
    if options["limit"] is not None:
        given["limit"] = options["limit"]
    if options["samples"] is not None and given["samples"] > 1:
        given["samples"] = options["samples"]
    if options["no_score"]:
        given["score"] = False
    if options["unsafe_exec"]:
        given["unsafe_exec"] = True
    if options.get("extract") is not None and given["task"] == "humaneval":
        given["extract"] = options["extract"]
    if given["limit"] == ALL:
        del given["limit"]  # the paper's protocol sets none
    return resolve(given, None, (), "paper", options["pair"])


def _gather(summaries: Mapping[str, Summary], directory: Path) -> dict[str, Any]:
    from spsbench.report.paper import gather

    titles = {part.name: part.title for part in PARTS}
    images = {name: path for name in titles if (directory / (path := f"{name}/{FIGURE_FILE}")).is_file()}
    return {"schema_version": SCHEMA_VERSION, **gather(summaries, titles, images)}


def reproduce_leviathan(params: Mapping[str, Any], of: str) -> None:
    """Measure every part that is missing, write ``paper.md``, ``paper.json`` and the figures."""
    quiet: bool = params["quiet"]
    refuse_together("paper", {**params, "leviathan": of})
    options = options_of({**params, "of": of}, ("of", *OF_BOTH, *OF_LEVIATHAN))
    setup = Setup(setup_of(options), options)
    say("Checking tasks, data and models", quiet=quiet)
    plans = setup.plans()
    directory = paper_directory(params, setup.paper.name)
    texts = {task: _texts_plan(setup, task, plans, directory) for task in setup.paper.tasks}
    begun = [(setup.texts(task), ready) for task, ready in texts.items()]
    keep_options(directory, options, [*begun, *_begun_rows(setup, directory)])
    summaries, alphas, rows = _measure(setup, plans, texts, directory, quiet=quiet)
    _conclude(setup, summaries, alphas, rows, directory, params)


def _texts_plan(setup: Setup, task: str, plans: Mapping[tuple[str, str], Plan], directory: Path) -> Plan:
    """The plan of a task's texts. A run needs a draft, though none writes them: that it was begun with stays.

    So drafts may come, go and change their order while the texts are those of before.
    """
    from spsbench.config import resolve
    from spsbench.runner import plan
    from spsbench.store.opening import CONFIG_FILE

    part, drafts = setup.texts(task), setup.paper.drafts
    config = directory / part.name / CONFIG_FILE
    if not config.is_file():
        return plans[task, next(iter(drafts))]
    begun = resolve({}, config).pair
    for name, model in drafts.items():
        if model == begun.draft:
            return plans[task, name]
    pair = setup.pair(next(iter(drafts))).model_copy(update={"draft": begun.draft, "name": begun.name})
    return plan(setup.config(part, pair))


def _begun_rows(setup: Setup, directory: Path) -> Iterator[tuple[Part, Plan]]:
    """The rows of Table 2 whose runs are there already, with the K that was chosen for them."""
    from spsbench.files import read_json
    from spsbench.runner import plan
    from spsbench.store.opening import RUN_FILE

    for task in setup.paper.tasks:
        path = directory / f"drafts-{task}.json"
        known = read_json(path, "--out")["temperatures"] if path.is_file() else {}
        for temperature, draft in product(TEMPERATURES, setup.paper.drafts):
            chosen = known.get(str(temperature), {}).get("drafts", {}).get(draft)
            part = setup.row(task, draft, temperature, chosen["k"]) if chosen else None
            if part is not None and (directory / part.name / RUN_FILE).is_file():
                yield part, plan(setup.config(part, setup.pair(draft)))


def _measure(
    setup: Setup,
    plans: Mapping[tuple[str, str], Plan],
    texts: Mapping[str, Plan],
    directory: Path,
    *,
    quiet: bool,
) -> tuple[dict[str, tuple[str, Summary]], list[AlphaRow], list[WalltimeRun]]:
    """Every run, as far as it is not there already."""
    from spsbench.runner import plan

    summaries: dict[str, tuple[str, Summary]] = {}
    alphas: list[AlphaRow] = []
    rows: list[WalltimeRun] = []

    def run(part: Part, ready: Plan) -> Measured:
        place = len(summaries) + 1, setup.count
        measured = measure_part(part, ready, directory, place, quiet=quiet)
        summaries[part.name] = part.title, measured.summary
        return measured

    for task in setup.paper.tasks:
        run(setup.texts(task), texts[task])
        found = measured_drafts(setup, task, plans, directory, quiet=quiet)
        alphas += _alpha_rows(task, found)
        for temperature, draft in product(TEMPERATURES, setup.paper.drafts):
            chosen = found["temperatures"][str(temperature)]["drafts"][draft]
            part = setup.row(task, draft, temperature, chosen["k"])
            measured = run(part, plan(setup.config(part, setup.pair(draft))))
            rows.append(_row(task, draft, temperature, part, measured, chosen["c"]))
    return summaries, alphas, rows


def _alpha_rows(task: str, found: Mapping[str, Any]) -> list[AlphaRow]:
    """Rows of Table 3 of one task."""
    from spsbench.report import leviathan

    return [
        {
            "task": task,
            "draft": draft,
            "temperature": temperature,
            "alpha": {"estimate": one["estimate"], "low": one["low"], "high": one["high"]},
            "positions": one["positions"],
            "paper": leviathan.printed_alpha(task, draft, temperature),
        }
        for temperature in TEMPERATURES
        for draft, one in found["temperatures"][str(temperature)]["alphas"].items()
    ]


def _row(
    task: str, draft: str, temperature: int, part: Part, measured: Measured, rehearsed_c: float
) -> WalltimeRun:
    from spsbench.report.leviathan import WalltimeRun
    from spsbench.stats.acceptance import mean_length
    from spsbench.stats.losslessness import alpha_leviathan_interval

    arms = {row["method"]: row["arm"] for row in measured.summary["rows"]}
    samples, loops = measured.samples, measured.loops
    alpha = alpha_leviathan_interval(samples[samples["arm"] == arms["ars"]])
    length = mean_length(loops[loops["arm"] == arms["sps"]])
    return WalltimeRun(task, draft, temperature, part.name, measured.summary, alpha, length, rehearsed_c)


def _conclude(
    setup: Setup,
    measured: Mapping[str, tuple[str, Summary]],
    alphas: Sequence[AlphaRow],
    rows: Sequence[WalltimeRun],
    directory: Path,
    params: Mapping[str, Any],
) -> None:
    """Write the page and its figures, and show it."""
    from spsbench.report.figures.leviathan import draw
    from spsbench.report.figures.style import save
    from spsbench.report.leviathan import gather, render, screen, walltime_row

    titles = {name: title for name, (title, _) in measured.items()}
    summaries = {name: summary for name, (_, summary) in measured.items()}
    page = gather([walltime_row(row) for row in rows], alphas, summaries, titles, setup.pair_name)
    page = {"schema_version": SCHEMA_VERSION, **page, "study": setup.study}
    plates = draw(page)
    for plate in plates:
        save(plate, directory, "figures")
    figures = [{"name": one.name, "title": one.title, "caption": one.caption} for one in plates]
    keep_page(page, render(page, figures), screen(page), directory, params)

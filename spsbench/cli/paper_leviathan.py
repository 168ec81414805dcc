"""``spsbench paper --of leviathan``: one target, several drafts, tasks at temperature 0 and 1.

For each task the target writes texts (ArS, both temperatures). Over them every draft's alpha is measured by
teacher forcing, and its c by timing; theory then chooses K. Each row of Table 2 is a run of its own, ArS
beside SpS with that K. The K is kept in ``drafts-TASK.json``: a paper that is continued keeps its runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.cli.console import say
from spsbench.cli.leviathan_drafts import measured_drafts
from spsbench.cli.leviathan_setup import TEMPERATURES, Setup, setup_of
from spsbench.cli.paper_parts import (
    OF_BOTH,
    OF_CHEN,
    OF_LEVIATHAN,
    SCHEMA_VERSION,
    Part,
    keep_options,
    keep_page,
    measure_part,
    options_of,
    paper_directory,
    refuse_options,
)

if TYPE_CHECKING:
    from spsbench.report.leviathan import AlphaRow, WalltimeRun
    from spsbench.report.measured import Measured
    from spsbench.runner import Plan
    from spsbench.summary_types import Summary


def reproduce_leviathan(params: Mapping[str, Any], of: str) -> None:
    """Measure every part that is missing, write ``paper.md``, ``paper.json`` and the figures."""
    quiet: bool = params["quiet"]
    refuse_options(params, OF_CHEN, of)
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
    from spsbench.report import published

    return [
        {
            "task": task,
            "draft": draft,
            "temperature": temperature,
            "alpha": {"estimate": one["estimate"], "low": one["low"], "high": one["high"]},
            "positions": one["positions"],
            "paper": published.alpha(task, draft, temperature),
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

"""``spsbench paper --of leviathan``: one target, several drafts, tasks at temperature 0 and 1.

For each task the target writes texts (ArS, both temperatures). Over them every draft's alpha is measured by
teacher forcing, and its c by timing; theory then chooses K. Each row of Table 2 is a run of its own, ArS
beside SpS with that K. The K is kept in ``drafts-TASK.json``: a paper that is continued keeps its runs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.cli.console import say
from spsbench.cli.paper_parts import (
    ALL,
    OF_BOTH,
    OF_CHEN,
    OF_LEVIATHAN,
    SCHEMA_VERSION,
    Part,
    keep_options,
    measure_part,
    options_of,
    paper_directory,
    refuse_options,
    settings_of,
    show_page,
    telling_how_to_go_on,
    write_page,
)
from spsbench.errors import UsageError

if TYPE_CHECKING:
    from spsbench.config import PairConfig, PaperConfig, RunConfig
    from spsbench.models.pair import Pair
    from spsbench.records import SamplingParams
    from spsbench.replay.texts import Written
    from spsbench.report.leviathan import AlphaRow, WalltimeRun
    from spsbench.report.measured import Measured
    from spsbench.runner import Plan
    from spsbench.summary_types import Summary

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")
_ENDING = re.compile(r"\.(gguf|ya?ml|jsonl)$")
"""What a file's name loses; of `org/Model-3.2-1B` the number is no ending."""

TEMPERATURES = (0, 1)
_LIMITS: Mapping[str, Any] = {"samples": 1, "score": False, "proof": False}
"""Of every run: what a table of times and acceptance does not need is left out."""


def reproduce_leviathan(params: Mapping[str, Any], of: str) -> None:
    """Measure every part that is missing, write ``paper.md``, ``paper.json`` and the figures.

    Args:
        params: every option by its name in Python, as typed.
        of: the paper, or a YAML file like its own.

    Raises:
        UsageError: a setting is wrong, the directory belongs to something else or holds runs of other
            settings; nothing was measured or written.
        IncompleteError: sequences failed; what there is is shown all the same.
    """
    quiet: bool = params["quiet"]
    refuse_options(params, OF_CHEN, of)
    options = options_of({**params, "of": of}, ("of", *OF_BOTH, *OF_LEVIATHAN))
    setup = _Setup(setup_of(options), options)
    say("Checking tasks, data and models", quiet=quiet)
    plans = setup.plans()
    directory = paper_directory(params, setup.paper.name)
    texts = {task: _texts_plan(setup, task, plans, directory) for task in setup.paper.tasks}
    begun = [(setup.texts(task), ready) for task, ready in texts.items()]
    keep_options(directory, options, [*begun, *_begun_rows(setup, directory)])
    with telling_how_to_go_on(directory):
        summaries, alphas, rows = _measure(setup, plans, texts, directory, quiet=quiet)
    _conclude(setup, summaries, alphas, rows, directory, params)


def setup_of(options: Mapping[str, Any]) -> PaperConfig:
    """The models and tasks of a paper, with what was typed in their place.

    Raises:
        UsageError: ``--target`` without a draft or beside ``--pair``, two drafts or tasks of one name, or a
            draft with the name of one that is counted.
    """
    from spsbench.config import ModelRef, load_pair, load_paper

    paper = load_paper(options["of"])
    drafts, tasks = _named_drafts(options["draft"] or ()), _named("--task", options["task"] or ())
    changes: dict[str, Any] = {"tasks": tasks} if tasks else {}
    if options["target"] is not None and options["pair"] is not None:
        raise UsageError(
            f"{options['target']!r} is given together with --pair.",
            flag="--target",
            remedy="Give either --pair, or --target and --draft.",
        )
    if options["target"] is not None and not drafts:
        raise UsageError(
            f"no draft of {options['target']!r} is named.",
            flag="--draft",
            remedy="Give one or more, e.g. --draft small=MODEL.",
        )
    if options["pair"] not in (None, paper.pair):
        changes |= {"pair": options["pair"], "drafts": {"draft": load_pair(options["pair"]).draft}}
    if drafts:
        changes["drafts"] = {name: ModelRef(id=id) for name, id in drafts.items()}
    if changes:
        changes["notes"] = ""  # they are of the file's own models and tasks
    return paper.model_copy(update=changes)


def _named(flag: str, given: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` or a value alone, which is named after its last part.

    Raises:
        UsageError: an empty value, or a name twice.
    """
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (equals and _NAME.fullmatch(name)):
            name, value = _UNFIT.sub("-", _ENDING.sub("", Path(text).name)).strip("-."), text
        if not name or not value.strip():
            raise UsageError(
                f"{text!r} is not valid.", flag=flag, remedy="Give NAME=VALUE, e.g. small=MODEL."
            )
        if name in found:
            raise UsageError(f"{name!r} is given twice.", flag=flag, remedy="Give each a name of its own.")
        found[name] = value.strip()
    return found


def _named_drafts(given: Sequence[str]) -> dict[str, str]:
    """See ``_named``.

    Raises:
        UsageError: also for the name of a draft that Table 3 has besides.
    """
    from spsbench.config import NGRAMS

    found = _named("--draft", given)
    if taken := next((name for name in NGRAMS if name in found), None):
        raise UsageError(
            f"{taken!r} is the name of a draft that is counted on the target's texts.",
            flag="--draft",
            remedy="Give the model another name, e.g. small=MODEL.",
        )
    return found


@dataclass(frozen=True, slots=True)
class _Setup:
    """What is measured, and how.

    Attributes:
        paper: models and tasks.
        options: as typed.
    """

    paper: PaperConfig
    options: Mapping[str, Any]

    @property
    def count(self) -> int:
        """Of all runs."""
        paper = self.paper
        return len(paper.tasks) * (1 + len(paper.drafts) * len(TEMPERATURES))

    @property
    def pair_name(self) -> str:
        """What target and drafts are called together."""
        return self.paper.pair if self.options["target"] is None else "custom"

    @property
    def study(self) -> dict[str, Any]:
        """Models and tasks as ``paper.json`` has them; ``target`` where no pair was named."""
        return {"target": self.options["target"], **self.paper.model_dump(mode="json")}

    def plans(self) -> dict[tuple[str, str], Plan]:
        """A plan of the texts by task and draft: whatever can be refused is refused here."""
        from spsbench.runner import plan

        texts = {task: self.texts(task) for task in self.paper.tasks}
        return {
            (task, draft): plan(self.config(part, self.pair(draft)))
            for (task, part), draft in product(texts.items(), self.paper.drafts)
        }

    def texts(self, task: str) -> Part:
        """The run in which the target writes the texts of a task."""
        names = ",".join(self.samplings(task))
        given = {"task": self.paper.tasks[task], "methods": "ars", "samplings": names, "ks": "0"}
        return Part(f"texts-{task}", f"Texts of the target, {task}", given)

    def row(self, task: str, draft: str, temperature: int, k: int) -> Part:
        """The run of a row of Table 2."""
        name = self.samplings(task)[temperature]
        given = {"task": self.paper.tasks[task], "ks": str(k), "samplings": name}
        title = f"Table 2, {task}, {draft}, T={temperature}, K={k}"
        return Part(f"table2-{task}-{draft}-t{temperature}", title, given)

    def samplings(self, task: str) -> tuple[str, str]:
        """The task's samplings that stand for temperature 0 and 1; the second one's parameters are replaced.

        Raises:
            UsageError: it lacks one of them.
        """
        from spsbench.records import SamplingParams
        from spsbench.tasks.catalogue import load_task

        known = load_task(self.paper.tasks[task], unsafe_exec=False, extract="auto").samplings
        greedy = [name for name, sampling in known.items() if sampling.greedy]
        drawn = [name for name, sampling in known.items() if not sampling.greedy]
        if not greedy or not drawn:
            lacking = "greedy sampling" if drawn else "sampling that leaves anything to chance"
            raise UsageError(
                f"{self.paper.tasks[task]} has no {lacking}, and the tables are of temperature 0 and 1.",
                flag="--task",
                remedy="Choose another task, or add it to the task's samplings.",
            )
        plain = [name for name in drawn if known[name] == SamplingParams()]
        return greedy[0], (plain or drawn)[0]

    def config(self, part: Part, pair: PairConfig) -> RunConfig:
        """The configuration of one run."""
        from spsbench.config import resolve

        given: dict[str, Any] = {**part.settings, "pair": pair.model_dump(mode="json")}
        given |= {**_LIMITS, "temperature": 1.0, "top_p": 1.0, "top_k": 0, **settings_of(self.options)}
        limit = self.paper.limit if self.options["limit"] is None else self.options["limit"]
        if limit not in (None, ALL):
            given["limit"] = limit
        return resolve(given, None, (), "paper", None)

    def pair(self, draft: str) -> PairConfig:
        """The target with one of the drafts."""
        from spsbench.config import ModelRef, PairConfig, load_pair

        own, target = self.paper.drafts[draft], self.options["target"]
        if target is not None:
            pair = PairConfig(name="custom", target=ModelRef(id=target), draft=own)
        else:
            pair = load_pair(self.paper.pair).model_copy(update={"draft": own, "drafter": None})
        name = pair.name if len(self.paper.drafts) == 1 else f"{pair.name}-{draft}"
        return pair.model_copy(update={"name": name})


def _texts_plan(setup: _Setup, task: str, plans: Mapping[tuple[str, str], Plan], directory: Path) -> Plan:
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


def _begun_rows(setup: _Setup, directory: Path) -> Iterator[tuple[Part, Plan]]:
    """The rows of Table 2 whose runs are there already, with the K that was chosen for them."""
    from spsbench.runner import plan
    from spsbench.store.files import read_json
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
    setup: _Setup,
    plans: Mapping[tuple[str, str], Plan],
    texts: Mapping[str, Plan],
    directory: Path,
    *,
    quiet: bool,
) -> tuple[dict[str, tuple[str, Summary]], list[AlphaRow], list[WalltimeRun]]:
    """Every run, as far as it is not there already.

    Returns:
        by the run's folder its title and its summary; Table 3; and what Table 2 is made from.
    """
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
        found = _drafts(setup, task, plans, directory, quiet=quiet)
        alphas += _alpha_rows(task, found)
        for temperature, draft in product(TEMPERATURES, setup.paper.drafts):
            chosen = found["temperatures"][str(temperature)]["drafts"][draft]
            part = setup.row(task, draft, temperature, chosen["k"])
            measured = run(part, plan(setup.config(part, setup.pair(draft))))
            rows.append(_row(task, draft, temperature, part, measured, chosen["c"]))
    return summaries, alphas, rows


def _drafts(
    setup: _Setup,
    task: str,
    plans: Mapping[tuple[str, str], Plan],
    directory: Path,
    *,
    quiet: bool,
) -> dict[str, Any]:
    """What is known of every draft on a task; measured unless it is there, of these very texts.

    Returns:
        ``texts`` (a hash), ``models`` by draft, and under ``temperatures`` by ``"0"`` and ``"1"``: ``alphas``
        by draft, n-gram drafts among them, and ``drafts``, by draft ``k`` with the alpha and c that chose it.
    """
    from spsbench.replay.texts import texts_of
    from spsbench.store.files import read_json, write_json

    path = directory / f"drafts-{task}.json"
    before = read_json(path, "--out") if path.is_file() else {}
    names = setup.samplings(task)
    texts = [texts_of(directory / setup.texts(task).name, name, fewest=1) for name in names]
    digest = _digest(texts, setup)
    if before.get("texts") == digest:
        return before
    say(f"Measuring alpha and c of the drafts on {task}", quiet=quiet)
    pairs = _load({draft: plans[task, draft] for draft in setup.paper.drafts})
    window = min(plans[task, draft].source.longest for draft in pairs)
    chosen = before.get("temperatures", {})
    models = {name: model.model_dump(mode="json") for name, model in setup.paper.drafts.items()}
    known = before.get("models", models)  # papers begun by earlier versions do not say
    found: dict[str, Any] = {"texts": digest, "models": models, "temperatures": {}}
    for temperature, written in zip(map(str, TEMPERATURES), texts, strict=True):
        by_draft = chosen.get(temperature, {}).get("drafts", {})
        kept = {name: one for name, one in by_draft.items() if known.get(name) == models.get(name)}
        found["temperatures"][temperature] = _at(written, pairs, window, setup.paper.most_k, kept)
    write_json(path, found)
    return found


def _at(
    written: Written, pairs: Mapping[str, Pair], window: int, most_k: int, kept: Mapping[str, Any]
) -> dict[str, Any]:
    """Alphas at one temperature, and the K that theory chooses; a K that was chosen before is kept."""
    from spsbench.replay.alphas import overlaps
    from spsbench.replay.draft_cost import draft_costs

    sampling: SamplingParams = written.sampling
    measured = overlaps(written.texts, pairs, sampling)
    alphas = {one.draft: one.alpha.estimate for one in measured}
    costs = draft_costs(written.texts, pairs, sampling, written.config.seed, window)
    drafts = {
        name: {"alpha": alphas[name], "c": c, "k": chosen_k(alphas[name], c, most_k)}
        for name, c in costs.items()
    }
    return {
        "alphas": {
            one.draft: {**asdict(one.alpha), "positions": int(one.positions.sum())} for one in measured
        },
        "drafts": drafts | {name: kept[name] for name in drafts if name in kept},
    }


def chosen_k(alpha: float, c: float, most_k: int) -> int:
    """The K of the largest walltime factor (Leviathan et al. 2022, 3.5); 1 where no K gains."""
    from spsbench.predict.whatif import leviathan

    return max(1, leviathan(min(alpha, 1.0), c).best_k(range(1, most_k + 1)))


def _digest(texts: Sequence[Written], setup: _Setup) -> str:
    """Of the texts and of the drafts that read them."""
    drafts = sorted((name, model.id, model.revision) for name, model in setup.paper.drafts.items())
    own = [(text.name, text.sample, text.tokens) for written in texts for text in written.texts]
    return hashlib.sha256(repr((drafts, own)).encode()).hexdigest()[:16]


def _load(plans: Mapping[str, Plan]) -> dict[str, Pair]:
    """The target with each draft; the target is loaded once."""
    from spsbench.models.pair import load_pair

    pairs: dict[str, Pair] = {}
    for draft, ready in plans.items():
        asked = ready.config.threads
        threads = None if asked == "auto" else int(asked)
        beside = next(iter(pairs.values()), None)
        pairs[draft] = load_pair(ready.source, ready.dtypes, ready.device, ready.backend, threads, beside)
    return pairs


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
    setup: _Setup,
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
        save(plate, directory / "figures")
    figures = [{"name": one.name, "title": one.title, "caption": one.caption} for one in plates]
    write_page(page, render(page, figures), directory)
    show_page(page, screen(page), directory, as_json=params["json"], quiet=params["quiet"])

"""``spsbench paper``: papers are made of parts that are runs, in one directory with the options of all."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base import IncompleteError, UsageError, make_folder, require_makeable, results_dir
from spsbench.cli import Common, asks, continued_by, option, options, say, written
from spsbench.config import CODE, code_in, is_given, refuse_together, require_typed
from spsbench.parts.paper.folder import Page, measured_run, require_empty, write_page

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spsbench.base import SamplingParams
    from spsbench.config import PairConfig, PaperConfig, RunConfig
    from spsbench.models import Pair
    from spsbench.parts.whatif.replay.texts import Written
    from spsbench.report import Measured
    from spsbench.runner import Plan
    from spsbench.store import Summary

    Plans = Mapping[tuple[str, str], Plan]
    """Of the texts, by task and draft."""

    Results = tuple[dict[str, tuple[str, Summary]], list[dict[str, Any]], list[dict[str, Any]]]
    """The title and summary of every run, and the rows of Tables 3 and 2."""


@dataclass(frozen=True, kw_only=True)
class PaperOptions(Common):
    """The options of ``paper``."""

    of: str | None = option(
        "--of PAPER",
        "chen (Table 1, Figure 1), leviathan (Tables 1 to 3, Figures 2 to 4) or a YAML file. Default: chen.",
    )
    pair: str | None
    target: str | None
    draft: list[str] | None = option(
        "--draft [NAME=]MODEL...", "leviathan: a draft, e.g. small=MODEL; may be repeated."
    )
    task: list[str] | None = option(
        "--task [NAME=]TASK...", "leviathan: a task, e.g. ende=TASK; may be repeated.", options.Panel.WHAT
    )
    data: str | None
    limit: str | None = option(
        "--limit N|all",
        "Prompts of every run, or all. Default: chen 100, 16 and 12 by part; leviathan 40.",
        options.Panel.WHAT,
    )
    samples: str | None = option(
        "--samples N",
        "chen: programs per HumanEval problem; 100 in the paper. Default: 10.",
        options.Panel.WHAT,
    )
    no_score: bool
    unsafe_exec: bool
    extract: str | None
    seed: str | None
    device: str | None
    dtype: str | None
    threads: str | None
    backend: str | None
    out: Path | None
    resume: Path | None
    trust: bool


@asks(PaperOptions, needed="limit device resume")
def paper(options: PaperOptions) -> None:
    """Reproduce a paper's tables and figures from new measurements, in one directory.

    Example: spsbench paper --of leviathan --limit 10
    """
    options = replace(options, of=_paper_of(options))
    if options.of == CHEN:
        reproduce_chen(options)
    else:
        reproduce_leviathan(options)


def _paper_of(options: PaperOptions) -> str:
    """The paper that ``--of`` names; for a directory that was begun before, its own paper."""
    begun = options_before(options)
    typed = None if options.of is None else _full_path(options.of)
    before = _full_path(begun.get("of", CHEN)) if begun else None
    if typed is not None and before is not None and typed != before:
        why = f"{options.resume or options.out} holds the paper {before}, got {typed}."
        raise UsageError(why, flag="--of", remedy="Leave it out, or name another directory.")
    return typed or before or CHEN


def _full_path(of: str) -> str:
    """Of a file, so that ``--resume`` finds it from any folder; a paper's name stays."""
    from spsbench.config import is_file_name

    return str(Path(of).resolve()) if is_file_name(of) else of


# --- one directory, its options and its parts ---

OPTIONS_FILE = "options.json"
PAGE_FILE = "paper.md"
SCHEMA_VERSION = 1
ALL = "all"
CHEN = "chen"

OF_EVERY_RUN = ("data", "seed", "device", "dtype", "threads", "backend")


@dataclass(frozen=True, kw_only=True)
class PaperStudy:
    """What a paper is begun or continued with: numbers as such, other text as it was typed."""

    of: str = CHEN
    pair: str | None = None
    limit: int | str | None = None
    data: str | None = None
    seed: int | str | None = None
    device: str | None = None
    dtype: str | None = None
    threads: int | str | None = None
    backend: str | None = None
    samples: int | str | None = None
    no_score: bool | None = None
    unsafe_exec: bool | None = None
    extract: str | None = None
    target: str | None = None
    draft: Sequence[str] | None = None
    task: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One run of the paper; its settings are fields of ``RunConfig``."""

    name: str
    title: str
    settings: Mapping[str, Any]


def study_of(options: PaperOptions) -> PaperStudy:
    """What was typed; in a directory that was begun before, also what was typed the first time."""
    before = options_before(options)
    values = dict[str, Any]()
    for field in fields(PaperStudy):
        name = field.name
        typed = getattr(options, field.name)
        if name in ("limit", "samples", "seed", "threads") and isinstance(typed, str) and typed.isdigit():
            typed = int(typed)
        values[name] = typed if is_given(typed) else before.get(name)
    return PaperStudy(**values)


def options_before(options: PaperOptions) -> dict[str, Any]:
    """The options with which ``--resume``'s or ``--out``'s directory was begun; empty if it is new."""
    from spsbench.base import read_json

    place = options.resume or options.out
    if place is None:
        return {}
    flag = "--resume" if options.resume else "--out"
    if (place / OPTIONS_FILE).is_file():
        return read_json(place / OPTIONS_FILE, flag)
    if options.resume:
        remedy = "Name the directory of one, or begin one with --out."
        raise UsageError(f"{place} holds no paper.", flag=flag, remedy=remedy)
    require_makeable(place, flag)
    require_empty(place, flag, "paper")
    return {}


def require_own(options: PaperOptions, code: Mapping[str, Any]) -> None:
    """Refuse what a directory that was begun would run beside what is typed; note what is typed.

    Args:
        code: settings of a run that may name code.
    """
    typed = {"task": options.task, "drafters": options.pair, "score": options.unsafe_exec}
    place = options.resume or options.out
    begun = place is not None and bool(options_before(options))
    theirs = {name: value for name, value in code.items() if begun and not typed.get(name)}
    if place is not None:
        require_typed(code_in(theirs), place, trust=options.trust)
    require_typed(code_in({name: code[name] for name in {*code} - {*theirs}}), Path(), trust=True)


def settings_of(study: PaperStudy) -> dict[str, Any]:
    """The fields of ``RunConfig`` that every run of a paper takes as they were typed."""
    return {name: value for name in OF_EVERY_RUN if (value := getattr(study, name)) is not None}


def paper_directory(named: Path | None, pair: str) -> Path:
    """The directory of all results, by default a new one in ``results/``; made if need be."""
    from spsbench.store import fresh_directory

    if named is None:
        return fresh_directory(results_dir(), "paper", pair)
    make_folder(named, "--out")
    return named


def keep_options(directory: Path, study: PaperStudy, runs: Iterable[tuple[Part, Plan]]) -> None:
    """Record what a paper is begun or continued with, unless a run that is there forbids it."""
    from spsbench.base import write_json
    from spsbench.runner import require_continuable

    for part, ready in runs:
        require_continuable(ready, directory / part.name)
    given = {name: value for name, value in asdict(study).items() if value is not None}
    write_json(directory / OPTIONS_FILE, given)
    continued_by(lambda: written("paper", "--resume", str(directory)))


def measure_part(part: Part, plan: Plan, directory: Path, place: tuple[int, int], *, quiet: bool) -> Measured:
    say(f"{part.title} ({place[0]} of {place[1]})", quiet=quiet)
    return measured_run(plan, directory / part.name, quiet=quiet)


def keep_page(page: Page, text: str, screen: RenderableType, directory: Path, options: Common) -> None:
    """Write and print the page.

    Raises:
        IncompleteError: some sequences failed or are missing.
    """
    write_page(directory / PAGE_FILE, page, text, screen, options)
    if not page["complete"]:
        remedy = f"`spsbench paper --resume {directory}` tries again."
        raise IncompleteError("some sequences failed or are missing.", remedy=remedy)


# --- Chen et al. 2023 ---

FIGURE_FILE = "figures/figure1.svg"
_XSUM = {"task": "xsum", "ks": "4", "samplings": "nucleus,greedy", "samples": 1, "limit": 100}
_HUMANEVAL = {"task": "humaneval", "ks": "4", "samplings": "nucleus", "samples": 10, "limit": 16}
_FIGURE = {"ks": "0..7", "samplings": "nucleus", "samples": 1, "fixed_length": True, "max_new_tokens": 128}
_FIGURE |= {"limit": 12, "score": False}
PARTS = (
    Part("table1-xsum", "Table 1, XSum", _XSUM),
    Part("table1-humaneval", "Table 1, HumanEval", _HUMANEVAL),
    Part("figure1-xsum", "Figure 1, XSum", {"task": "xsum", **_FIGURE}),
    Part("figure1-humaneval", "Figure 1, HumanEval", {"task": "humaneval", **_FIGURE}),
)


def reproduce_chen(options: PaperOptions) -> None:
    """Measure every part that is missing and write ``paper.md`` and ``paper.json``."""
    from spsbench.models import require_located

    refuse_together("paper", {**vars(options), CHEN: CHEN})
    study = study_of(options)
    configs = [settings(part, study) for part in PARTS]
    for config in configs:
        require_own(options, {name: getattr(config, name) for name in CODE})
    require_located(configs[0].pair)  # of every part
    from spsbench.parts.paper.messages import CHECKING

    say(CHECKING, quiet=options.quiet)
    from spsbench.runner import plan

    plans = [plan(config, choose_engine=True) for config in configs]
    directory = paper_directory(options.resume or options.out, configs[0].pair.name)
    keep_options(directory, study, zip(PARTS, plans, strict=True))
    runs, images = {}, {}
    for number, (part, ready) in enumerate(zip(PARTS, plans, strict=True), start=1):
        measured = measure_part(part, ready, directory, (number, len(PARTS)), quiet=options.quiet)
        runs[part.name] = part.title, measured.summary
        if (directory / part.name / FIGURE_FILE).is_file():
            images[part.name] = f"{part.name}/{FIGURE_FILE}"
    from spsbench.parts.paper.report import gather_chen, render_chen, screen_chen

    page = {"schema_version": SCHEMA_VERSION, **gather_chen(runs, images)}
    keep_page(page, render_chen(page), screen_chen(page), directory, options)


def settings(part: Part, study: PaperStudy) -> RunConfig:
    from spsbench.config import resolve

    of_part: dict[str, Any] = {**part.settings, **settings_of(study)}
    changes = {
        "limit": study.limit,
        "samples": study.samples if of_part["samples"] > 1 else None,
        "score": False if study.no_score else None,
        "unsafe_exec": study.unsafe_exec or None,
        "extract": study.extract if of_part["task"] == "humaneval" else None,
    }
    of_part |= {name: value for name, value in changes.items() if value is not None}
    if of_part["limit"] == ALL:
        del of_part["limit"]  # the paper's protocol sets none
    return resolve(of_part | {"protocol": "paper", "pair": study.pair})


# --- Leviathan et al. 2022 ---

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")
_ENDING = re.compile(r"\.(gguf|ya?ml|jsonl)$")
"""What a file's name loses; of `org/Model-3.2-1B` the number is no ending."""

TEMPERATURES = (0, 1)
LIMITS: Mapping[str, Any] = {"samples": 1, "score": False, "proof": False}
"""Of every run: what a table of times and acceptance does not need is left out."""

_DRAWN: Mapping[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}


def reproduce_leviathan(options: PaperOptions) -> None:
    """Measure every part that is missing, write ``paper.md``, ``paper.json`` and the figures."""
    refuse_together("paper", {**vars(options), "leviathan": options.of})
    study = study_of(options)
    setup = Setup(setup_of(study), study)
    for task in setup.paper.tasks.values():
        require_own(options, {"task": task})
    from spsbench.parts.paper.messages import CHECKING

    say(CHECKING, quiet=options.quiet)
    plans = setup.plans()
    directory = paper_directory(options.resume or options.out, setup.paper.name)
    texts = {task: _texts_plan(setup, task, plans, directory) for task in setup.paper.tasks}
    begun = [(setup.texts(task), ready) for task, ready in texts.items()]
    keep_options(directory, study, [*begun, *_begun_rows(setup, directory)])
    results = _measured(setup, plans, texts, directory, quiet=options.quiet)
    _conclude(setup, results, directory, options)


def setup_of(study: PaperStudy) -> PaperConfig:
    """The models and tasks of a paper, replaced by what was typed."""
    from spsbench.config import NGRAMS, ModelRef, load_pair, load_paper

    paper = load_paper(study.of)
    drafts = _named_values("--draft", study.draft or ())
    if reserved := next((name for name in NGRAMS if name in drafts), None):
        remedy = "Give the model another name, e.g. small=MODEL."
        raise UsageError(
            f"{reserved} is the name of an n-gram draft of Table 3.", flag="--draft", remedy=remedy
        )
    tasks = _named_values("--task", study.task or ())
    changes: dict[str, Any] = {"tasks": tasks} if tasks else {}
    refuse_together("leviathan", {"target": study.target, "pair": study.pair})
    if study.target is not None and not drafts:
        remedy = "Give one or more, e.g. --draft small=MODEL."
        raise UsageError(f"no draft of {study.target} is named.", flag="--draft", remedy=remedy)
    if study.pair is not None and study.pair != paper.pair:
        changes |= {"pair": study.pair, "drafts": {"draft": load_pair(study.pair).draft}}
    if drafts:
        changes["drafts"] = {name: ModelRef(id=id) for name, id in drafts.items()}
    if changes:
        changes["notes"] = ""  # they are of the file's own models and tasks
    return paper.model_copy(update=changes)


def _named_values(flag: str, texts: Sequence[str]) -> dict[str, str]:
    """Of ``NAME=VALUE``, or a value alone, which is named after its last part."""
    value_of: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (equals and _NAME.fullmatch(name)):
            name = _UNFIT.sub("-", _ENDING.sub("", Path(text).name)).strip("-.")
            value = text
        if not name or not value.strip():
            raise UsageError(f"{text} is not valid.", flag=flag, remedy="Give NAME=VALUE, e.g. small=MODEL.")
        if name in value_of:
            raise UsageError(f"{name} is given twice.", flag=flag, remedy="Give each a name of its own.")
        value_of[name] = value.strip()
    return value_of


@dataclass(frozen=True, slots=True)
class Setup:
    """What is measured, and how."""

    paper: PaperConfig
    study: PaperStudy

    def plans(self) -> Plans:
        """Plan the texts by task and draft; whatever can be refused is refused here."""
        from spsbench.models import require_located

        texts = {task: self.texts(task) for task in self.paper.tasks}
        names = list(product(texts, self.paper.drafts))
        for task, draft in names:
            require_located(self.config(texts[task], self.pair(draft)).pair)
        return {(task, draft): self.plan(texts[task], self.pair(draft)) for task, draft in names}

    def texts(self, task: str) -> Part:
        """The run in which the target writes the texts of a task."""
        names = ",".join(self.samplings(task))
        of_part = {"task": self.paper.tasks[task], "methods": "ars", "samplings": names, "ks": "0", **_DRAWN}
        return Part(f"texts-{task}", f"Texts of the target, {task}", of_part)

    def option(self, task: str, draft: str, temperature: int, k: int) -> Part:
        """The run of a row of Table 2."""
        name = self.samplings(task)[temperature]
        of_part: dict[str, Any] = {"task": self.paper.tasks[task], "ks": str(k), "samplings": name}
        of_part |= _DRAWN if temperature else {}
        title = f"Table 2, {task}, {draft}, T={temperature}, K={k}"
        return Part(f"table2-{task}-{draft}-t{temperature}", title, of_part)

    def samplings(self, task: str) -> tuple[str, str]:
        """The task's samplings for temperature 0 and 1; parameters of the second are replaced."""
        from spsbench.base import SamplingParams
        from spsbench.tasks import load_task

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
        from spsbench.config import resolve

        of_part: dict[str, Any] = {**part.settings, "pair": pair.model_dump(mode="json")}
        of_part |= {**LIMITS, **settings_of(self.study)}
        limit = self.paper.limit if self.study.limit is None else self.study.limit
        if limit not in (None, ALL):
            of_part["limit"] = limit
        return resolve(of_part | {"protocol": "paper"})

    def plan(self, part: Part, pair: PairConfig) -> Plan:
        from spsbench.runner import plan

        # Not the device's usual engine: K is chosen by the c of ``draft_costs``, which times eager forwards.
        return plan(self.config(part, pair))

    def pair(self, draft: str) -> PairConfig:
        from spsbench.config import ModelRef, PairConfig, load_pair, pair_name

        draft_model = self.paper.drafts[draft]
        target = self.study.target
        if target is not None:
            whole = ModelRef(id=target)
            return PairConfig(name=pair_name(whole, draft_model), target=whole, draft=draft_model)
        pair = load_pair(self.paper.pair).model_copy(update={"draft": draft_model, "drafter": None})
        name = pair.name if len(self.paper.drafts) == 1 else f"{pair.name}-{draft}"
        return pair.model_copy(update={"name": name})


def _texts_plan(setup: Setup, task: str, plans: Plans, directory: Path) -> Plan:
    """Of the draft that a task's texts were begun with: drafts may come, go and change their order."""
    from spsbench.config import resolve
    from spsbench.store import CONFIG_FILE

    part = setup.texts(task)
    drafts = setup.paper.drafts
    config = directory / part.name / CONFIG_FILE
    if not config.is_file():
        return plans[task, next(iter(drafts))]
    begun = resolve({}, config).pair
    for name, model in drafts.items():
        if model == begun.draft:
            return plans[task, name]
    pair = setup.pair(next(iter(drafts))).model_copy(update={"draft": begun.draft, "name": begun.name})
    return setup.plan(part, pair)


def _begun_rows(setup: Setup, directory: Path) -> Iterator[tuple[Part, Plan]]:
    """The rows of Table 2 whose runs are there already, with the K chosen for them."""
    from spsbench.base import read_json
    from spsbench.store import RUN_FILE

    for task in setup.paper.tasks:
        path = directory / f"drafts-{task}.json"
        known = read_json(path, "--out")["temperatures"] if path.is_file() else {}
        for temperature, draft in product(TEMPERATURES, setup.paper.drafts):
            chosen = known.get(str(temperature), {}).get("drafts", {}).get(draft)
            part = setup.option(task, draft, temperature, chosen["k"]) if chosen else None
            if part is not None and (directory / part.name / RUN_FILE).is_file():
                yield part, setup.plan(part, setup.pair(draft))


def _measured(
    setup: Setup, plans: Plans, texts: Mapping[str, Plan], directory: Path, *, quiet: bool
) -> Results:
    from spsbench.parts.paper.report import TABLE_3, walltime_row
    from spsbench.stats import alpha_leviathan_interval, mean_length

    tasks, drafts = setup.paper.tasks, setup.paper.drafts
    results: Results = {}, [], []
    runs, alphas, rows = results

    def run(part: Part, ready: Plan) -> Measured:
        place = len(runs) + 1, len(tasks) * (1 + len(drafts) * len(TEMPERATURES))
        measured = measure_part(part, ready, directory, place, quiet=quiet)
        runs[part.name] = part.title, measured.summary
        return measured

    for task in tasks:
        run(setup.texts(task), texts[task])
        drafted = measured_drafts(setup, task, plans, directory, quiet=quiet)["temperatures"]
        for temperature in TEMPERATURES:
            for draft, one in drafted[str(temperature)]["alphas"].items():
                row = {"task": task, "draft": draft, "temperature": temperature}
                row["alpha"] = {name: one[name] for name in ("estimate", "low", "high")}
                row |= {"positions": one["positions"], "paper": TABLE_3.get((task, draft, temperature))}
                alphas.append(row)
        for temperature, draft in product(TEMPERATURES, drafts):
            chosen = drafted[str(temperature)]["drafts"][draft]
            part = setup.option(task, draft, temperature, chosen["k"])
            measured = run(part, setup.plan(part, setup.pair(draft)))
            arms = {row["method"]: row["arm"] for row in measured.summary["rows"]}
            samples, loops = measured.samples, measured.loops
            alpha = alpha_leviathan_interval(samples[samples["arm"] == arms["ars"]])
            length = mean_length(loops[loops["arm"] == arms["sps"]])
            place = task, draft, temperature
            rows.append(walltime_row(place, part.name, measured.summary, alpha, length, chosen["c"]))
    return results


def _conclude(setup: Setup, results: Results, directory: Path, options: Common) -> None:
    from spsbench.config import ModelRef, model_name
    from spsbench.parts.paper.report import draw, gather_leviathan, render_leviathan, screen_leviathan
    from spsbench.report import save

    target, (runs, alphas, rows) = setup.study.target, results
    together = setup.paper.pair if target is None else model_name(ModelRef(id=target))
    page = {"schema_version": SCHEMA_VERSION, **gather_leviathan(rows, alphas, runs, together)}
    page["study"] = {"target": target, **setup.paper.model_dump(mode="json")}
    plates = draw(page)
    for plate in plates:
        save(plate, directory, "figures")
    keep_page(page, render_leviathan(page, plates), screen_leviathan(page), directory, options)


def measured_drafts(setup: Setup, task: str, plans: Plans, directory: Path, *, quiet: bool) -> dict[str, Any]:
    """What is known of every draft on a task; measured unless it is known for these texts."""
    from spsbench.base import read_json, write_json
    from spsbench.parts.whatif.replay.texts import texts_of

    path = directory / f"drafts-{task}.json"
    before = read_json(path, "--out") if path.is_file() else {}
    names = setup.samplings(task)
    texts = [texts_of(directory / setup.texts(task).name, name, fewest=1) for name in names]
    readers = sorted((name, model.id, model.revision) for name, model in setup.paper.drafts.items())
    identified = [(text.name, text.sample, text.tokens) for written in texts for text in written.texts]
    digest = hashlib.sha256(repr((readers, identified)).encode()).hexdigest()[:16]
    if before.get("texts") == digest:
        return before
    say(f"Measuring alpha and c of the drafts on {task}", quiet=quiet)
    pairs = _loaded_pairs({draft: plans[task, draft] for draft in setup.paper.drafts})
    chosen = before.get("temperatures", {})
    models = {name: model.model_dump(mode="json") for name, model in setup.paper.drafts.items()}
    known = before.get("models", models)
    record: dict[str, Any] = {"texts": digest, "models": models, "temperatures": {}}
    for temperature, read in zip(map(str, TEMPERATURES), texts, strict=True):
        by_draft = chosen.get(temperature, {}).get("drafts", {})
        kept = {name: one for name, one in by_draft.items() if known.get(name) == models.get(name)}
        record["temperatures"][temperature] = _at_temperature(read, pairs, setup.paper.most_k, kept)
    write_json(path, record)
    return record


def _at_temperature(
    written: Written, pairs: Mapping[str, Pair], most_k: int, kept: Mapping[str, Any]
) -> dict[str, Any]:
    """The alphas at one temperature, and the K that theory chooses; a K chosen before is kept."""
    from spsbench.parts.paper.alphas import draft_costs, overlaps

    sampling: SamplingParams = written.sampling
    measured = overlaps(written.texts, pairs, sampling)
    alphas = {one.draft: one.alpha.estimate for one in measured}
    costs = draft_costs(written.texts, pairs, sampling, written.settings.seed)
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
    """The K with the largest walltime factor (Leviathan et al. 2022, 3.5); 1 where no K gains."""
    from spsbench.stats import leviathan

    return max(1, leviathan(min(alpha, 1.0), c).best_k(range(1, most_k + 1)))


def _loaded_pairs(plans: Mapping[str, Plan]) -> dict[str, Pair]:
    """By draft; the target is loaded once."""
    pairs: dict[str, Pair] = {}
    for draft, ready in plans.items():
        pairs[draft] = ready.load(beside=next(iter(pairs.values()), None))
    return pairs

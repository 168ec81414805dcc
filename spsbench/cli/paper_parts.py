"""What papers are made of: parts that are runs, options that are kept; Leviathan's tasks and drafts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.cli.console import present, say
from spsbench.cli.interruption import continued_by, written
from spsbench.config.together import is_given, refuse_together
from spsbench.errors import IncompleteError, UsageError
from spsbench.paths import results_dir

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spsbench.config import PairConfig, PaperConfig, RunConfig
    from spsbench.models.pair import Pair
    from spsbench.records import SamplingParams
    from spsbench.replay.texts import Written
    from spsbench.report.measured import Measured
    from spsbench.runner import Plan


OPTIONS_FILE, SUMMARY_FILE, PAGE_FILE = "options.json", "paper.json", "paper.md"
SCHEMA_VERSION = 1
ALL = "all"

OF_EVERY_RUN = ("data", "seed", "device", "dtype", "threads", "backend")
OF_BOTH = ("pair", "limit", *OF_EVERY_RUN)
OF_CHEN = ("samples", "no_score", "unsafe_exec", "extract")
OF_LEVIATHAN = ("target", "draft", "task")
"""Options of each paper by their names in Python; nothing is scored for Leviathan's tables."""

_NUMBERS = ("limit", "samples", "seed", "threads")


@dataclass(frozen=True, slots=True)
class Part:
    """One run of the paper.

    Attributes:
        settings: fields of ``RunConfig``.
    """

    name: str
    title: str
    settings: Mapping[str, Any]


def options_of(params: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """What was typed of ``names``; in a directory of before also what was typed the first time."""
    options = {name: _number(name, params[name]) for name in names}
    before = options_before(params)
    return {name: typed if is_given(typed) else before.get(name) for name, typed in options.items()}


def options_before(params: Mapping[str, Any]) -> dict[str, Any]:
    """The options that ``--resume``, or a directory given with ``--out``, was begun with; empty if new."""
    from spsbench.files import read_json

    resume: Path | None = params["resume"]
    place = resume or params["out"]
    if place is None or not (resume or (place / OPTIONS_FILE).is_file()):
        return {}
    return read_json(place / OPTIONS_FILE, "--resume" if resume else "--out")


def settings_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of ``RunConfig`` that every run of a paper takes as they were typed."""
    return {name: options[name] for name in OF_EVERY_RUN if options[name] is not None}


def _number(name: str, value: Any) -> Any:
    """A number where one was typed; other text stays, for the configuration to refuse."""
    return int(value) if name in _NUMBERS and isinstance(value, str) and value.isdigit() else value


def paper_directory(params: Mapping[str, Any], pair: str) -> Path:
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


def keep_options(directory: Path, options: Mapping[str, Any], runs: Iterable[tuple[Part, Plan]]) -> None:
    """Write what a paper is begun or continued with, unless a run that is there already forbids it."""
    from spsbench.files import write_json
    from spsbench.runner import require_continuable

    for part, ready in runs:
        require_continuable(ready, directory / part.name)
    write_json(directory / OPTIONS_FILE, options)
    continued_by(lambda: written("paper", "--resume", str(directory)))


def measure_part(part: Part, plan: Plan, directory: Path, place: tuple[int, int], *, quiet: bool) -> Measured:
    """Carry out one part, as far as it is not there already, and draw its figures."""
    from spsbench.cli.progress import watching
    from spsbench.cli.report import derive
    from spsbench.runner import execute

    say(f"{part.title} ({place[0]} of {place[1]})", quiet=quiet)
    with watching(quiet=quiet) as watcher:
        execute(plan, directory / part.name, resume=True, watcher=watcher)
    measured, _ = derive(directory / part.name)
    return measured


def keep_page(
    page: Mapping[str, Any], text: str, screen: RenderableType, directory: Path, params: Mapping[str, Any]
) -> None:
    """Write ``paper.json`` and ``paper.md``, and print the page as tables or as JSON."""
    from spsbench.files import write_json, write_text

    write_json(directory / SUMMARY_FILE, page)
    write_text(directory / PAGE_FILE, text)
    present(lambda: page, lambda: screen, json=params["json"], quiet=params["quiet"])
    say(f"Everything is in {directory / PAGE_FILE}", quiet=params["quiet"])
    if not page["complete"]:
        raise IncompleteError(
            "some sequences failed or are missing.",
            remedy=f"`spsbench paper --resume {directory}` tries again.",
        )


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")
_ENDING = re.compile(r"\.(gguf|ya?ml|jsonl)$")
"""What a file's name loses; of `org/Model-3.2-1B` the number is no ending."""

TEMPERATURES = (0, 1)
LIMITS: Mapping[str, Any] = {"samples": 1, "score": False, "proof": False}
"""Of every run: what a table of times and acceptance does not need is left out."""

_DRAWN: Mapping[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}


def setup_of(options: Mapping[str, Any]) -> PaperConfig:
    """The models and tasks of a paper, with what was typed in their place."""
    from spsbench.config import ModelRef, load_pair, load_paper

    paper = load_paper(options["of"])
    drafts, tasks = _named_drafts(options["draft"] or ()), _named("--task", options["task"] or ())
    changes: dict[str, Any] = {"tasks": tasks} if tasks else {}
    refuse_together("leviathan", {name: options[name] for name in ("target", "pair")})
    if options["target"] is not None and not drafts:
        raise UsageError(
            f"no draft of {options['target']} is named.",
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
    """``NAME=VALUE`` or a value alone, which is named after its last part."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (equals and _NAME.fullmatch(name)):
            name, value = _UNFIT.sub("-", _ENDING.sub("", Path(text).name)).strip("-."), text
        if not name or not value.strip():
            raise UsageError(f"{text} is not valid.", flag=flag, remedy="Give NAME=VALUE, e.g. small=MODEL.")
        if name in found:
            raise UsageError(f"{name} is given twice.", flag=flag, remedy="Give each a name of its own.")
        found[name] = value.strip()
    return found


def _named_drafts(given: Sequence[str]) -> dict[str, str]:
    """See ``_named``."""
    from spsbench.config import NGRAMS

    found = _named("--draft", given)
    if taken := next((name for name in NGRAMS if name in found), None):
        raise UsageError(
            f"{taken} is the name of an n-gram draft of Table 3.",
            flag="--draft",
            remedy="Give the model another name, e.g. small=MODEL.",
        )
    return found


@dataclass(frozen=True, slots=True)
class Setup:
    """What is measured, and how."""

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
        from spsbench.config import ModelRef
        from spsbench.config.files import model_name

        target = self.options["target"]
        return self.paper.pair if target is None else model_name(ModelRef(id=target))

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
        given = {"task": self.paper.tasks[task], "methods": "ars", "samplings": names, "ks": "0", **_DRAWN}
        return Part(f"texts-{task}", f"Texts of the target, {task}", given)

    def row(self, task: str, draft: str, temperature: int, k: int) -> Part:
        """The run of a row of Table 2."""
        name = self.samplings(task)[temperature]
        given: dict[str, Any] = {"task": self.paper.tasks[task], "ks": str(k), "samplings": name}
        given |= _DRAWN if temperature else {}
        title = f"Table 2, {task}, {draft}, T={temperature}, K={k}"
        return Part(f"table2-{task}-{draft}-t{temperature}", title, given)

    def samplings(self, task: str) -> tuple[str, str]:
        """The task's samplings for temperature 0 and 1; the second one's parameters are replaced."""
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
        given |= {**LIMITS, **settings_of(self.options)}
        limit = self.paper.limit if self.options["limit"] is None else self.options["limit"]
        if limit not in (None, ALL):
            given["limit"] = limit
        return resolve(given, None, (), "paper", None)

    def pair(self, draft: str) -> PairConfig:
        """The target with one of the drafts."""
        from spsbench.config import ModelRef, PairConfig, load_pair
        from spsbench.config.files import pair_name

        own, target = self.paper.drafts[draft], self.options["target"]
        if target is not None:
            whole = ModelRef(id=target)
            return PairConfig(name=pair_name(whole, own), target=whole, draft=own)
        pair = load_pair(self.paper.pair).model_copy(update={"draft": own, "drafter": None})
        name = pair.name if len(self.paper.drafts) == 1 else f"{pair.name}-{draft}"
        return pair.model_copy(update={"name": name})


def measured_drafts(
    setup: Setup, task: str, plans: Mapping[tuple[str, str], Plan], directory: Path, *, quiet: bool
) -> dict[str, Any]:
    """What is known of every draft on a task; measured unless it is there, of these very texts."""
    from spsbench.files import read_json, write_json
    from spsbench.replay.texts import texts_of

    path = directory / f"drafts-{task}.json"
    before = read_json(path, "--out") if path.is_file() else {}
    names = setup.samplings(task)
    texts = [texts_of(directory / setup.texts(task).name, name, fewest=1) for name in names]
    digest = _digest(texts, setup)
    if before.get("texts") == digest:
        return before
    say(f"Measuring alpha and c of the drafts on {task}", quiet=quiet)
    pairs = _load({draft: plans[task, draft] for draft in setup.paper.drafts})
    chosen = before.get("temperatures", {})
    models = {name: model.model_dump(mode="json") for name, model in setup.paper.drafts.items()}
    known = before.get("models", models)  # papers begun by earlier versions do not say
    found: dict[str, Any] = {"texts": digest, "models": models, "temperatures": {}}
    for temperature, read in zip(map(str, TEMPERATURES), texts, strict=True):
        by_draft = chosen.get(temperature, {}).get("drafts", {})
        kept = {name: one for name, one in by_draft.items() if known.get(name) == models.get(name)}
        found["temperatures"][temperature] = _at(read, pairs, setup.paper.most_k, kept)
    write_json(path, found)
    return found


def _at(written: Written, pairs: Mapping[str, Pair], most_k: int, kept: Mapping[str, Any]) -> dict[str, Any]:
    """Alphas at one temperature, and the K that theory chooses; a K that was chosen before is kept."""
    from spsbench.replay.alphas import draft_costs, overlaps

    sampling: SamplingParams = written.sampling
    measured = overlaps(written.texts, pairs, sampling)
    alphas = {one.draft: one.alpha.estimate for one in measured}
    costs = draft_costs(written.texts, pairs, sampling, written.config.seed)
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


def _digest(texts: Sequence[Written], setup: Setup) -> str:
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

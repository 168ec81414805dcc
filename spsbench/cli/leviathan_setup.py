"""What ``spsbench paper --of leviathan`` measures: models, tasks and runs, by its file and the options."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.cli.paper_parts import ALL, Part, settings_of
from spsbench.errors import UsageError

if TYPE_CHECKING:
    from spsbench.config import PairConfig, PaperConfig, RunConfig
    from spsbench.runner import Plan

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
    if options["target"] is not None and options["pair"] is not None:
        raise UsageError(
            f"{options['target']} is given together with --pair.",
            flag="--target",
            remedy="Give either --pair, or --target and --draft.",
        )
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
        from spsbench.config.names import model_name

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
        from spsbench.config.names import pair_name

        own, target = self.paper.drafts[draft], self.options["target"]
        if target is not None:
            whole = ModelRef(id=target)
            return PairConfig(name=pair_name(whole, own), target=whole, draft=own)
        pair = load_pair(self.paper.pair).model_copy(update={"draft": own, "drafter": None})
        name = pair.name if len(self.paper.drafts) == 1 else f"{pair.name}-{draft}"
        return pair.model_copy(update={"name": name})

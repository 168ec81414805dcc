"""A task: examples in, prompts out, outputs scored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from spsbench.errors import UnavailableError, UsageError
from spsbench.paths import mini_dir
from spsbench.records import Example, Prompt, SamplingParams
from spsbench.tasks.answers import ExtractionRule
from spsbench.tasks.data import TaskData, is_mini
from spsbench.tasks.spec import MiniSource, TaskSpec


class TextTokenizer(Protocol):
    """Text to token ids and back; ``spsbench.models.tokenizer`` has the real one."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids of a text; ``special`` adds what begins a prompt (BOS)."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""

    def chat(self, text: str) -> list[int]:
        """Token ids of a user's message in the chat template, up to where the answer begins."""


@dataclass(frozen=True)
class Task(ABC):
    """A kind of question with its data, prompt and score, as one YAML file tells it."""

    spec: TaskSpec

    @property
    def name(self) -> str:
        """The task's name, e.g. ``xsum``."""
        return self.spec.name

    @property
    def samplings(self) -> dict[str, SamplingParams]:
        """The task's ways to sample, by name."""
        return {name: sampling.params() for name, sampling in self.spec.samplings.items()}

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end an output."""
        return tuple(self.spec.stop)

    def stop_for(self, chat_template: bool) -> tuple[str, ...]:
        """Strings that end an output to prompts with or without the chat template."""
        return self.stop

    def extraction(self, chat_template: bool) -> ExtractionRule | None:
        """How code is taken from answers to such prompts; None where no code is asked for."""
        return None

    @property
    def max_new_tokens(self) -> int:
        """The length limit of an output, in tokens."""
        return self.spec.max_new_tokens

    @property
    def headline(self) -> str:
        """The metric of the result table, e.g. ``rouge2`` or ``pass@1``."""
        return self.spec.headline

    @property
    def runs_code(self) -> bool:
        """Whether scoring executes generated programs."""
        return self.spec.kind == "code"

    @abstractmethod
    def load(self, data: str, limit: int | None, seed: int) -> TaskData:
        """Load examples.

        Args:
            data: ``official``, ``mini`` or the path of a data file.
            limit: how many examples, None for all; see ``spsbench.tasks.data.chosen``.
            seed: chooses order, subset and exemplar.

        Raises:
            UnavailableError: the data cannot be had or used; names what is missing, or the line.
            UsageError: a limit below 1, a file of an unknown form, or a source the task lacks.
        """

    @abstractmethod
    def prompt(
        self,
        example: Example,
        data: TaskData,
        tokenizer: TextTokenizer,
        context_window: int,
        max_new_tokens: int,
        chat_template: bool = False,
    ) -> Prompt:
        """Build the prompt of an example so that prompt and output fit the window.

        Args:
            example: one of ``data.examples``.
            data: what ``load`` returned.
            tokenizer: of target and draft.
            context_window: tokens that both models can see.
            max_new_tokens: tokens of the window that are kept for the output.
            chat_template: put the prompt as a user's message.

        Raises:
            UsageError: it does not fit.
        """

    @abstractmethod
    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[dict[str, float]]:
        """Scores of each output, by metric name; ``texts[i]`` answers ``prompts[i]``.

        Raises:
            SpsbenchError: the scorer itself failed; never a score of 0.
        """


def check_limit(limit: int | None) -> None:
    """Refuse a limit that leaves nothing to run.

    Raises:
        UsageError: the limit is below 1.
    """
    if limit is not None and limit < 1:
        raise UsageError(
            f"{limit} leaves no example.", flag="--limit", remedy="Give at least 1, or leave it out."
        )


def mini_path(spec: TaskSpec) -> Path:
    """The file of a task's synthetic examples.

    Raises:
        UsageError: the task has none.
        UnavailableError: the installation lacks the file.
    """
    return _mini_file(spec, _mini(spec).examples)


def mini_exemplars_path(spec: TaskSpec) -> Path | None:
    """The file of a task's synthetic exemplars, or None if it names none; see ``mini_path``."""
    name = _mini(spec).exemplars
    return None if name is None else _mini_file(spec, name)


def describe(spec: TaskSpec, data: str) -> tuple[str, bool]:
    """(label, synthetic) of a task with data from ``official``, ``mini`` or a path."""
    if data == "mini" or (data != "official" and is_mini(Path(data))):
        return f"{spec.name}-mini (synthetic)", True
    return (spec.name, False) if data == "official" else (f"{spec.name} ({Path(data).name})", False)


def source_of(data: str, split: str) -> dict[str, Any]:
    """Provenance of data that came from a path or with the package."""
    source = "synthetic data of the package" if data == "mini" else data
    return {"source": source, "revision": None, "split": None if data == "mini" else split}


def _mini(spec: TaskSpec) -> MiniSource:
    if spec.data.mini is None:
        raise UsageError(
            f"the task {spec.name} has no synthetic data.",
            flag="--data mini",
            remedy="Give official or a path.",
        )
    return spec.data.mini


def _mini_file(spec: TaskSpec, name: str) -> Path:
    path = mini_dir() / "data" / name
    if not path.is_file():
        raise UnavailableError(
            f"the synthetic data of {spec.name} are missing ({path}).",
            flag="--data mini",
            remedy="Install the package again, or give --data official or a path.",
        )
    return path

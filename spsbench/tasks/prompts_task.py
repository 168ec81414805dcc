"""Prompts from a file as a task: the prompts are used as they are, and only EOS ends an output."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spsbench.config.files import file_name
from spsbench.errors import UsageError
from spsbench.metrics.kind import MetricKind, scores
from spsbench.metrics.rouge import KINDS
from spsbench.records import Example, Prompt, SamplingParams
from spsbench.tasks.data import TaskData, chosen, fingerprint
from spsbench.tasks.prompts import MESSAGES, PROMPT, TURN, PromptsFile
from spsbench.tasks.task import Task, TextTokenizer, check_limit, fitting, whole_prompt


@dataclass(frozen=True)
class PromptsTask(Task):
    """What a prompts file says."""

    content: PromptsFile
    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def samplings(self) -> dict[str, SamplingParams]:
        return {"nucleus": SamplingParams(temperature=0.8, top_p=0.95), "greedy": SamplingParams(greedy=True)}

    @property
    def default_sampling(self) -> str:
        return "nucleus"

    @property
    def stop(self) -> tuple[str, ...]:
        return ()

    @property
    def max_new_tokens(self) -> int:
        return 256

    @property
    def metrics(self) -> tuple[MetricKind, ...]:
        return KINDS if self.content.has("references") else ()

    @property
    def headline(self) -> str | None:
        return "rouge2" if self.metrics else None

    def uses_template(self, *, has_template: bool, is_instruct: bool) -> bool:
        """See ``Task.uses_template``. Messages need one, learned or not; a ``prompt`` goes through none."""
        if self.content.has(MESSAGES):
            return has_template
        return is_instruct and self.content.has(TURN)

    def load(self, data: str, limit: int | None, seed: int) -> TaskData:
        """See ``Task.load``. The file is all there is: ``official`` and ``mini`` both mean it."""
        check_limit(limit)
        if data not in ("official", "mini"):
            raise UsageError(
                f"{data} is given together with the prompts file {self.path}.",
                flag="--data",
                remedy="Leave one of the two out.",
            )
        examples = self.content.examples
        provenance = {**fingerprint(examples), "source": str(self.path), "revision": None, "split": None}
        provenance |= {"seed": seed, "prompt_preset": None, "prompt_sha256": _sha256(examples)}
        provenance |= {"later_turns": self.content.later_turns, "unasked": self.content.unasked}
        return TaskData(
            chosen(examples, limit, seed), None, provenance, synthetic=False, label=file_name(self.path)
        )

    def prompt(
        self,
        example: Example,
        data: TaskData,
        tokenizer: TextTokenizer,
        context_window: int,
        max_new_tokens: int,
        chat_template: bool = False,
    ) -> Prompt:
        """See ``Task.prompt``. Never truncates."""
        fields, room = example.fields, (context_window, max_new_tokens)
        if MESSAGES in fields:
            ids = tuple(_templated(example, tokenizer, chat_template))
            shown = _shown(fields[MESSAGES])
            made = fitting(Prompt(example.example_id, shown, ids, example.reference, chat=True), *room)
        elif PROMPT in fields:
            made = whole_prompt(example, fields[PROMPT], tokenizer, *room, chat_template=False)
        else:
            made = whole_prompt(example, fields[TURN], tokenizer, *room, chat_template)
        others = tuple(fields.get("references", ())[1:])
        return replace(made, category=fields.get("category"), other_references=others)

    def is_scored(self, prompt: Prompt) -> bool:
        return bool(prompt.reference)

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[dict[str, float]]:
        """See ``Task.score``. Of several references the best counts, for each metric."""
        return [
            _best(self.metrics, prompt, text) if self.is_scored(prompt) else {}
            for prompt, text in zip(prompts, texts, strict=True)
        ]


def _templated(example: Example, tokenizer: TextTokenizer, chat_template: bool) -> Sequence[int]:
    if not chat_template:
        raise UsageError(
            f"the prompt {example.example_id} is a list of messages, and there is no chat template for "
            "them: the tokenizer has none, or --chat-template none was given.",
            flag="TASK",
            remedy="Choose a model with a chat template, or write the text as `prompt`.",
        )
    try:
        return tokenizer.conversation(example.fields[MESSAGES])
    except ValueError as error:
        raise UsageError(
            f"the chat template refuses the messages of {example.example_id} ({error}).",
            flag="TASK",
            remedy="Write them as the model's template wants them, e.g. without a system message.",
        ) from error


def _shown(messages: Sequence[dict[str, str]]) -> str:
    """The messages for readers; what the models see are the ids."""
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)


def _best(metrics: Sequence[MetricKind], prompt: Prompt, text: str) -> dict[str, float]:
    references = (prompt.reference, *prompt.other_references)
    count = len(references)
    found = scores(metrics, [prompt.text] * count, [text] * count, references)
    return {kind.name: max(one[kind.name] for one in found) for kind in metrics}


def _sha256(examples: Sequence[Example]) -> str:
    texts = sorted(f"{example.example_id}\0{example.fields}" for example in examples)
    return hashlib.sha256("\n".join(texts).encode(errors="surrogatepass")).hexdigest()

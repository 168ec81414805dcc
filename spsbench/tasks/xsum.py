"""Summarization: XSum, and any file of articles with one-line summaries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spsbench.errors import UsageError
from spsbench.records import Example, Prompt
from spsbench.tasks.data import TaskData, chosen, fingerprint, seeded_order
from spsbench.tasks.sources import Row, fetch, is_blank, read_rows, required_column, sibling_train, unique
from spsbench.tasks.spec import SUMMARIZATION, PromptTemplate
from spsbench.tasks.task import TextTokenizer, check_limit
from spsbench.tasks.truncation import Room, cut_prompt
from spsbench.tasks.yaml_task import YamlTask, describe, mini_exemplars_path, mini_path, source_of

# An exemplar's length in words: short enough to leave room for the article, long enough to be one.
_EXEMPLAR_WORDS = (50, 150)


@dataclass(frozen=True)
class Summarization(YamlTask):
    """1-shot summaries in one sentence."""

    def load(self, data: str, limit: int | None, seed: int) -> TaskData:
        """See ``Task.load``. Columns: document (or article), summary, id.

        The exemplar comes from the train split; for a local file from ``<name>_train`` beside it,
        else from the file itself, whose examples then go without it.
        """
        check_limit(limit)
        rows, train, origin = self._rows(data)
        examples = _examples(rows)
        provenance = {**origin, **fingerprint(examples)}
        exemplar = _exemplar(_examples(train) if train else examples, seed)
        if not train:
            examples = [example for example in examples if example is not exemplar]
        if not examples:
            raise UsageError(
                f"{data} holds a single row, which the exemplar of the 1-shot prompt takes.",
                flag="--data",
                remedy="Add rows, or a train file beside it with _train in its name.",
            )
        shared = self._template.sha256(self._shot(exemplar))
        provenance |= {"seed": seed, "exemplar_id": exemplar.example_id}
        provenance |= {"prompt_preset": self.spec.prompt, "prompt_sha256": shared}
        label, synthetic = describe(self.spec, data)
        return TaskData(chosen(examples, limit, seed), exemplar, provenance, synthetic, label)

    def prompt(
        self,
        example: Example,
        data: TaskData,
        tokenizer: TextTokenizer,
        context_window: int,
        max_new_tokens: int,
        chat_template: bool = False,
    ) -> Prompt:
        """See ``Task.prompt``. If need be the end of the query's document is cut, nothing else."""
        assert data.exemplar is not None
        shot = self._shot(data.exemplar)

        def text_with(article: str) -> str:
            return shot + self._template.query.format(document=article)

        room = Room(context_window, max_new_tokens, around="exemplar and instruction take", cut="article")
        document = str(example.fields["document"])
        return cut_prompt(example, document, text_with, tokenizer, room, chat_template)

    @property
    def _template(self) -> PromptTemplate:
        return SUMMARIZATION[self.spec.prompt]

    def _shot(self, exemplar: Example) -> str:
        document, summary = exemplar.fields["document"], exemplar.fields["summary"]
        return self._template.exemplar.format(document=document, summary=summary)

    def _rows(self, data: str) -> tuple[list[Row], list[Row] | None, dict[str, Any]]:
        """(rows, rows of the train split if there are any, provenance)."""
        split = self.spec.data.split
        if data == "mini":
            exemplars = mini_exemplars_path(self.spec)
            train = None if exemplars is None else read_rows(exemplars, "train")
            return read_rows(mini_path(self.spec), split), train, source_of(data, split)
        if data != "official":
            return read_rows(Path(data), split), sibling_train(Path(data), split), source_of(data, split)
        hub = fetch(self.spec.data.hub, split, exemplars=True)
        # The published split may hold articles without text; nobody can summarize or repair those.
        rows = [row for row in hub.rows if not _is_empty(row)]
        origin = {"source": f"hub: {hub.repository}", "revision": hub.revision, "split": split}
        train = [row for row in hub.train if not _is_empty(row)]
        return rows, train, {**origin, "skipped_empty": len(hub.rows) - len(rows)}


def _examples(rows: Iterable[Row]) -> list[Example]:
    found = []
    for row in rows:
        document, summary = required_column(row, "document", "article"), required_column(row, "summary")
        fields = {"document": document, "summary": summary}
        found.append((Example(required_column(row, "id"), fields, reference=summary), row))
    unique((example.example_id, row) for example, row in found)
    return [example for example, _ in found]


def _is_empty(row: Row) -> bool:
    return is_blank(row, "document", "article") or is_blank(row, "summary")


def _exemplar(candidates: Sequence[Example], seed: int) -> Example:
    """The first in seeded order of 50 to 150 words, else the one closest to such a length."""
    low, high = _EXEMPLAR_WORDS

    def off(example: Example) -> int:
        words = len(str(example.fields["document"]).split())
        return max(low - words, words - high, 0)

    return min(seeded_order(candidates, seed), key=off)

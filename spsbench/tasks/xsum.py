"""Summarization: XSum, and any file of articles with one-line summaries."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spsbench.base.errors import UsageError
from spsbench.base.records import Example, Prompt
from spsbench.tasks.sources import DataRow, distinct, read_rows, required_column, required_label, sibling
from spsbench.tasks.spec import SUMMARIZATION, template_sha256
from spsbench.tasks.task import Frame, TaskData, YamlTask, chosen, describe, fingerprint, mini_path, task_data

_DOCUMENT, _SUMMARY = ("document", "article"), ("summary",)


class Summarization(YamlTask):
    """1-shot summaries in one sentence."""

    def _load(self, data: str, limit: int | None, seed: int) -> TaskData:
        """Load columns document (or article), summary, id.

        The exemplar comes from the train split; for a local file from ``<name>_train`` beside it,
        else from the file itself, whose examples then go without it.
        """
        rows, train, origin = self._rows(data)
        examples = _examples(rows)
        origin = {**origin, **fingerprint(examples)}
        exemplar = _exemplar(_examples(train) if train else examples, seed)
        if not train:
            examples = [example for example in examples if example is not exemplar]
        if not examples:
            raise UsageError(
                f"{data} holds a single row, which the exemplar of the 1-shot prompt takes.",
                flag="--data",
                remedy="Add rows, or a train file beside it with _train in its name.",
            )
        shared = template_sha256(SUMMARIZATION[self.spec.prompt].query, self._shot(exemplar))
        described = describe(self.spec, data)
        return task_data(examples, limit, seed, origin, described, shared, self.spec.prompt, exemplar)

    def _prompt(self, example: Example, data: TaskData, frame: Frame) -> Prompt:
        """If need be the end of the query's document is cut, nothing else."""
        assert data.exemplar is not None
        shot = self._shot(data.exemplar)
        query = SUMMARIZATION[self.spec.prompt].query

        def text_with(article: str) -> str:
            return shot + query.format(document=article)

        document = str(example.fields["document"])
        return frame.cut(example, document, text_with, "exemplar and instruction take", "article")

    def _shot(self, exemplar: Example) -> str:
        return SUMMARIZATION[self.spec.prompt].exemplar.format(**exemplar.fields)

    def _rows(self, data: str) -> tuple[list[DataRow], list[DataRow] | None, dict[str, Any]]:
        """(rows, rows of the train split if there are any, provenance)."""
        if data == "official":
            return self._published((_DOCUMENT, _SUMMARY), exemplars="train")
        rows, origin = self._local(data)
        if data != "mini":
            return rows, sibling(Path(data), self.spec.data.split, "train"), origin
        named = self.spec.data.mini is not None and self.spec.data.mini.exemplars is not None
        return rows, read_rows(mini_path(self.spec, "exemplars"), "train") if named else None, origin


def _examples(rows: Iterable[DataRow]) -> list[Example]:
    found = []
    for row in rows:
        document, summary = required_column(row, *_DOCUMENT), required_column(row, *_SUMMARY)
        fields = {"document": document, "summary": summary}
        found.append((Example(required_label(row, "id"), fields, reference=summary), row))
    return distinct(found)


def _exemplar(candidates: list[Example], seed: int) -> Example:
    """The first in seeded order of 50 to 150 words, else the one closest to such a length.

    Short enough to leave room for the article, long enough to be one.
    """

    def off(example: Example) -> int:
        words = len(str(example.fields["document"]).split())
        return max(50 - words, words - 150, 0)

    return min(chosen(candidates, None, seed), key=off)

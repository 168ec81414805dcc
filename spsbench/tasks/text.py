"""Text: a prompt of a row's columns, perhaps after solved examples, scored against one of them."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from spsbench.base.records import Example, Prompt
from spsbench.tasks.docstrings import names_in, read_docstrings
from spsbench.tasks.metrics.kind import MetricKind
from spsbench.tasks.sources import (
    DataRow,
    bad_data,
    distinct,
    is_blank,
    read_aligned,
    required_column,
    required_label,
)
from spsbench.tasks.spec import columns_of, template_sha256
from spsbench.tasks.task import Frame, TaskData, YamlTask, describe, paths_in, task_data


class TextTask(YamlTask):
    """What stands in the template is all that the model is shown."""

    def _load(self, data: str, limit: int | None, seed: int) -> TaskData:
        """Load the prompt's columns, the reference, and ``id`` if the rows have one.

        ``data`` may also name aligned text files, one per column, with commas between them.
        """
        source = self.spec.data
        if data == "official" and source.mini is not None and not source.hub and not source.docstrings:
            data = "mini"  # all that there is
        packages = self._packages(data)
        rows, solved, origin = self._rows(data, packages)
        examples = self._examples(rows, published="skipped_empty" in origin)
        used = [self._fields(row) for row in self._solved(data, rows, solved)]
        form = "" if self.spec.shots is None else self.spec.shots.text
        shots = "".join(form.format(**each) for each in used)
        if solved is None:  # a file that is all there is
            examples = [example for example in examples if example.fields not in used]
        if not examples:
            why = f"{data} holds no row beyond the {len(used)} solved examples of the prompt."
            raise bad_data(why, "Add rows, or a file of solved examples beside it.")
        label = data
        if packages is not None:  # the task's own packages are not named
            label = "official" if packages == self._packages("official") else "+".join(packages)
        asked = self.spec.prompt if self.spec.chat is None else f"{self.spec.prompt}\0{self.spec.chat}"
        shared = template_sha256(asked, shots)
        return replace(
            task_data(examples, limit, seed, origin, describe(self.spec, label), shared), shots=shots
        )

    def stop_for(self, prompt: Prompt) -> tuple[str, ...]:
        """See ``Task.stop_for``: an answer in a chat that has its own prompt ends where the model ends."""
        return () if prompt.chat and self.spec.chat is not None else self.stop

    def _prompt(self, example: Example, data: TaskData, frame: Frame) -> Prompt:
        """Only the end of the column named by ``truncate`` is cut."""
        template = self.spec.prompt
        shots = data.shots
        column = self.spec.truncate
        if frame.chat and self.spec.chat is not None:
            template, shots = self.spec.chat, ""

        def text_of(fields: dict[str, str]) -> str:
            text = template.format(**fields)
            return shots + (text.rstrip() if self.spec.data.optional else text)

        if column is None:
            return frame.whole(example, text_of(example.fields))
        return frame.cut(
            example,
            example.fields[column],
            lambda part: text_of(example.fields | {column: part}),
            "the rest of the prompt takes",
            column,
        )

    def _score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[dict[str, float]]:
        return super()._score(*self._as_scored(prompts, texts))

    def _corpus_figure(self, kind: MetricKind, prompts: Sequence[Prompt], texts: Sequence[str]) -> float:
        return super()._corpus_figure(kind, *self._as_scored(prompts, texts))

    def _as_scored(
        self, prompts: Sequence[Prompt], texts: Sequence[str]
    ) -> tuple[Sequence[Prompt], Sequence[str]]:
        if not self.spec.sentence_per_line:
            return prompts, texts
        prompts = [replace(prompt, reference=sentence_per_line(prompt.reference)) for prompt in prompts]
        return prompts, [sentence_per_line(text) for text in texts]

    @property
    def _columns(self) -> dict[str, list[str]]:
        """What is read of a row, the reference last, with the names under which it may be found."""
        columns = dict.fromkeys(columns_of(f"{self.spec.prompt}{self.spec.chat or ''}"))
        if self.spec.reference is not None:
            columns[self.spec.reference] = None
        return {column: [column, *self.spec.data.columns.get(column, [])] for column in columns}

    def _packages(self, data: str) -> tuple[str, ...] | None:
        """Whose docstrings are read; None for a task without, and for data from elsewhere."""
        own = self.spec.data.docstrings
        if not own or (data == "mini" and self.spec.data.mini is not None):
            return None
        return names_in("+".join(own) if data in ("official", "mini") else data)

    def _rows(
        self, data: str, packages: tuple[str, ...] | None
    ) -> tuple[list[DataRow], list[DataRow] | None, dict[str, Any]]:
        """(rows, those that solved examples are taken from unless the rows are all there is, provenance)."""
        if packages is not None:
            rows, versions = read_docstrings(packages)
            source = f"docstrings of {'+'.join(packages)}"
            return rows, None, {"source": source, "revision": versions, "split": None}
        paths = paths_in(data)
        if data not in ("official", "mini") and len(paths) > 1:
            rows = read_aligned(paths, list(self._columns))
            return rows, None, {"source": data, "revision": None, "split": self.spec.data.split}
        optional = self.spec.data.optional
        needed = [names for name, names in self._columns.items() if name not in optional]
        return self._rows_and_solved(data, needed)

    def _fields(self, row: DataRow) -> dict[str, str]:
        """What is read of a row; an optional column that it has not, or empty, is an empty text.

        A number may stand within a template or be an answer; a text that is cut to fit is none.
        """
        optional = self.spec.data.optional
        return {
            column: ""
            if column in optional and is_blank(row, *names, missing=True)
            else (required_column if column == self.spec.truncate else required_label)(row, *names)
            for column, names in self._columns.items()
        }

    def _examples(self, rows: Sequence[DataRow], *, published: bool) -> list[Example]:
        """The rows as examples; one without an id is named by what is read of it: their order may change."""
        found, seen = [], Counter[str]()
        for row in rows:
            fields = self._fields(row)
            if "id" in row.fields:
                name = required_label(row, "id")
            else:
                content = "\0".join(fields.values()).encode(errors="surrogatepass")
                name = hashlib.sha256(content).hexdigest()[:16]
                seen[name] += 1
                if published and seen[name] > 1:
                    name = f"{name}-{seen[name]}"
            found.append((Example(name, fields, fields.get(self.spec.reference or "", "")), row))
        return distinct(found)


_END = re.compile(r"""(?<=\s\.)\s+|(?<=[.!?])\s+(?=["'`“‘(]*([^\W_]))""")
"""A possible end of a sentence; the group is the letter or digit after it, where that decides."""


def sentence_per_line(text: str) -> str:
    """The text by sentences, which ROUGE-Lsum takes for one each; as it is if it has several lines already.

    Highlights of CNN/DailyMail come so. A model that was trained on subwords without a line break writes its
    sentences in one line. A sentence ends with a full stop, question or exclamation mark before white space
    and a digit or a letter that is not small, perhaps after opening quotation marks or brackets; or with a
    full stop that stands alone, as in the tokenized part of the data. An abbreviation before a name is taken
    for an end, and a mark inside closing quotation marks is not: for all arms alike.
    """
    stripped = text.strip()
    if "\n" in stripped:
        return stripped
    return _END.sub(lambda end: end[0] if end[1] is not None and end[1].islower() else "\n", stripped)

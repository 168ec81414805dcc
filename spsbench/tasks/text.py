"""Text: a prompt of a row's columns, scored against one of them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from spsbench.metrics.kind import MetricKind
from spsbench.records import Example, Prompt
from spsbench.tasks.aligned import read_aligned
from spsbench.tasks.data import TaskData, chosen, fingerprint
from spsbench.tasks.docstrings import names_in, read_docstrings
from spsbench.tasks.sentences import sentence_per_line
from spsbench.tasks.sources import Row, fetch, is_blank, read_rows, required_column, unique
from spsbench.tasks.spec import PromptTemplate, columns_of
from spsbench.tasks.task import TextTokenizer, check_limit, whole_prompt
from spsbench.tasks.truncation import Room, cut_prompt
from spsbench.tasks.yaml_task import YamlTask, describe, mini_path, paths_in, source_of


@dataclass(frozen=True)
class Text(YamlTask):
    """What stands in the template is all that the model is shown."""

    def load(self, data: str, limit: int | None, seed: int) -> TaskData:
        """See ``Task.load``. Columns: those of the prompt, the reference, and ``id`` if the rows have one.

        ``data`` may also name aligned text files, one per column, with commas between them.
        """
        check_limit(limit)
        data = self._own(data)
        packages = self._packages(data)
        rows, origin = self._rows(data, packages)
        examples = self._examples(rows, published="skipped_empty" in origin)
        shared = PromptTemplate(exemplar="", query=self.spec.prompt).sha256("")
        provenance = {**origin, **fingerprint(examples), "seed": seed}
        provenance |= {"prompt_preset": None, "prompt_sha256": shared}
        label, synthetic = self._label(data, packages)
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
        """See ``Task.prompt``. Only the end of the column named by ``truncate`` is cut."""
        column = self.spec.truncate
        if column is None:
            text = self.spec.prompt.format(**example.fields)
            return whole_prompt(example, text, tokenizer, context_window, max_new_tokens, chat_template)

        def text_with(part: str) -> str:
            return self.spec.prompt.format(**example.fields | {column: part})

        room = Room(context_window, max_new_tokens, around="the rest of the prompt takes", cut=column)
        return cut_prompt(example, example.fields[column], text_with, tokenizer, room, chat_template)

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[dict[str, float]]:
        """See ``Task.score``."""
        return super().score(*self._by_sentences(prompts, texts))

    def corpus_figure(self, kind: MetricKind, prompts: Sequence[Prompt], texts: Sequence[str]) -> float:
        """See ``Task.corpus_figure``."""
        return super().corpus_figure(kind, *self._by_sentences(prompts, texts))

    def _by_sentences(
        self, prompts: Sequence[Prompt], texts: Sequence[str]
    ) -> tuple[Sequence[Prompt], Sequence[str]]:
        """Prompts and outputs as they are scored."""
        if not self.spec.sentence_per_line:
            return prompts, texts
        prompts = [replace(one, reference=sentence_per_line(one.reference)) for one in prompts]
        return prompts, [sentence_per_line(text) for text in texts]

    @property
    def _columns(self) -> list[str]:
        """What is read of a row: the prompt's columns, then the reference."""
        assert self.spec.reference is not None
        return list(dict.fromkeys([*columns_of(self.spec.prompt), self.spec.reference]))

    def _names(self, column: str) -> list[str]:
        """Where a column may be found in a row."""
        return [column, *self.spec.data.columns.get(column, [])]

    def _own(self, data: str) -> str:
        """``mini`` for the official data of a task that has no others than synthetic ones."""
        source = self.spec.data
        only_mini = source.mini is not None and not source.hub and not source.docstrings
        return "mini" if data == "official" and only_mini else data

    def _packages(self, data: str) -> tuple[str, ...] | None:
        """Whose docstrings are read; None for a task without, and for data from elsewhere."""
        own = self.spec.data.docstrings
        if not own or (data == "mini" and self.spec.data.mini is not None):
            return None
        return names_in("+".join(own) if data in ("official", "mini") else data)

    def _rows(self, data: str, packages: tuple[str, ...] | None) -> tuple[list[Row], dict[str, Any]]:
        """(rows, provenance)."""
        split = self.spec.data.split
        if packages is not None:
            rows, versions = read_docstrings(packages)
            source = f"docstrings of {'+'.join(packages)}"
            return rows, {"source": source, "revision": versions, "split": None}
        if data == "mini":
            return read_rows(mini_path(self.spec), split), source_of(data, split)
        if data != "official":
            return self._local_rows(data, split), source_of(data, split)
        hub = fetch(self.spec.data.hub, split, exemplars=False)
        # A published split may hold rows without text, which nobody can repair.
        rows = [row for row in hub.rows if not any(is_blank(row, *self._names(c)) for c in self._columns)]
        origin = {"source": f"hub: {hub.repository}", "revision": hub.revision, "split": split}
        return rows, {**origin, "skipped_empty": len(hub.rows) - len(rows)}

    def _local_rows(self, data: str, split: str) -> list[Row]:
        paths = paths_in(data)
        return read_rows(paths[0], split) if len(paths) == 1 else read_aligned(paths, self._columns)

    def _label(self, data: str, packages: tuple[str, ...] | None) -> tuple[str, bool]:
        """(label, synthetic); the task's own packages are not named."""
        if packages is None:
            return describe(self.spec, data)
        own = packages == self._packages("official")
        return describe(self.spec, "official" if own else "+".join(packages))

    def _examples(self, rows: Sequence[Row], *, published: bool) -> list[Example]:
        """The rows as examples."""
        assert self.spec.reference is not None
        found, seen = [], Counter[str]()
        for row in rows:
            fields = {name: required_column(row, *self._names(name)) for name in self._columns}
            name = _id(row, fields)
            seen[name] += 1
            if published and "id" not in row.fields and seen[name] > 1:
                name = f"{name}-{seen[name]}"
            found.append((Example(name, fields, fields[self.spec.reference]), row))
        unique((example.example_id, row) for example, row in found)
        return [example for example, _ in found]


def _id(row: Row, fields: dict[str, str]) -> str:
    """The row's own id, else one made of what the task reads of it: the order of rows may change."""
    if "id" in row.fields:
        return required_column(row, "id")
    return hashlib.sha256("\0".join(fields.values()).encode(errors="surrogatepass")).hexdigest()[:16]

"""Text: a prompt of a row's columns, scored against one of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spsbench.records import Example, Prompt
from spsbench.tasks.data import TaskData, chosen, fingerprint
from spsbench.tasks.docstrings import names_in, read_docstrings
from spsbench.tasks.sources import Row, fetch, read_rows, required_column, unique
from spsbench.tasks.spec import PromptTemplate, columns_of
from spsbench.tasks.task import TextTokenizer, check_limit, whole_prompt
from spsbench.tasks.yaml_task import YamlTask, describe, mini_path, source_of


@dataclass(frozen=True)
class Text(YamlTask):
    """What stands in the template is all that the model is shown."""

    def load(self, data: str, limit: int | None, seed: int) -> TaskData:
        """See ``Task.load``. Columns: those of the prompt, the reference, and ``id`` if the rows have one."""
        check_limit(limit)
        packages = self._packages(data)
        rows, origin = self._rows(data, packages)
        examples = self._examples(rows)
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
        """See ``Task.prompt``. Never truncates: only the task's author knows what may be left out."""
        text = self.spec.prompt.format(**example.fields)
        return whole_prompt(example, text, tokenizer, context_window, max_new_tokens, chat_template)

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
            return read_rows(Path(data), split), source_of(data, split)
        hub = fetch(self.spec.data.hub, split)
        return hub.rows, {"source": f"hub: {hub.repository}", "revision": hub.revision, "split": split}

    def _label(self, data: str, packages: tuple[str, ...] | None) -> tuple[str, bool]:
        """(label, synthetic); the task's own packages are not named."""
        if packages is None:
            return describe(self.spec, data)
        own = packages == self._packages("official")
        return describe(self.spec, "official" if own else "+".join(packages))

    def _examples(self, rows: Sequence[Row]) -> list[Example]:
        assert self.spec.reference is not None
        columns = [*columns_of(self.spec.prompt), self.spec.reference]
        found = []
        for row in rows:
            fields = {name: required_column(row, name) for name in columns}
            found.append((Example(_id(row, fields), fields, fields[self.spec.reference]), row))
        unique((example.example_id, row) for example, row in found)
        return [example for example, _ in found]


def _id(row: Row, fields: dict[str, str]) -> str:
    """The row's own id, else one made of what the task reads of it: the order of rows may change."""
    if "id" in row.fields:
        return required_column(row, "id")
    return hashlib.sha256("\0".join(fields.values()).encode(errors="surrogatepass")).hexdigest()[:16]

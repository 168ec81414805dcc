"""Lines of a file of texts that others wrote, as far as they can be read without a model's tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spsbench.base.errors import UsageError
from spsbench.base.jsonl import rows
from spsbench.base.records import SamplingParams
from spsbench.store.foreign import recognised, samples, samples_in
from spsbench.tasks.spec import sampling_of

FIELDS = (
    "Each line needs prompt_ids and completion_ids (or prompt and completion, as text), and may have "
    "sampling: {temperature, top_p, top_k} or {greedy: true}."
)

COLDEST = 0.01
"""Temperature that vLLM samples at where a lower one is asked for."""


@dataclass(frozen=True, slots=True)
class TextLine:
    """A text on a line.

    Attributes:
        row: all of the line.
        prompt, completion: token ids, or text.
    """

    row: Mapping[str, Any]
    prompt: list[int] | str
    completion: list[int] | str
    sampling: SamplingParams

    @classmethod
    def of(cls, row: Mapping[str, Any], usual: SamplingParams) -> TextLine:
        """Read the text of a line, or the first of another tool's line; ValueError says what is wrong.

        ``usual`` is the sampling of lines that state none.
        """
        row = next(iter(samples_in(row)), {})
        prompt, completion = (_part(row, name) for name in ("prompt", "completion"))
        stated = row.get("sampling")
        sampling = usual if stated is None else sampling_of(stated)
        if not sampling.greedy and sampling.temperature < COLDEST:
            why = f"below {COLDEST} rounding decides, and engines take another"
            raise ValueError(f"a temperature of {sampling.temperature:g} cannot be judged: {why}")
        return cls(row, prompt, completion, sampling)


def _part(row: Mapping[str, Any], name: str) -> list[int] | str:
    ids, text = row.get(f"{name}_ids"), row.get(name)
    if ids is None:
        if not isinstance(text, str):
            raise ValueError(f"it has neither {name}_ids nor {name}")
        return text
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise ValueError(f"{name}_ids is not a list of whole numbers")
    return ids


def numbered(path: Path, flag: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield (line number, line) of a file of JSON lines (``.gz`` too), or of another tool's."""
    return rows(path, flag) if recognised(path, flag) is None else samples(path, flag)


def bad_line(line: int, path: Path, problem: ValueError, flag: str) -> UsageError:
    """Return the error for a line that cannot be read as a text."""
    return UsageError(f"line {line} of {path}: {problem}.", flag=flag, remedy=FIELDS)


def read_lines(path: Path, usual: SamplingParams, flag: str) -> Iterator[TextLine]:
    """Yield the texts of a file that have tokens to judge."""
    for number, row in numbered(path, flag):
        try:
            line = TextLine.of(row, usual)
        except ValueError as problem:
            raise bad_line(number, path, problem, flag) from problem
        if line.completion:
            yield line

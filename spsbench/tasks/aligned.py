"""Aligned text files: line n of one belongs to line n of the other, as sacrebleu and Moses have them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spsbench.errors import UsageError
from spsbench.tasks.sources import Row, bad_data, read_text


def read_aligned(paths: Sequence[Path], columns: Sequence[str]) -> list[Row]:
    """One row per line, with the line's number as its id."""
    named = ",".join(map(str, paths))
    if len(paths) != len(columns):
        raise UsageError(
            f"{named} names {len(paths)} files, and the task reads {len(columns)} columns "
            f"({', '.join(columns)}).",
            flag="--data",
            remedy="Give one file of lines per column, in this order, with commas between them.",
        )
    lines = [_lines(path) for path in paths]
    counts = [len(part) for part in lines]
    if len(set(counts)) > 1:
        told = ", ".join(f"{path} has {count}" for path, count in zip(paths, counts, strict=True))
        raise bad_data(
            f"the files are not aligned: they differ in their number of lines ({told}).",
            "Give files of which line n of each belongs together.",
        )
    return [
        Row(f"line {number} of {named}", {"id": str(number), **dict(zip(columns, texts, strict=True))})
        for number, texts in enumerate(zip(*lines, strict=True), start=1)
    ]


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise bad_data(f"{path} does not exist.", "Give the paths of text files with a comma between them.")
    # Line feeds alone end a line: a text may hold other separators, which str.splitlines would follow.
    lines = [line.removesuffix("\r") for line in read_text(path).removesuffix("\n").split("\n")]
    if lines == [""]:
        raise bad_data(f"{path} holds no line.", "Give a file with at least one.")
    return lines

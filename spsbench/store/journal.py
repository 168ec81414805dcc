"""A file of JSON lines that survives a kill or a full disk at any byte.

A line counts once its newline is on the disk. What a crash left half-written is moved to a file beside
the journal, so that it is neither trusted nor lost.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.base.errors import SpsbenchError, UsageError
from spsbench.base.files import disk_error, ordinary, replacing

Row = dict[str, Any]
Digest = Callable[[Row], Any]


class _Line(NamedTuple):
    """A line of the file, by its number from 1; ``damage`` says what is wrong with it, if anything."""

    number: int
    offset: int
    text: bytes
    digest: Any
    damage: str | None


class Journal:
    """Append-only rows, each durable when ``append`` returns; ``digests`` are what ``digest`` made of the
    rows in the file when it was opened, by offset."""

    def __init__(self, path: Path, digest: Digest, *, writable: bool) -> None:
        self.path = path
        self._digest = digest
        self._descriptor: int | None = None
        damaged = self._scan()
        if not writable:
            self._refuse(damaged)
            return
        try:
            if damaged:
                self._set_aside(damaged)
            self._end_last_line()
            self._descriptor = ordinary(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            self._size_bytes = os.fstat(self._descriptor).st_size
        except OSError as problem:
            raise disk_error(path, problem) from problem

    def append(self, row: Row) -> int:
        """Write a row and wait until it is on the disk (about 0.2 ms); return its offset in the file."""
        if self._descriptor is None:
            raise SpsbenchError(f"{self.path} is open for reading only.")
        offset = self._size_bytes
        line = json.dumps(row, separators=(",", ":"), default=_number).encode() + b"\n"
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
            self._size_bytes = offset + len(line)
        except BaseException as problem:  # also Ctrl-C: no half line may stay in front of the next one
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, offset)
            self._size_bytes = offset
            if isinstance(problem, OSError):
                raise disk_error(self.path, problem) from problem
            raise
        return offset

    def read(self, offsets: Iterable[int]) -> Iterator[Row]:
        """Return the rows at some offsets, in that order."""
        if not self.path.exists():
            return
        with open(self.path, "rb", opener=ordinary) as file:
            for offset in offsets:
                file.seek(offset)
                row: Row = json.loads(file.readline())
                yield row

    def close(self) -> None:
        """Close the file; further rows are refused."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _scan(self) -> list[_Line]:
        """Read the whole file; return its damaged lines and remember the others' offsets."""
        self.digests: dict[int, Any] = {}
        damaged = []
        for line in _lines(self.path, self._digest):
            if line.damage is not None:
                damaged.append(line)
            else:
                self.digests[line.offset] = line.digest
        return damaged

    def _refuse(self, damaged: list[_Line]) -> None:
        """Raise for damage that is more than a last line still being written."""
        if damaged and (len(damaged) > 1 or damaged[0].text.endswith(b"\n")):
            remedy = f"--resume {self.path.parent} sets such lines aside and makes their samples again."
            more = f", and so are {len(damaged) - 1} more lines" if len(damaged) > 1 else ""
            where = f"{self.path} is damaged in line {damaged[0].number}"
            raise UsageError(f"{where} ({damaged[0].damage}){more}.", flag="RUN", remedy=remedy)

    def _set_aside(self, damaged: list[_Line]) -> None:
        """Move damaged lines to a file beside the journal."""
        with open(f"{self.path}.torn", "ab", opener=ordinary) as torn:
            torn.writelines(line.text.removesuffix(b"\n") + b"\n" for line in damaged)
            torn.flush()
            os.fsync(torn.fileno())
        last = damaged[-1]
        with open(self.path, "rb+", opener=ordinary) as file:
            if len(damaged) == 1 and last.offset + len(last.text) == file.seek(0, os.SEEK_END):
                file.truncate(last.offset)
                return
        with replacing(self.path) as new:
            new.writelines(line.text for line in _lines(self.path, self._digest) if line.damage is None)
        self._scan()

    def _end_last_line(self) -> None:
        """Add the missing newline after a last line that is otherwise whole."""
        if not self.path.exists():
            return
        with open(self.path, "rb+", opener=ordinary) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - 1, 0))
            if file.read(1) in (b"", b"\n"):
                return
            file.write(b"\n")
            file.flush()
            os.fsync(file.fileno())


def _lines(path: Path, digest: Digest) -> Iterator[_Line]:
    """Yield every line of the file; a cut-off object never parses, so a row is always whole."""
    if not path.exists():
        return
    offset = 0
    with open(path, "rb", opener=ordinary) as file:
        for number, text in enumerate(file, start=1):
            yield _Line(number, offset, text, *_digested(text, digest))
            offset += len(text)


def _digested(text: bytes, digest: Digest) -> tuple[Any, str | None]:
    """Return what a line comes to, or None and what is wrong with it."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as problem:
        return None, f"no JSON: {problem}"
    if not isinstance(row, dict):
        return None, "no JSON object"
    try:
        return digest(row), None
    except ValueError as problem:
        return None, str(problem)
    except (KeyError, TypeError, OverflowError) as problem:
        return None, f"{type(problem).__name__}: {problem}"


def _number(value: Any) -> Any:
    """Return a numpy or torch scalar as Python's own number."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} does not belong in a journal")

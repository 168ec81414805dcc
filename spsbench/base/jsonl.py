"""Files of JSON lines, optionally compressed by gzip: read one by one, written whole."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from spsbench.base.errors import UsageError
from spsbench.base.files import lines_of


def rows(path: Path, flag: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) of every line that is not blank; ``flag`` is for the errors."""
    with lines_of(path, flag) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UsageError(f"line {number} of {path} is not JSON.", flag=flag) from error
            if not isinstance(row, dict):
                raise UsageError(f"line {number} of {path} is not a JSON object.", flag=flag)
            yield number, row


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write JSON lines, compressed if the name ends in .gz; the file appears when it is complete."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("wb") as raw, ExitStack() as packing:
            # No time and no name in the header: the same rows give the same bytes.
            packed = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if path.suffix == ".gz" else None
            out = raw if packed is None else packing.enter_context(packed)
            for row in rows:
                out.write((json.dumps(row) + "\n").encode())
        partial.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}).", flag="--out") from error
    finally:
        partial.unlink(missing_ok=True)

"""What a folder of somebody else's may claim of a model, and hold, before anything is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from spsbench.base.errors import UnavailableError
from spsbench.base.files import MOST_BYTES, require_ordinary

WIDEST = 1 << 24
"""Of hidden states, vocabularies and the like; the widest vocabulary in use has 2^18 tokens."""
_MOST_LAYERS = 2_000
_WIDTHS = ("size", "dim", "d_model", "d_ff", "heads", "experts", "n_embd", "n_inner", "n_head")
_READ_WHOLE = frozenset({".json", ".jinja", ".txt", ".model"})


def require_ordinary_files(folder: Path, name: str, flag: str) -> None:
    """Refuse a model's folder with a pipe, a device or a socket in it, or with settings beyond any in use.

    Libraries open its files by their paths, and would wait.
    """
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.exists() and not path.is_dir():
            try:
                require_ordinary(path, MOST_BYTES if path.suffix in _READ_WHOLE else float("inf"))
            except OSError as problem:
                why = f"{name} is not a plausible model: {path.name} is not read ({problem.strerror})."
                raise UnavailableError(why, flag=flag, remedy="Check where it comes from.") from problem


def require_bounded_config(content: Any, name: str, flag: str) -> None:
    """Refuse a configuration of more layers or wider ones than is plausible, at any depth."""
    for key, value in _numbers(content):
        counts_layers = "layer" in key or key in ("depth", "num_blocks")
        most = _MOST_LAYERS if counts_layers else WIDEST if key.endswith(_WIDTHS) else value
        if value > most:
            raise too_much(name, flag, f"its {key} is {value:,}", most)


def _numbers(content: Any) -> Iterator[tuple[str, int]]:
    if isinstance(content, Mapping):
        for key, value in content.items():
            if isinstance(value, (int, float)) and value == value:
                yield str(key), int(max(min(value, 1e30), -1e30))
            else:
                yield from _numbers(value)
    elif isinstance(content, list):
        for value in content:
            yield from _numbers(value)


def too_much(name: str, flag: str, what: str, most: int) -> UnavailableError:
    return UnavailableError(
        f"{name} is not a plausible model: {what}, and at most {most:,} is read.",
        flag=flag,
        remedy="Check where it comes from.",
    )

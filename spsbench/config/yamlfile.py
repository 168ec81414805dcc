"""Reading YAML that people wrote: every mistake becomes a sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from spsbench.errors import UsageError


def read_yaml(path: Path, flag: str) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        UsageError: if the file is missing, not UTF-8, not YAML or no mapping; it names ``flag``.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as problem:
        reason = problem.strerror or type(problem).__name__
        raise UsageError(
            f"{path} cannot be read ({reason}).", flag=flag, remedy="Give the path of a YAML file."
        ) from problem
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        reason = " ".join(str(problem).split())[:200]
        raise UsageError(
            f"{path} is not YAML in UTF-8 ({reason}).", flag=flag, remedy="Correct the file."
        ) from problem
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no mapping.", flag=flag, remedy="Write one `key: value` per line.")
    return {str(key): value for key, value in content.items()}


def unknown_name(kind: str, name: str, known: Iterable[str], flag: str) -> UsageError:
    """The error for a name that is not among the known ones; suggests the closest.

    Args:
        kind: what the name should denote, e.g. ``pair``.
        name: what was given.
        known: the names that exist.
        flag: the flag or key at fault.
    """
    names = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.5)
    guess = f"Did you mean {lowered[close[0]]!r}? " if close else ""
    return UsageError(f"there is no {kind} {name!r}.", flag=flag, remedy=f"{guess}Known: {', '.join(names)}.")

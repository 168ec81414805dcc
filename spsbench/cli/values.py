"""What several commands ask for in text: lookaheads without 0, drafters, numbers, a sampling."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from spsbench.base.records import SamplingParams, Spec
    from spsbench.cli.options import Common


def lookaheads(text: str) -> tuple[int, ...]:
    """Read ``1..8`` as lookaheads from 1 on; a 0 beside others is dropped, since K = 0 is ArS."""
    from spsbench.config import parse_ks

    ks = tuple(k for k in parse_ks(text) if k)
    if not ks:
        remedy = "For example: --k 1..8."
        raise UsageError("it needs at least one value above 0, got 0.", flag="--k", remedy=remedy)
    return ks


def drafters(text: str) -> list[Spec]:
    """Read ``model,lookup`` as drafters, each once."""
    from spsbench.drafters.registry import drafter_kind

    return list(dict.fromkeys(specs(text, drafter_kind)))


def policies(text: str | None) -> list[Spec]:
    """Read ``stop-below:tau=0.3,entropy`` as policies; None where none was typed."""
    from spsbench.drafters.registry import policy_kind

    return [] if text is None else specs(text, policy_kind)


def specs(text: str, kind_of: Callable[[str], Any]) -> list[Spec]:
    """Read ``stop-below:tau=0.3,entropy`` as names with options that their kinds know."""
    from spsbench.base.records import Spec

    specs = [Spec.parse(name) for name in text.split(",")]
    for spec in specs:
        kind_of(spec.name).settled(spec)
    return specs


def _float_or_nan(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def path_in_place_of_number(text: str | None) -> Path | None:
    """Return the path that is given in place of a number; None for a number."""
    return Path(text) if text is not None and math.isnan(_float_or_nan(text)) else None


def seconds(text: str | None, default: float, flag: str = "--budget") -> float:
    """Return the seconds of a time, or the default where there is none."""
    from spsbench.config.resolution import typed_seconds

    return default if text is None else typed_seconds(text, flag)


def number(
    text: str | None, flag: str, least: float, default: float, most: float = math.inf, *, whole: bool = False
) -> float:
    """Read a number from ``least`` to ``most``; the default where none was given."""
    if text is None:
        return default
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = math.nan
    if value == math.inf or not least <= value <= most:
        kind = "whole number" if whole else "number"
        to = "" if math.isinf(most) else f" to {most:.0f}"
        raise UsageError(f"it must be a {kind} from {least:g}{to}, got {text}.", flag=flag)
    return value


def between(text: str | None, flag: str, low: float, high: float, default: float) -> float:
    """Read a number from ``low`` to ``high``; the default where none was given."""
    value = default if text is None else _float_or_nan(text)
    if not low <= value <= high:
        remedy = f"Give a number, e.g. {default:g}."
        raise UsageError(f"it must be between {low:g} and {high:g}, got {text}.", flag=flag, remedy=remedy)
    return value


def share(text: str, flag: str, *, zero: bool = False) -> float:
    """Read ``1%`` or ``0.01``: a share above 0 and below 1; ``zero`` allows 0 too."""
    number, percent, rest = text.strip().partition("%")
    value = _float_or_nan(number) / (100 if percent else 1)
    if rest or not 0 <= value < 1 or (value == 0 and not zero):
        allowed = "from 0 to below 1" if zero else "between 0 and 1"
        raise UsageError(f"it must be a share {allowed}, got {text}.", flag=flag, remedy="Give 1% or 0.01.")
    return value


_UNITS = {"": 1.0, "MB": 1e6, "GB": 1e9, "MIB": 2.0**20, "GIB": 2.0**30}


def memory_bytes(text: str | None, flag: str) -> float:
    """Read ``4GB`` or ``900MiB`` as bytes; infinity where no limit was given."""
    if text is None:
        return math.inf
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise UsageError(f"it must be a size, got {text}.", flag=flag, remedy="Give 4GB or 900MB.")
    return float(match[1]) * _UNITS[match[2].upper()]


def threads(text: str | None) -> int | None:
    """Read the number of threads; None for as many as suit."""
    if text in (None, "auto"):
        return None
    from spsbench.base.environment import require_cpus

    count = int(number(text, "--threads", 1, 1, whole=True))
    require_cpus(count)
    return count


def sampling(options: Common) -> SamplingParams:
    """Return the sampling of ``--temperature``, ``--top-p``, ``--top-k`` and the processing options."""
    from spsbench.base.records import SamplingParams
    from spsbench.cli.options import DrawnOptions, among
    from spsbench.config.resolution import resolve

    drawn = among(DrawnOptions, options)
    temperature = number(drawn.temperature, "--temperature", 0, 1.0)
    top_p = between(drawn.top_p, "--top-p", 0, 1, 1.0)
    if top_p == 0:
        raise UsageError("it must be above 0 and at most 1, got 0.", flag="--top-p")
    top_k = int(number(drawn.top_k, "--top-k", 0, 0, whole=True))
    process = None if drawn.process is None else resolve({"process": drawn.process}).process.processing
    return SamplingParams(
        1.0 if temperature == 0 else temperature, top_k, top_p, temperature == 0, process=process
    )


FLOATS = ("float32", "bfloat16", "float16")
"""Dtypes of models whose weights are not rounded."""


def require_machine(options: Common) -> None:
    """Refuse wrong values of ``--pair``, ``--device``, ``--dtype``, ``--backend`` and ``--threads``.

    They are those of a run, whose configuration knows what may be written.
    """
    from spsbench.cli.options import MachineOptions, among
    from spsbench.config.resolution import resolve, typed_settings

    resolve(typed_settings(vars(among(MachineOptions, options))))


def float_dtype(name: str | None, flag: str) -> str:
    """Return the dtype of a model whose weights are not rounded; ``auto`` where none was typed."""
    if name not in (None, "auto", *FLOATS):
        raise UsageError(f"{name} is unknown.", flag=flag, remedy=f"Choose from auto, {', '.join(FLOATS)}.")
    return name or "auto"


def concurrencies(text: str, flag: str = "--concurrency", most: int = 1024) -> tuple[int, ...]:
    """Read ``1,2,8`` as numbers of requests in flight, in rising order."""
    return tuple(sorted(counts(text, flag, f"For example: {flag} 1,2,4,8.", most)))


def counts(text: str, flag: str, remedy: str, most: int | None = None) -> tuple[int, ...]:
    """Read ``1,2,8`` as whole numbers from 1, each once, in the order in which they were typed."""
    parts = [part.strip() for part in text.split(",")]
    digits = all(part.isascii() and part.isdecimal() for part in parts)
    if not digits or not all(1 <= int(part) <= (most or math.inf) for part in parts):
        to = "" if most is None else f" to {most}"
        raise UsageError(f"it must be whole numbers from 1{to}, got {text}.", flag=flag, remedy=remedy)
    return tuple(dict.fromkeys(map(int, parts)))


def seed(text: str | None) -> int:
    """Read ``--seed``; 0 where none was typed."""
    return int(number(text, "--seed", 0, 0, whole=True))


def readable(path: Path | None, flag: str, remedy: str) -> None:
    if path is not None and not path.is_file():
        raise UnavailableError(f"{path} is not a file.", flag=flag, remedy=remedy)

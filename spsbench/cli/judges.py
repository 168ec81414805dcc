"""What ``judge`` and ``score`` are told about judging programs."""

from __future__ import annotations

from typing import Annotated

import typer

from spsbench.errors import UsageError

Workers = Annotated[
    str, typer.Option("--n-workers", metavar="auto|N", help="Judges at work; auto is one per core.")
]
Timeout = Annotated[
    str, typer.Option("--timeout", metavar="S", help="Wall seconds for a program with its check.")
]
UnsafeExec = Annotated[
    bool, typer.Option("--unsafe-exec", help="Run the programs even where no sandbox holds; it is recorded.")
]
Extract = Annotated[
    str,
    typer.Option(
        "--extract", metavar="none|fence", help="Code from an answer's fence, or the answer as it is."
    ),
]


def takes_fence(text: str) -> bool:
    """Whether code is taken from fences; UsageError for anything but none or fence."""
    if text not in ("none", "fence"):
        raise UsageError(f"{text!r} is not valid.", flag="--extract", remedy="Give none or fence.")
    return text == "fence"


def ks_of(text: str) -> list[int]:
    """``1,10,100`` as numbers; UsageError for anything else."""
    return [int(_number(part, "--k", 1, whole=True)) for part in dict.fromkeys(text.split(","))]


def workers_of(text: str) -> int | None:
    """How many judges; None for one per core."""
    return None if text == "auto" else int(_number(text, "--n-workers", 1, whole=True))


def timeout_of(text: str) -> float:
    """Seconds; UsageError for anything else."""
    return _number(text, "--timeout", 0.01)


def _number(text: str, flag: str, least: float, *, whole: bool = False) -> float:
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = -1
    if not least <= value <= 1e5:
        kind = "whole number" if whole else "number"
        raise UsageError(f"{text.strip()!r} is not a {kind} from {least} to 100000.", flag=flag)
    return value

"""``spsbench sweep-k``."""

from __future__ import annotations

from functools import wraps
from typing import Any

import typer

from spsbench.cli.run import run, start

DEFAULT_KS = "0..7"
"""The lookaheads of Figure 1 in Chen et al. 2023."""


@wraps(run, assigned=("__annotations__",))  # the options of `run`, with a help of its own
def sweep_k(context: typer.Context, **options: Any) -> None:
    """Measure several lookaheads K in one run, interleaved prompt by prompt.

    Example: spsbench sweep-k xsum --k 0,2,4,8
    """
    # A run that is continued knows its lookaheads.
    given = context.params["k"] or context.params["resume"]
    start(context.params if given else context.params | {"k": DEFAULT_KS})

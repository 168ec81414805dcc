"""What several commands ask for in text: lookaheads without 0, drafters, a time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from spsbench.errors import UsageError

if TYPE_CHECKING:
    from spsbench.records import Spec


def lookaheads(text: str) -> tuple[int, ...]:
    """``1..8`` as numbers from 1 on; a 0 beside others is dropped, for that is ArS.

    Raises:
        UsageError: for anything else, naming ``--k``.
    """
    from spsbench.config import parse_ks

    ks = tuple(k for k in parse_ks(text) if k)
    if not ks:
        raise UsageError("no lookahead is left: 0 is ArS.", flag="--k", remedy="Give a K from 1 on: 1..8.")
    return ks


def drafters(text: str) -> list[Spec]:
    """``model,lookup`` as drafters, each once.

    Raises:
        UsageError: one of them does not exist, or not with this setting.
    """
    from spsbench.drafters.registry import drafter_kind
    from spsbench.records import Spec

    specs = list(dict.fromkeys(Spec.parse(name) for name in text.split(",")))
    for spec in specs:
        drafter_kind(spec.name).settled(spec)
    return specs


def seconds(text: str | None, default: float) -> float:
    """What ``--budget`` gives.

    Raises:
        UsageError: it is no time.
    """
    try:
        found = default if text is None else float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise UsageError(f"{text!r} is no time.", flag="--budget", remedy="Give seconds, 0 for no timing.")
    return found

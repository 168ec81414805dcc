"""What several commands ask for in text: lookaheads without 0, drafters, a time."""

from __future__ import annotations

import math
import re
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


_UNIT_S = {"s": 1.0, "min": 60.0, "h": 3600.0}
_TIME = re.compile(r"(?P<number>[^a-z]+) ?(?P<unit>s|min|h)", re.ASCII)


def seconds(text: str | None, default: float) -> float:
    """What ``--budget`` gives: ``300``, ``90s``, ``5min``, ``1.5h``; a number alone is in seconds.

    Raises:
        UsageError: it is no time.
    """
    match = _TIME.fullmatch((text or "").strip())
    number, unit_s = (match["number"], _UNIT_S[match["unit"]]) if match else (text, 1.0)
    try:
        found = default if number is None else float(number) * unit_s
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise UsageError(f"{text!r} is no time.", flag="--budget", remedy="Give seconds, or 90s, 5min, 2h.")
    return found

"""Whether other processes or guests took the CPU while a run measured: its times are then no figures.

An interval over prompts takes what happened to one prompt as independent of the next. Neighbours come
in bursts that outlast a sequence: on a machine with them 32 of 40 intervals of 95% covered the truth.
Short waits all along do no harm: with 5% of them 37 of 40 did (docs/log.md). So beyond a small share,
which differs by kind, no interval is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spsbench.analysis.speedup import finished

if TYPE_CHECKING:
    import pandas as pd

MOST = {"waited_s": 0.06, "stolen_s": 0.02}
"""Seconds that a second of measuring may lose to others before its intervals are withheld."""

_TITLES = {
    "waited_s": "threads waited {:.2f} s for a CPU that other processes used",
    "stolen_s": "other guests of this machine had a CPU for {:.2f} s",
}


def contention(samples: pd.DataFrame, info: Mapping[str, Any]) -> dict[str, Any]:
    """How much of the measured time others took.

    Args:
        samples: rows with ``conditions``, ``prefill_s`` and ``decode_s``.
        info: run.json; ``stolen_share`` in runs of the first versions.

    Returns:
        ``waited_share`` and ``stolen_share`` of the measured seconds, null where the machine did not
        tell, whether the times are ``trusted``, and ``reasons``: sentences, empty if they are.
    """
    done = finished(samples)
    measured_s = float(done["prefill_s"].sum() + done["decode_s"].sum())
    shares = {name: _share(done, name, measured_s) for name in _TITLES}
    if shares["stolen_s"] is None:
        shares["stolen_s"] = info.get("stolen_share")
    reasons = [
        f"in each second measured {_TITLES[name].format(share)}"
        for name, share in shares.items()
        if share is not None and share > MOST[name]
    ]
    return {
        "waited_share": shares["waited_s"],
        "stolen_share": shares["stolen_s"],
        "trusted": not reasons,
        "reasons": reasons,
    }


def _share(done: pd.DataFrame, name: str, measured_s: float) -> float | None:
    if "conditions" not in done or not measured_s > 0:
        return None
    told = [found[name] for found in done["conditions"] if isinstance(found, dict) and name in found]
    return sum(told) / measured_s if told else None

"""Gates: what in a summary makes a run fail, for ``--fail-on``."""

from __future__ import annotations

from collections.abc import Iterator

from spsbench.axes import label
from spsbench.stats.conditions import untrusted_because
from spsbench.summary_types import Summary

GATES = ("lossless", "parity", "incomplete", "untrusted")


def failures(summary: Summary, gate: str) -> list[str]:
    """Sentences on why a gate fails; none if it passes.

    * ``lossless``: an arm is alarmed, or an SpS arm has no independent evidence to show.
    * ``parity``: an SpS arm scores differently from ArS. Inconclusive passes: it is not a finding.
    * ``incomplete``: sequences failed or are missing.
    * ``untrusted``: other processes used the CPU while it measured.
    """
    judges = {
        "lossless": _lossless,
        "parity": _parity,
        "incomplete": _incomplete,
        "untrusted": untrusted_because,
    }
    return list(judges[gate](summary))


def _lossless(summary: Summary) -> Iterator[str]:
    judged = summary["losslessness"]
    if judged is None:
        yield "nothing was measured, so there is no evidence of losslessness"
        return
    for arm in judged["arms"]:
        if arm["verdict"] == "alarm" or (arm["verdict"] == "no evidence" and arm["method"] == "sps"):
            yield f"{label(arm)}, {arm['sampling']}: {arm['verdict']} ({'; '.join(arm['reasons'])})"


def _parity(summary: Summary) -> Iterator[str]:
    parity = summary["parity"]
    if parity is None:
        yield "nothing was scored, so there is no parity to judge"
        return
    for comparison in parity["comparisons"]:
        if comparison["verdict"] == "different":
            yield f"{comparison['arm']}: {parity['metric']} differs by {comparison['difference']:+.4f}"


def _incomplete(summary: Summary) -> Iterator[str]:
    failed = sum(row["failed"] for row in summary["rows"])
    missing = sum(row["missing"] for row in summary["rows"])
    if failed or missing:
        yield f"{failed} sequences failed and {missing} are missing"

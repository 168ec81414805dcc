"""What ``compare`` does: read two runs, refuse or warn, show, judge the gate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spsbench.analysis.comparison import Side, compare, slower, undecided
from spsbench.cli.console import out, print_json, say
from spsbench.cli.parting import ask_again
from spsbench.errors import GateFailed, UsageError
from spsbench.store import RunStore, read_frames


def compare_runs(
    a: Path, b: Path, gate: str | None, *, force: bool = False, as_json: bool = False, quiet: bool = False
) -> None:
    """Compare two run directories.

    Raises:
        UsageError: one holds no run, they cannot be compared, or the gate is no share.
        GateFailed: an arm of B is slower than the gate allows.
    """
    allowed = None if gate is None else read_share(gate)
    compared = compare(_side(a), _side(b))
    _require_comparable(compared, gated=allowed is not None, force=force)
    ask_again(compared, a, b)
    if as_json:
        print_json(compared)
    else:
        from spsbench.report.comparison import screen

        out().print(screen(compared))
    if allowed is not None:
        _judge(compared, str(gate), allowed, quiet=quiet)


def read_share(text: str) -> float:
    """``2%`` or ``0.02`` as a number.

    Raises:
        UsageError: it is neither, or not from 0 to below 100%.
    """
    number = text.strip()
    try:
        share = float(number[:-1]) / 100 if number.endswith("%") else float(number)
    except ValueError:
        share = -1.0
    if not 0.0 <= share < 1.0:
        raise UsageError(f"{text!r} is no share.", flag="--gate", remedy="Write 2% or 0.02.")
    return share


def _side(directory: Path) -> Side:
    with RunStore.open(directory) as store:
        prompts = {prompt.example_id: prompt.text for prompt in store.prompts()}
        return Side(str(directory), store.run_info(), prompts, read_frames(directory).samples)


def _require_comparable(compared: Mapping[str, Any], *, gated: bool, force: bool) -> None:
    if not compared["arms"]:
        reasons = compared["refusals"] or ["no sequence was finished in both runs"]
        raise UsageError(f"these runs have nothing to compare: {'; '.join(reasons)}.", flag="B")
    if force:
        return
    if compared["refusals"]:
        raise UsageError(
            f"these runs answer different questions: {'; '.join(compared['refusals'])}.",
            flag="B",
            remedy="--force compares them all the same.",
        )
    if gated and compared["machine"]:
        raise UsageError(
            f"this gate would judge the machine: {'; '.join(compared['machine'])}.",
            flag="--gate",
            remedy="Run both on one quiet machine, or give --force.",
        )


def _judge(compared: Mapping[str, Any], gate: str, allowed: float, *, quiet: bool) -> None:
    failed = slower(compared, allowed)
    if failed:
        raise GateFailed(f"B is slower than A by more than {gate}: {'; '.join(failed)}.", flag="--gate")
    open_arms = undecided(compared, allowed)
    if open_arms:
        say(
            f"Not slower by more than {gate} beyond doubt, but too few prompts to exclude it: "
            f"{', '.join(open_arms)}.",
            quiet=quiet,
        )

"""Loops of another machine, from the forwards that `spsbench bench --json` timed there."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from spsbench.base import Floats, Spec, UnavailableError, UsageError, first_line, read_file
from spsbench.drafters import DRAFT, drafter_kind
from spsbench.parts.whatif.bench.forwards import Forwards
from spsbench.parts.whatif.messages.replay import ForwardsElsewhere
from spsbench.parts.whatif.replay.cells import Cell
from spsbench.parts.whatif.replay.reading import Replayed
from spsbench.parts.whatif.replay.times import LoopTimes

_FLAG = "--times"
_REMEDY = "Give what `spsbench bench --json` printed for these models, with every K."


class _BenchedModel(BaseModel):
    name: str
    parameters: int


class _Rounds(BaseModel):
    rows: list[int] = Field(min_length=1)
    seconds: list[list[float]] = Field(min_length=1)


class _Bench(BaseModel):
    """What is used of the output of ``bench --json``."""

    target: _BenchedModel
    draft: _BenchedModel
    device: str
    context: int = Field(ge=1)
    rounds: dict[str, _Rounds]


@dataclass(frozen=True)
class Calibration:
    """Seconds of forwards of a target and a draft model on another machine, as ``bench`` timed them.

    Attributes:
        forwards: by role, in the same number of rounds.
    """

    path: Path
    models: str
    parameters: Mapping[str, int]
    context: int
    forwards: Mapping[str, Forwards]

    @property
    def origin(self) -> ForwardsElsewhere:
        return ForwardsElsewhere(self.models, self.context)

    def ars(self) -> LoopTimes:
        """Of ArS: a forward of one token."""
        step = self._forward("target", 1)
        return LoopTimes.one_a_round(self.context, step, np.zeros_like(step), 0)

    def loops(self, cell: Cell, replay: Replayed) -> LoopTimes:
        """Of SpS: the target's forward of K+1 tokens, and the draft's forwards.

        Of a tree: a forward of its nodes and one token, and the draft's of the nodes of each depth.
        """
        self.require_models(cell.sought.models)
        verifying = self._forward("target", 1 + cell.nodes)
        if cell.tree is None:
            drafting = drafter_kind(cell.drafter.name).forwards(cell.k) * self._forward("draft", 1)
        else:
            drafting = np.sum([self._forward("draft", rows) for rows in cell.tree.rows], axis=0)
        return LoopTimes.one_a_round(self.context, verifying, drafting, cell.nodes)

    def require_covered(self, drafter: Spec) -> None:
        """Refuse a drafter whose work the file does not cover."""
        if drafter.name == "union" or drafter_kind(drafter.name).needs_of(drafter) - {DRAFT}:
            raise UsageError(
                f"{self.path} has no times of {drafter}.",
                flag=_FLAG,
                remedy="Leave it out, or replay on that machine without --times.",
            )

    def require_models(self, parameters: Mapping[str, int]) -> None:
        """Refuse times of other models."""
        for role, here in parameters.items():
            if here != self.parameters[role]:
                raise UsageError(
                    f"{self.path} has times of a {role} of {self.parameters[role]:,} weights, not {here:,}.",
                    flag=_FLAG,
                    remedy=_REMEDY,
                )

    def _forward(self, role: str, rows: int) -> Floats:
        """[rounds] seconds of a forward of so many tokens at once."""
        forwards = self.forwards[role]
        if rows not in forwards.rows:
            have = ", ".join(map(str, sorted(forwards.rows)))
            raise UsageError(
                f"{self.path} has times of the {role} for {have} tokens at once, and not for {rows}.",
                flag=_FLAG,
                remedy=_REMEDY,
            )
        return forwards.of(rows)


def read_times(path: Path, drafters: Sequence[Spec] = ()) -> Calibration:
    """Read what ``bench --json`` printed, which covers these drafters."""
    forwards: dict[str, Forwards] = {}
    try:
        bench = _Bench.model_validate_json(read_file(path).removeprefix(codecs.BOM_UTF8))
        for role in ("target", "draft"):
            rows = bench.rounds[role].rows
            seconds = np.array(bench.rounds[role].seconds, dtype=np.float64)
            if seconds.ndim != 2 or seconds.shape[1] != len(rows):
                raise ValueError("a round has not one time for each number of rows")
            if not (np.isfinite(seconds) & (seconds > 0)).all():
                raise ValueError("a time is not above 0")
            forwards[role] = Forwards(tuple(rows), seconds)
    except OSError as error:
        raise UnavailableError(
            f"{path} cannot be read: {error.strerror}.", flag=_FLAG, remedy=_REMEDY
        ) from error
    except (ValidationError, KeyError, ValueError) as error:
        reason = first_line(error)
        raise UsageError(f"{path} holds no times: {reason}.", flag=_FLAG, remedy=_REMEDY) from error
    rounds = min(len(timed.seconds) for timed in forwards.values())
    calibration = Calibration(
        path,
        f"{bench.target.name} and {bench.draft.name} on {bench.device}",
        {"target": bench.target.parameters, "draft": bench.draft.parameters},
        bench.context,
        {role: Forwards(timed.rows, timed.seconds[:rounds]) for role, timed in forwards.items()},
    )
    for drafter in drafters:
        calibration.require_covered(drafter)
    return calibration

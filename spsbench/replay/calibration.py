"""Times of loops on another machine, from the forwards that ``bench`` timed there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from spsbench.drafters.kind import DRAFT
from spsbench.drafters.registry import drafter_kind
from spsbench.errors import UnavailableError, UsageError
from spsbench.law.text_loops import Floats
from spsbench.records import Spec
from spsbench.replay.rehearsal import COLD, LoopTimes

FLAG = "--times"
_REMEDY = "Give what `spsbench bench --json` printed for these models, with every K."
_UNION = "union"


class _Model(BaseModel):
    name: str
    parameters: int


class _Rounds(BaseModel):
    rows: list[int] = Field(min_length=1)
    seconds: list[list[float]] = Field(min_length=1)


class _Bench(BaseModel):
    """What is used of the output of ``bench --json``."""

    target: _Model
    draft: _Model
    device: str
    context: int = Field(ge=1)
    rounds: dict[str, _Rounds]


@dataclass(frozen=True)
class Calibration:
    """Seconds of forwards of a target and a draft model.

    Attributes:
        seconds: by role and by how many tokens were scored at once, [rounds]; of one number of rounds.
    """

    path: Path
    told: str
    parameters: Mapping[str, int]
    context: int
    seconds: Mapping[str, Mapping[int, Floats]]

    def ars(self) -> LoopTimes:
        """Of ArS: a forward of one token."""
        step = self._forward("target", 1)
        return self._loops(step, np.zeros_like(step), 0)

    def loops(self, drafter: Spec, k: int) -> LoopTimes:
        """Of SpS: a forward of K+1 tokens, and K of the draft model where one drafts."""
        self.require_covered(drafter)
        drafting = drafter_kind(drafter.name).forwards(k) * self._forward("draft", 1)
        return self._loops(self._forward("target", k + 1), drafting, k)

    def require_covered(self, drafter: Spec) -> None:
        """Refuse a drafter of whose work the file says nothing."""
        if drafter.name == _UNION or drafter_kind(drafter.name).needs_of(drafter) - {DRAFT}:
            raise UsageError(
                f"{self.path} has no times of {drafter}.",
                flag=FLAG,
                remedy="Leave it out, or replay on that machine without --times.",
            )

    def require_models(self, parameters: Mapping[str, int]) -> None:
        """Refuse times of other models."""
        for role, here in parameters.items():
            if here != self.parameters[role]:
                raise UsageError(
                    f"{self.path} has times of a {role} of {self.parameters[role]:,} weights, not {here:,}.",
                    flag=FLAG,
                    remedy=_REMEDY,
                )

    def _forward(self, role: str, rows: int) -> Floats:
        found = self.seconds[role].get(rows)
        if found is None:
            have = ", ".join(map(str, sorted(self.seconds[role])))
            raise UsageError(
                f"{self.path} has times of the {role} for {have} tokens at once, and not for {rows}.",
                flag=FLAG,
                remedy=_REMEDY,
            )
        return found

    def _loops(self, verifying: Floats, drafting: Floats, drafted: int) -> LoopTimes:
        """One loop a round, none of them cold."""
        same, rounds = np.ones(len(verifying)), np.arange(len(verifying), dtype=np.float64)
        seconds = verifying + drafting
        return LoopTimes(rounds, COLD * same, self.context * same, seconds, drafting, drafted * same)


def read_times(path: Path) -> Calibration:
    """Read what ``bench --json`` printed."""
    try:
        found = _Bench.model_validate_json(path.read_bytes())
        seconds = {role: _by_rows(found.rounds[role]) for role in ("target", "draft")}
    except OSError as error:
        raise UnavailableError(
            f"{path} cannot be read: {error.strerror}.", flag=FLAG, remedy=_REMEDY
        ) from error
    except (ValidationError, KeyError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{path} holds no times: {reason}.", flag=FLAG, remedy=_REMEDY) from error
    rounds = min(len(times) for own in seconds.values() for times in own.values())
    return Calibration(
        path,
        f"{found.target.name} and {found.draft.name} on {found.device}",
        {"target": found.target.parameters, "draft": found.draft.parameters},
        found.context,
        {role: {n: times[:rounds] for n, times in own.items()} for role, own in seconds.items()},
    )


def _by_rows(rounds: _Rounds) -> dict[int, Floats]:
    """[rounds] seconds by rows."""
    seconds = np.array(rounds.seconds, dtype=np.float64)
    if seconds.ndim != 2 or seconds.shape[1] != len(rounds.rows):
        raise ValueError("a round has not one time for each number of rows")
    if not (np.isfinite(seconds) & (seconds > 0)).all():
        raise ValueError("a time is not above 0")
    return dict(zip(rounds.rows, seconds.T, strict=True))

"""A metric: what it is called, which way is better, and how outputs are scored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from spsbench.errors import SpsbenchError

Texts = Sequence[str]


class MetricFault(SpsbenchError):
    """A metric broke its contract; what was generated stays, and can be scored once it is mended."""


@dataclass(frozen=True, slots=True)
class MetricKind:
    """A metric by name.

    Attributes:
        name: as every table calls it; unique within a task.
        summary: one sentence on what it measures, for lists.
        score: from (prompts, outputs, references), texts of equal number, one score for each output.
        higher_is_better: False for a distance or an error.
        margin: the difference that still counts as parity, in the metric's unit; used where no arm with the
            draft alone says what is at stake.
        needs: what has to be there, for lists.
    """

    name: str
    summary: str
    score: Callable[[Texts, Texts, Texts], Iterable[float]]
    higher_is_better: bool = True
    margin: float = 0.01
    needs: str = "nothing"

    def record(self) -> dict[str, Any]:
        """What parity needs of it, as ``run.json`` keeps it."""
        return {"higher_is_better": self.higher_is_better, "margin": self.margin}


def scores(
    kinds: Sequence[MetricKind], prompts: Texts, outputs: Texts, references: Texts
) -> list[dict[str, float]]:
    """Each output's scores by the metrics' names.

    Raises:
        MetricFault: a metric raised, or answered something else than one finite number for each output.
    """
    columns = {kind.name: _column(kind, prompts, outputs, references) for kind in kinds}
    return [{name: column[index] for name, column in columns.items()} for index in range(len(outputs))]


def _column(kind: MetricKind, prompts: Texts, outputs: Texts, references: Texts) -> list[float]:
    try:
        found = list(kind.score(prompts, outputs, references))
    except SpsbenchError:
        raise
    except Exception as error:
        raise _fault(kind, f"raised {type(error).__name__}: {error}") from error
    if len(found) != len(outputs):
        raise _fault(kind, f"gave {len(found)} scores for {len(outputs)} outputs")
    return [_number(kind, value) for value in found]


def _number(kind: MetricKind, value: Any) -> float:
    if isinstance(value, Real) and math.isfinite(float(value)):
        return float(value)
    raise _fault(kind, f"gave {value!r:.40} for a score")


def _fault(kind: MetricKind, what: str) -> MetricFault:
    return MetricFault(
        f"the metric {kind.name} {what}.",
        remedy="Mend it; then `spsbench score RUN` scores what was generated.",
    )

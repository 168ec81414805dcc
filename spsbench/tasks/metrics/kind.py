"""A metric: what it is called, which way is better, and how outputs are scored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, TypeVar

from spsbench.base.arrays import Floats
from spsbench.base.errors import SpsbenchError

T = TypeVar("T")
Texts = Sequence[str]


class MetricFault(SpsbenchError):
    """A metric broke its contract; what was generated stays, and can be scored once it is fixed."""


Score = Callable[[Texts, Texts, Texts], Iterable[float]]


@dataclass(frozen=True, slots=True)
class Sums:
    """A figure of a corpus that follows from sums over its outputs, as BLEU does from counts of n-grams.

    Attributes:
        columns: what is counted, by name.
        count: from (prompts, outputs, references) to one row per output, a finite number for each column.
        value: from sums over any outputs, [columns, m], to the m figures.
        least, most: no figure is beyond them.
    """

    columns: tuple[str, ...]
    count: Callable[[Texts, Texts, Texts], Iterable[Sequence[float]]]
    value: Callable[[Floats], Floats]
    least: float = -math.inf
    most: float = math.inf


@dataclass(frozen=True, slots=True)
class MetricKind:
    """A metric by name. It gives each output a score, or a corpus one figure: by sums, or all at once.

    Attributes:
        name: as every table calls it; unique within a task.
        summary: one sentence on what it measures, for lists.
        score: from (prompts, outputs, references), texts of equal number, one score for each output; an arm's
            figure is their mean.
        higher_is_better: False for a distance or an error.
        margin: the difference that still counts as parity, in the metric's unit; used where no arm with the
            draft alone says what is at stake.
        needs: what has to be there, for lists.
        sums: for a figure of a corpus that follows from sums over its outputs, in place of ``score``.
        corpus: for any other figure of a corpus, in place of ``score``: from the texts of an arm to the
            figure. It has no interval and no verdict of parity.
        reads: whether it can make anything of a reference; outputs to others have no score. None: of any.
        signature: how exactly it is computed, for the record, e.g. sacrebleu's signature.
        require: refuses a run that would be scored where something is missing.

    Raises:
        ValueError: not exactly one of ``score``, ``sums`` and ``corpus`` is given.
    """

    name: str
    summary: str
    score: Score | None = None
    higher_is_better: bool = True
    margin: float = 0.01
    needs: str = "nothing"
    sums: Sums | None = None
    corpus: Callable[[Texts, Texts, Texts], float] | None = None
    signature: Callable[[], str] | None = None
    reads: Callable[[str], bool] | None = None
    require: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        if sum(way is not None for way in (self.score, self.sums, self.corpus)) != 1:
            raise ValueError(f"the metric {self.name} needs exactly one of score, sums and corpus")

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of an output's sums where they are not themselves a score."""
        if self.score is not None:
            return ()
        counted = (OUTPUTS,) if self.sums is None else self.sums.columns
        return tuple(f"{self.name}:{column}" for column in counted)

    def record(self) -> dict[str, Any]:
        """What parity and reports need of it, as ``run.json`` keeps it."""
        record: dict[str, Any] = {"higher_is_better": self.higher_is_better, "margin": self.margin}
        if self.columns:
            record["columns"] = list(self.columns)
        if self.signature is not None:
            record["signature"] = self.signature()
        return record


OUTPUTS = "outputs"
"""Marks an output that a figure of the whole corpus takes in: it has no score by itself."""


def scores(
    kinds: Sequence[MetricKind], prompts: Texts, outputs: Texts, references: Texts
) -> list[dict[str, float]]:
    """Return each output's scores by the metrics' names, or the sums for a corpus."""
    by_output: list[dict[str, float]] = [{} for _ in outputs]
    for kind in kinds:
        read = [i for i, reference in enumerate(references) if kind.reads is None or kind.reads(reference)]
        if outputs and not read:
            continue
        texts = ([own[i] for i in read] for own in (prompts, outputs, references))
        for name, column in _columns_by_name(kind, *texts).items():
            for i, value in zip(read, column, strict=True):
                by_output[i][name] = value
    return by_output


def corpus_figure(kind: MetricKind, prompts: Texts, outputs: Texts, references: Texts) -> float:
    """Return the figure of a corpus by a metric with ``corpus``."""
    assert kind.corpus is not None
    return _number(kind, _called(kind, partial(kind.corpus, prompts, outputs, references)))


def _columns_by_name(
    kind: MetricKind, prompts: Texts, outputs: Texts, references: Texts
) -> dict[str, list[float]]:
    score, sums = kind.score, kind.sums
    if score is None and sums is None:
        return {name: [1.0] * len(outputs) for name in kind.columns}
    names: tuple[str, ...] = kind.columns or (kind.name,)
    if sums is not None:
        rows = _called(kind, lambda: [list(row) for row in sums.count(prompts, outputs, references)])
    else:
        assert score is not None
        rows = _called(kind, lambda: [[value] for value in score(prompts, outputs, references)])
    if len(rows) != len(outputs):
        raise _fault(kind, f"gave {len(rows)} scores for {len(outputs)} outputs")
    for row in rows:
        if len(row) != len(names):
            raise _fault(kind, f"gave {len(row)} numbers for {len(names)} columns")
    return {name: [_number(kind, row[i]) for row in rows] for i, name in enumerate(names)}


def _called(kind: MetricKind, call: Callable[[], T]) -> T:
    try:
        return call()
    except SpsbenchError:
        raise
    except Exception as error:
        raise _fault(kind, f"raised {type(error).__name__}: {error}") from error


def _number(kind: MetricKind, value: Any) -> float:
    if isinstance(value, Real) and math.isfinite(float(value)):
        return float(value)
    raise _fault(kind, f"gave {value!r:.40} for a score")


def _fault(kind: MetricKind, what: str) -> MetricFault:
    return MetricFault(
        f"the metric {kind.name} {what}.",
        remedy="Mend it; then `spsbench score RUN` scores what was generated.",
    )

"""Metrics of the ``evaluate`` library by name: ``evaluate:NAME[:KEY]`` or ``evaluate:path/metric.py[:KEY]``.

What ``compute`` answers for two pairs of texts decides what kind of metric it is. Where the answer holds one
number per output, or is the mean of the answers for each pair alone, every output gets a score, and the
metric has intervals and a verdict of parity like any other. Otherwise an arm has the one figure that
``compute`` gives for all of its outputs, without an interval. Importing ``evaluate`` costs seconds, so it
waits until a task names such a metric.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

from spsbench.errors import SpsbenchError, UnavailableError, UsageError
from spsbench.metrics.kind import MetricKind, Score, Texts

PREFIX = "evaluate:"

LOWER_IS_BETTER = frozenset({"cer", "character", "ter", "wer"})
"""Error rates among the metrics of texts; ``evaluate`` does not say which way is better."""

_PREDICTIONS = ["the cat sat on the mat today", "a dog ran home"]
_REFERENCES = ["the cat sat on the mat today", "the old dog ran home at night yesterday"]


def evaluated_metric(name: str, flag: str, folder: Path | None = None) -> MetricKind:
    """The metric of ``evaluate`` after a name; it is loaded, and tried on two pairs of texts."""
    where, key = _parsed(name)
    if where.endswith(".py") and folder is not None:
        where = str(folder / where)
    title = Path(where).stem if where.endswith(".py") else where.rpartition("/")[2]
    module = _Module(_loaded(where, flag), title, key)
    answer = _tried(module, name, flag)
    return _kind(module.with_key(answer, name, flag), answer, name, where)


def _parsed(name: str) -> tuple[str, str | None]:
    """(script or name, key of the answer)."""
    rest = name.removeprefix(PREFIX)
    where, found, key = rest.partition(".py:")
    if found:
        return f"{where}.py", key
    if rest.endswith(".py"):
        return rest, None
    where, found, key = rest.partition(":")
    return where, key if found else None


def _loaded(where: str, flag: str) -> Any:
    if where.endswith(".py") and not Path(where).is_file():
        raise UnavailableError(
            f"{where} is not there.", flag=flag, remedy="Name a metric script of the evaluate library."
        )
    import evaluate

    try:
        return evaluate.load(where, module_type="metric", keep_in_memory=True)
    except Exception as error:  # a script may raise anything, and the client what its HTTP library raised
        absent = isinstance(error, (FileNotFoundError, ConnectionError))
        reason = (
            "its script is not on this machine and cannot be fetched from the hub"
            if absent
            else _first_line(error)
        )
        raise UnavailableError(
            f"the metric {where!r} of the evaluate library cannot be loaded ({reason}).",
            flag=flag,
            remedy="Check its name, install the packages it needs, go online once (the script is kept), or "
            f"give a local script, {PREFIX}path/metric.py.",
        ) from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


@dataclass(frozen=True)
class _Module:
    """A loaded module of ``evaluate``, and the key of its answer that counts."""

    module: Any
    title: str
    key: str | None

    def answer(self, outputs: Texts, references: Texts) -> Mapping[str, Any]:
        """What ``compute`` answers."""
        found = self.module.compute(predictions=list(outputs), references=list(references))
        if not isinstance(found, Mapping):
            raise TypeError(f"compute answered {type(found).__name__}, not a dictionary")
        return found

    def figure(self, outputs: Texts, references: Texts) -> float:
        """The one number for all of the outputs."""
        value: float = self.answer(outputs, references)[str(self.key)]
        return value

    def with_key(self, answer: Mapping[str, Any], name: str, flag: str) -> _Module:
        """The same with its key settled: as given, else named like the metric, ``score``, or the only one."""
        keys = [str(key) for key, value in answer.items() if _is_figure(value) or _is_list(value)]
        wanted = (
            [self.key] if self.key is not None else [self.title, "score", *(keys if len(keys) == 1 else [])]
        )
        found = next((key for key in wanted if key in keys), None)
        if found is not None:
            return _Module(self.module, self.title, found)
        listed = ", ".join(keys) or "no number"
        what = f"has no {self.key!r}" if self.key is not None else "does not say which of its numbers counts"
        raise UsageError(
            f"the answer of {name} {what}: it has {listed}.",
            flag=flag,
            remedy=f"Name one as {PREFIX}NAME:KEY.",
        )


def _tried(module: _Module, name: str, flag: str) -> Mapping[str, Any]:
    try:
        return module.answer(_PREDICTIONS, _REFERENCES)
    except Exception as error:
        raise UsageError(
            f"{name} does not score texts against references ({_first_line(error)}).",
            flag=flag,
            remedy="Name a metric whose predictions and references are texts, and which needs nothing else.",
        ) from error


def _kind(module: _Module, answer: Mapping[str, Any], name: str, where: str) -> MetricKind:
    key = str(module.key)
    score: Score | None = None
    corpus: Callable[[Texts, Texts, Texts], float] | None = None
    if _is_list(answer[key]):
        score = lambda prompts, outputs, references: module.answer(outputs, references)[key]  # noqa: E731
    elif _is_mean(module, answer[key]):
        score = lambda prompts, outputs, references: _alone(module, outputs, references)  # noqa: E731
    else:
        corpus = lambda prompts, outputs, references: module.figure(outputs, references)  # noqa: E731
    return MetricKind(
        module.title if key in (module.title, "score") else f"{module.title}:{key}",
        f"{key} of {name.removesuffix(f':{key}')}",
        score,
        higher_is_better=module.title not in LOWER_IS_BETTER,
        needs="the evaluate library's script",
        corpus=corpus,
        signature=partial(_signature, where, key),
    )


def _is_figure(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_list(value: Any) -> bool:
    """Whether an answer holds one number for each of the pairs that are tried."""
    if isinstance(value, (str, Mapping)) or not isinstance(value, Sequence):
        return False
    return len(value) == len(_PREDICTIONS) and all(map(_is_figure, value))


def _alone(module: _Module, outputs: Texts, references: Texts) -> list[float]:
    """Each output scored by itself."""
    return [module.figure([output], [text]) for output, text in zip(outputs, references, strict=True)]


def _is_mean(module: _Module, whole: float) -> bool:
    """Whether the figure of the pairs together is the mean of theirs."""
    try:
        alone = _alone(module, _PREDICTIONS, _REFERENCES)
    except SpsbenchError:
        raise
    except Exception:  # e.g. a correlation, which one pair has none of
        return False
    return math.isclose(sum(alone) / len(alone), whole, rel_tol=1e-9, abs_tol=1e-12)


def _signature(where: str, key: str) -> str:
    """The library's version, the metric, and of a local script its content."""
    import evaluate

    parts = [f"evaluate:{evaluate.__version__}", f"metric:{Path(where).name}", f"key:{key}"]
    if where.endswith(".py"):
        parts.append(f"sha256:{hashlib.sha256(Path(where).read_bytes()).hexdigest()[:16]}")
    return "|".join(parts)

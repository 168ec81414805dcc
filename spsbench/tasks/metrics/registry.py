"""Metrics by name: built in, from another package, from a file, or of the ``evaluate`` library."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

from spsbench.base.errors import SpsbenchError, UnavailableError, UsageError, first_line
from spsbench.base.plugins import Registry
from spsbench.tasks.metrics.builtin import KINDS
from spsbench.tasks.metrics.kind import MetricKind, Texts

METRICS = Registry(MetricKind, "spsbench.metrics", "metrics", KINDS)
metric_kind = METRICS.find

RESERVED = ("passed", "pass@1", "pass@10", "pass@100")
"""Scores of generated programs: the task runs those itself, in a sandbox."""

PREFIX = "evaluate:"
"""Before ``NAME[:KEY]`` or ``path/metric.py[:KEY]`` of the ``evaluate`` library."""

LOWER_IS_BETTER = frozenset({"cer", "character", "ter", "wer"})
"""Error rates among the metrics of texts; ``evaluate`` does not say which way is better."""

_PREDICTIONS = ["the cat sat on the mat today", "a dog ran home"]
_REFERENCES = ["the cat sat on the mat today", "the old dog ran home at night yesterday"]


def metric_kinds(
    named: Iterable[str | MetricKind], flag: str = "metrics", folder: Path | None = None
) -> tuple[MetricKind, ...]:
    """Return the metrics of a task; files are named relative to ``folder``."""
    kinds: dict[str, MetricKind] = {}
    for name in named:
        if not isinstance(name, str):
            kind = name
        elif name.startswith(PREFIX):
            kind = _metric_of_evaluate(name, flag, folder)
        else:
            kind = metric_kind(str(folder / name) if folder is not None and ".py:" in name else name, flag)
        if not isinstance(kind, MetricKind):
            raise UsageError(
                f"{kind!r:.60} is not a metric.", flag=flag, remedy="Give a name or a MetricKind."
            )
        if kind.name in kinds or kind.name in RESERVED:
            remedy = "Give every metric its own name."
            raise UsageError(f"the name {kind.name!r} is taken.", flag=flag, remedy=remedy)
        kinds[kind.name] = kind
    return tuple(kinds.values())


def records(kinds: Iterable[MetricKind]) -> Mapping[str, Mapping[str, object]]:
    """Return what ``run.json`` keeps of the metrics, so that a report needs no package but ours."""
    return {kind.name: kind.record() for kind in kinds}


def installed(name: str) -> MetricKind | None:
    """Return the metric of a name, ours or an installed package's; None if there is none.

    A file's metric is none of these: the name may come from somebody else's run, whose files a report does
    not execute.
    """
    if ":" in name:
        return None
    try:
        return metric_kind(name)
    except SpsbenchError:
        return None


def _metric_of_evaluate(name: str, flag: str, folder: Path | None) -> MetricKind:
    """It is loaded, and tried on two pairs of texts.

    Where the answer holds one number per output, or is the mean of the answers for each pair alone, every
    output gets a score, and the metric has intervals and a verdict of parity like any other. Otherwise an arm
    has the one figure that ``compute`` gives for all of its outputs, without an interval.
    """
    parsed = re.fullmatch(r"(.*?\.py|[^:]*)(?::(.*))?", name.removeprefix(PREFIX))
    where, wanted = parsed.groups() if parsed else (name, None)
    is_script = where.endswith(".py")
    title = Path(where).stem if is_script else where.rpartition("/")[2]
    where = str(folder / where) if is_script and folder is not None else where
    module = _loaded(where, flag)

    def computed(outputs: Texts, references: Texts) -> Mapping[str, Any]:
        answer = module.compute(predictions=list(outputs), references=list(references))
        if not isinstance(answer, Mapping):
            raise TypeError(f"compute answered {type(answer).__name__}, not a dictionary")
        return answer

    try:
        tried = computed(_PREDICTIONS, _REFERENCES)
    except Exception as error:
        raise UsageError(
            f"{name} does not score texts against references ({first_line(error, kind=True)}).",
            flag=flag,
            remedy="Name a metric whose predictions and references are texts, and which needs nothing else.",
        ) from error
    key = _counting_key(tried, title, wanted, name, flag)

    def together(prompts: Texts, outputs: Texts, references: Texts) -> Any:
        return computed(outputs, references)[key]

    def alone(prompts: Texts, outputs: Texts, references: Texts) -> list[float]:
        pairs = zip(outputs, references, strict=True)
        return [computed([output], [reference])[key] for output, reference in pairs]

    def is_mean() -> bool:
        try:
            each = alone([], _PREDICTIONS, _REFERENCES)
        except SpsbenchError:
            raise
        except Exception:  # e.g. a correlation, which one pair has none of
            return False
        return math.isclose(sum(each) / len(each), tried[key], rel_tol=1e-9, abs_tol=1e-12)

    score = together if _is_figure_a_pair(tried[key]) else alone if is_mean() else None
    return MetricKind(
        title if key in (title, "score") else f"{title}:{key}",
        f"{key} of {name.removesuffix(f':{key}')}",
        score,
        higher_is_better=title not in LOWER_IS_BETTER,
        needs="the evaluate library's script",
        corpus=together if score is None else None,
        signature=partial(_signature, where, key),
    )


def _loaded(where: str, flag: str) -> Any:
    if where.endswith(".py") and not Path(where).is_file():
        remedy = "Name a metric script of the evaluate library."
        raise UnavailableError(f"{where} is not there.", flag=flag, remedy=remedy)
    import evaluate  # which costs seconds

    try:
        return evaluate.load(where, module_type="metric", keep_in_memory=True)
    except Exception as error:  # a script may raise anything, and the client what its HTTP library raised
        reason = first_line(error, kind=True)
        if isinstance(error, (FileNotFoundError, ConnectionError)):
            reason = "its script is not on this machine and cannot be fetched from the hub"
        raise UnavailableError(
            f"the metric {where!r} of the evaluate library cannot be loaded ({reason}).",
            flag=flag,
            remedy="Check its name, install the packages it needs, go online once (the script is kept), or "
            f"give a local script, {PREFIX}path/metric.py.",
        ) from error


def _counting_key(answer: Mapping[str, Any], title: str, wanted: str | None, name: str, flag: str) -> str:
    """As given, else named like the metric, ``score``, or the only one."""
    keys = [str(key) for key, value in answer.items() if _is_figure(value) or _is_figure_a_pair(value)]
    tried = [wanted] if wanted is not None else [title, "score", *(keys if len(keys) == 1 else [])]
    for key in tried:
        if key in keys:
            return key
    what = f"has no {wanted!r}" if wanted is not None else "does not say which of its numbers counts"
    why = f"the answer of {name} {what}: it has {', '.join(keys) or 'no number'}."
    raise UsageError(why, flag=flag, remedy=f"Name one as {PREFIX}NAME:KEY.")


def _is_figure(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_figure_a_pair(value: Any) -> bool:
    """One number for each of the pairs that are tried."""
    if isinstance(value, (str, Mapping)) or not isinstance(value, Sequence):
        return False
    return len(value) == len(_PREDICTIONS) and all(map(_is_figure, value))


def _signature(where: str, key: str) -> str:
    """The library's version, the metric, and a local script's content."""
    import evaluate

    parts = [f"evaluate:{evaluate.__version__}", f"metric:{Path(where).name}", f"key:{key}"]
    if where.endswith(".py"):
        parts.append(f"sha256:{hashlib.sha256(Path(where).read_bytes()).hexdigest()[:16]}")
    return "|".join(parts)

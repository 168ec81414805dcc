"""An audit as a test runs it: what is asked of an engine, and what its failure says."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base import IncompleteError, Load, Message, SpsbenchError, UsageError
from spsbench.config import refuse_together
from spsbench.parts.audit.course import Course, conclude
from spsbench.parts.audit.course import audited as drawn
from spsbench.parts.audit.gate.inside import Function, Inside
from spsbench.parts.audit.messages.engines import BestLaw, NotJudged, TextShown
from spsbench.parts.audit.options import AuditOptions

if TYPE_CHECKING:
    from spsbench.parts.audit.engine_audit import Row
    from spsbench.parts.external.serving import Served

Engine = str | Callable[[Load], "Served | Function"]
"""As ``--engine`` names it, or what loads it in this process."""

DEFAULTS = {"temperature": "1.5", "bound": "10%", "in_flight": "1,4", "texts": "320", "budget": "120"}
DEFAULTS |= {"task": "humaneval", "max_new_tokens": "64"}
"""Where neither the test nor the command line says otherwise; the rest is the audit's.

Draft and target differ most often at a high temperature, and an engine that ignores it looks right at 1. Most
of an audit's time goes into prompts, which the engine and the audit read: those of xsum are 2.6 times longer.
"""

_NOT_HERE = (
    "samples",
    "engine",
    "follow",
    "every",
    "webhook",
    "out",
    "evidence",
    "json",
    "quiet",
    "device",
    "dtype",
)
_SHOWN = 48  # ids of a prompt or an output in a message


@dataclass(frozen=True, slots=True)
class GateResult:
    """What a test says, and its table in Markdown."""

    said: str
    table: str
    is_red: bool = False


def audited(engine: Engine | None, options: Mapping[str, Any], folder: Path, test: str) -> GateResult:
    """Audit an engine; whatever is not shown to be lossless is a failure."""
    try:
        wanted = options_of(engine, options)
        course, gone = _run_audit(engine, wanted, folder)
    except SpsbenchError as error:
        return GateResult(f"not audited: {error}", "", is_red=True)
    from spsbench.report import audit_sentences, audit_table

    facts = [row.facts() for row in course.rows]
    sentences = "\n".join(map(str, [*audit_sentences(facts, course.effort.bound), *_unjudged(course.rows)]))
    table = "\n".join(audit_table(facts).as_markdown())
    # Several in flight are a default: an engine that takes one request at a time is judged alone.
    rows_asked_for = [row for row in course.rows if "in_flight" in options or not row.result.cannot]
    try:
        conclude(rows_asked_for or course.rows, course.effort.bound, gone)
    except SpsbenchError as error:
        verdict = "undecided: " if isinstance(error, IncompleteError) else ""
        first = " ".join([f"{verdict}{error.message}", *([error.remedy] if error.remedy else [])])
        lines = [
            first,
            "",
            sentences,
            *map(str, _texts_shown(course)),
            "",
            f"again: {_repeat_command(engine, wanted, test)}",
        ]
        return GateResult("\n".join(lines), table, is_red=True)
    return GateResult(sentences, table)


def options_of(engine: Engine | None, options: Mapping[str, Any]) -> AuditOptions:
    """Return the options of ``spsbench audit`` for those of a test."""
    if engine is None:
        remedy = "Give one to the marker or the fixture."
        raise UsageError("no engine is given.", flag="lossless", remedy=remedy)
    known: dict[str, Any] = {
        field.name: False if field.type == "bool" else None for field in fields(AuditOptions)
    }
    hidden = _NOT_HERE if isinstance(engine, str) else (*_NOT_HERE, "repro")
    renamed = {"budget" if name == "seconds" else name: value for name, value in options.items()}
    if wrong := next((name for name in renamed if name not in known or name in hidden), None):
        allowed = ", ".join(sorted(known.keys() - {*hidden}))
        raise UsageError(f"{wrong} is unknown.", flag="lossless", remedy=f"Options are {allowed}.")
    options_given = {name: _as_typed(value) for name, value in renamed.items() if value is not None}
    if (process := renamed.get("process")) is not None:
        options_given["process"] = [process] if isinstance(process, str) else [*map(str, process)]
    name = engine if isinstance(engine, str) else getattr(engine, "__qualname__", repr(engine))
    wanted = AuditOptions(**known | DEFAULTS | options_given | {"engine": name})
    refuse_together("audit", vars(wanted))
    return wanted


def _as_typed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return value if isinstance(value, bool) else str(value)


def _run_audit(engine: Engine | None, wanted: AuditOptions, folder: Path) -> tuple[Course, str | None]:
    """Run the audit and restore the caller's number of threads: the engine may compute in this process."""
    from spsbench.parts.external.registry import PeerKind, find_peer

    name = str(wanted.engine)
    if callable(engine):
        kind = PeerKind(name, lambda load, log, paused: Inside(name, engine(load)))
    else:
        kind = find_peer(name)
    import torch

    threads = torch.get_num_threads()
    try:
        return drawn(replace(wanted, out=folder), kind)
    finally:
        torch.set_num_threads(threads)


def _unjudged(rows: Sequence[Row]) -> list[NotJudged]:
    free = [each for row in rows if not row.setting.is_plain for each in row.result.free]
    silent = {each.test: each.found.rstrip(".") for each in free if each.unjudged}
    return [NotJudged(list(silent.items()))] if silent else []


def _texts_shown(course: Course) -> Iterator[Message | str]:
    """For each failed setting a text, and the law that explains its texts best."""
    for row in course.rows:
        failed = [each for each in row.result.free if not each.passed]
        if not row.result.drawn or not (failed or row.decision == "alarm"):
            continue
        raised_alarm = row.decision == "alarm"
        number = max(row.result.decided_after, 1) if raised_alarm else 1
        text = row.result.drawn[number - 1]
        yield TextShown(row.setting.name, raised_alarm, number, course.folder / row.setting.file)
        seed = None if text.ask is None else text.ask.seed
        decode = course.material.tokenizer.decode
        yield f"  seed {seed}, prompt_ids {_ids(text.prompt)}, {decode(text.prompt)[-60:]!r}"
        yield f"  output_ids {_ids(text.completion)}, {decode(text.completion)[:60]!r}"
        if row.located is not None:
            best = row.located.fits[0]
            yield BestLaw(best.law.name, best.nats)


def _ids(ids: Sequence[int]) -> str:
    return str(list(ids)) if len(ids) <= _SHOWN else f"[..., {', '.join(map(str, ids[-_SHOWN:]))}]"


def _repeat_command(engine: Engine | None, wanted: AuditOptions, test: str) -> str:
    """The audit's, or the test's for an engine in this process."""
    if callable(engine):
        texts, seconds = str(wanted.texts), str(wanted.budget)
        return shlex.join(["pytest", test, "--lossless-texts", texts, "--lossless-seconds", seconds])
    typed = ["spsbench", "audit"]
    for name, value in vars(wanted).items():
        if value not in (None, False):
            text = ":".join(value) if isinstance(value, list) else str(value)
            typed += [f"--{name.replace('_', '-')}"] + ([] if value is True else [text])
    return shlex.join(typed)

"""With which models, settings, machines and under which conditions a run was measured, and why it ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spsbench.base.axes import EAGER, MODEL, RECOMMENDED, shown_engine
from spsbench.base.gpu import described
from spsbench.base.messages import Message
from spsbench.base.records import Processing, Speedup
from spsbench.report import judgement, wording
from spsbench.report.messages import runs as said
from spsbench.report.tables import Table, left, paragraphs, right
from spsbench.report.wording import Run, escape, mebibytes, printable, tags
from spsbench.stats.anytime import FEWEST, relative_half_width
from spsbench.stats.conditions import disturbance, more_prompts
from spsbench.store.summary_types import ArmRow, Summary

_UNKNOWN = "unknown"


def facts(summary: Summary, run: Run) -> list[tuple[str, str]]:
    """Return (name, value) pairs in reading order; what the run did not record is left out."""
    rows, data = summary["rows"], summary.get("data")
    drafting = [row for row in rows if row["method"] == "sps"]
    drafters = distinct(row.get("drafter") or MODEL for row in drafting)
    engines = distinct(shown_engine(row["engine"]) for row in rows)
    batches = {row.get("batch", 1) for row in rows}
    params = {arm.get("sampling"): arm.get("params") for arm in run.get("arms") or ()}
    most = value(run, "identity", "max_new_tokens")
    length = f"{most}, EOS ignored" if value(run, "identity", "fixed_length") else f"at most {most}"
    created = run.get("created_utc") or value(run, "environment", "time_utc")
    named = [
        ("Target", model(run, "target")),
        ("Draft", None if _without_draft(rows, run) else model(run, "draft")),
        ("Pair", None if model(run, "target") else summary.get("pair")),
        ("Tags", tags(run)),
        ("Drafters", None if drafters in ([], [MODEL]) else ", ".join(drafters)),
        ("K", ranges([row["k"] for row in drafting])),
        (
            "Sampling",
            ", ".join(_sampling(n, params.get(n)) for n in distinct(row["sampling"] for row in rows)),
        ),
        ("Engines", None if engines in ([], [EAGER]) else ", ".join(engines)),
        ("Batch size", None if batches <= {1} else ranges(batches)),
        ("Data", data.get("source") if isinstance(data, Mapping) else data),
        ("Prompts", str(prompts(summary))),
        ("New tokens per prompt", length if most else None),
        ("Device", device(run)),
        *described(value(run, "gpu") or {}),
        ("GPU in sequences", gpu_in_sequences(summary)),
        ("GPU memory", _gpu_memory(run)),
        ("dtype", dtype(run)),
        ("Threads", value(run, "models", "threads")),
        ("Date", f"{str(created)[:10]} {str(created)[11:16]} UTC" if created else None),
        ("spsbench", _version(run)),
    ]
    return [(name, printable(str(text))) for name, text in named if text]


def _without_draft(rows: Sequence[ArmRow], run: Run) -> bool:
    """Whether no arm has a draft model: the target then stands in its place."""
    with_it = any(
        row["method"] == "draft" or (row.get("drafter") or MODEL).startswith((MODEL, "union"))
        for row in rows
        if row["method"] != "ars"
    )
    return not with_it and model(run, "draft") == model(run, "target")


def setup(summary: Summary, run: Run) -> list[str]:
    return [f"{escape(name)}: {escape(text)}  " for name, text in facts(summary, run)]


def value(run: Run, *path: str) -> Any:
    """Return the value of run.json at a path of keys; None where the path ends early."""
    content: Any = run
    for key in path:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content


def distinct(values: Iterable[object]) -> list[str]:
    """Return each value once, in order."""
    return list(dict.fromkeys(map(str, values)))


def prompts(summary: Summary) -> int:
    return max((row["prompts"] for row in summary["rows"]), default=0)


def model(run: Run, role: str) -> str | None:
    """Return name and revision of the ``target`` or ``draft``, of a folder the name only; None if unknown."""
    known = value(run, "models", role) or value(run, "identity", "pair", role)
    name = str(known.get("name") or "") if isinstance(known, Mapping) else ""
    if name.startswith(("/", "./", "../", "~")):  # the path to a folder says nothing to other readers
        name = name.rstrip("/").rpartition("/")[2]
    revision = known.get("revision") if name else None
    return f"{name} ({str(revision)[:12]})" if revision else name or None


def _sampling(name: str, params: Mapping[str, Any] | None) -> str:
    """``nucleus (T=1, top-p 0.8)``; the name alone for greedy decoding and where nothing else is known."""
    process = (params or {}).get("process")
    done = [] if process is None else [Processing(**process).described]
    if name == RECOMMENDED and params and params.get("greedy"):
        done = ["greedy", *done]
    if not params or params.get("greedy"):
        return f"{name} ({', '.join(done)})" if done else name
    shown = [f"T={params['temperature']:g}"] if params.get("temperature") is not None else []
    shown += [f"top-k {params['top_k']}"] if params.get("top_k") else []
    shown += [f"top-p {params['top_p']:g}"] if params.get("top_p") not in (None, 1.0) else []
    shown += done
    return f"{name} ({', '.join(shown)})" if shown else name


def device(run: Run) -> str | None:
    """``cpu`` or ``cuda`` with the name of the processor; None if unknown."""
    kind, name = value(run, "gpu", "device") or value(run, "identity", "device"), device_name(run)
    return None if not kind else f"{kind} ({name})" if name else str(kind)


def device_name(run: Run) -> str | None:
    """The model of the CPU, or of the GPUs, that computed; None if unknown."""
    if str(value(run, "identity", "device") or "cpu").startswith("cpu"):
        return str(value(run, "environment", "cpu", "model") or "") or None
    if name := value(run, "gpu", "name"):
        return str(name)
    gpus = [gpu for gpu in value(run, "environment", "gpus") or () if isinstance(gpu, Mapping)]
    return ", ".join(distinct(gpu.get("name") for gpu in gpus)) or None


def gpu_in_sequences(summary: Summary) -> str | None:
    """Return clocks as sequences ended, how many were throttled and why, and how many ran beside others."""
    gpu = summary.get("gpu")
    if gpu is None or not gpu["sequences"]:
        return None
    count, clocks = gpu["sequences"], gpu["sm_clock_mhz"]
    parts = [] if clocks is None else ["SM {:,.0f} to {:,.0f} MHz, median {:,.0f}".format(*clocks)]
    parts += [f"{reason.replace('_', ' ')} in {n} of {count}" for reason, n in gpu["throttled"].items()]
    if gpu["shared"] is not None:
        parts.append(f"other processes in {gpu['shared']} of {count}")
    return ", ".join(parts) or None


def _gpu_memory(run: Run) -> str | None:
    """``17,408 MiB at most, of 81,079 MiB``; None where the run did not keep it."""
    peak, whole = value(run, "device_peak_bytes"), value(run, "gpu", "memory_bytes")
    return None if peak is None else f"{mebibytes(peak)} at most, of {mebibytes(whole)}"


def dtype(run: Run) -> str | None:
    """Return what the target computed in; the checkpoint's own dtype where the setting left it open."""
    computed = value(run, "models", "target", "dtype") or value(run, "identity", "dtype")
    return None if computed is None else str(computed)


def ranges(numbers: Iterable[int]) -> str:
    """Return whole numbers in order, with runs of three or more by their ends: ``1 to 7``, ``2, 4, 8``."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(
        f"{part[0]} to {part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in parts
    )


def _version(run: Run) -> str | None:
    version, commit = value(run, "environment", "spsbench"), value(run, "environment", "git", "commit")
    if not version or not commit:
        return str(version) if version else None
    changed = ", with changes" if value(run, "environment", "git", "dirty") else ""
    return f"{version} (commit {str(commit)[:7]}{changed})"


def doubts(summary: Summary) -> list[str]:
    """What must stand beside the numbers everywhere: alarms, and CPU contention in the times."""
    contention = disturbance(summary)
    return [*judgement.alarms(summary), *([str(contention)] if contention else [])]


def repeated(summary: Summary) -> list[str]:
    """How many timings were disturbed and repeated, and how often a prompt was timed."""
    remeasured = summary["contention"].get("remeasured") if "contention" in summary else None
    if remeasured is None or not remeasured["again"]:
        return []
    total = remeasured["timings"]
    found: list[Message] = []
    if remeasured["replaced"]:
        found.append(said.TimingsRepeated(remeasured["replaced"], total))
    if remeasured["again"] >= total:
        found.append(said.PromptsTimedAgain(1 + remeasured["again"] / total, remeasured["seconds"]))
    return [*map(str, found)]


def condition_titles(summary: Summary) -> list[str]:
    """Return what sets each of several conditions apart, e.g. ``threads 1, backend torch``."""

    def shown(value: Any) -> str:
        if value is None or value == []:
            return _UNKNOWN
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

    differ = [settings["differ"] for settings in summary.get("conditions") or []]
    return [", ".join(f"{name} {shown(value)}" for name, value in settings.items()) for settings in differ]


def conditions_sentence(summary: Summary) -> str:
    """Why the main table has no times; empty for a run of one condition."""
    count = len(summary.get("conditions") or [])
    return str(said.SeveralConditions(count)) if count else ""


def stopping(summary: Summary) -> list[str]:
    """How the run ended and what its intervals are; nothing for a run of a fixed number of prompts.

    E.g. ``Stopped after 24 of 40 prompts: the speedup is known to ±4.6%, asked was ±5%.``
    """
    end = summary.get("stopping")
    if end is None:
        return []
    speedups = [row["speedup"] for row in summary["rows"] if row["method"] == "sps" and row["speedup"]]
    halves = [relative_half_width(Speedup(**interval)) for interval in speedups]
    widths = tuple(sorted(width for width in halves if width is not None))
    sentences = []
    if end["reason"] in ("precision", "budget") or (end["reason"] and end["precision"] is not None):
        more = more_prompts(summary["rows"], summary.get("data"))
        sentences.append(str(said.RunStopped(end, widths, more)))
    if end["anytime"] and widths:
        sentences.append(said.ANYTIME)
    elif end["anytime"] and end["prompts"] < FEWEST:
        sentences.append(said.TOO_FEW_FOR_ANYTIME)
    return sentences


def data_notes(summary: Summary) -> list[str]:
    """What of the answers was run, what of the data was not, and how metrics say they were computed."""
    metric, way, data = wording.headline_metric(summary), summary.get("extract"), summary.get("data")
    notes = [str(said.CodeExtracted(metric, way))] if metric and way in said.CodeExtracted.WAYS else []
    notes += reading_notes(data) if isinstance(data, Mapping) else []
    signatures = summary.get("metric_signatures") or {}  # e.g. sacrebleu's, in its own words
    return notes + [f"{wording.metric_title(name)}: {printable(text)}" for name, text in signatures.items()]


def reading_notes(data: Mapping[str, Any]) -> list[str]:
    """What of the data was left out, not used, or used as something else, by their provenance."""
    counts = {what: data.get(name) for name, what in said.LEFT_OUT.items()}
    counts |= {f"conversations {why}": count for why, count in (data.get("left_out") or {}).items()}
    left_out = {what: count for what, count in counts.items() if count}
    found: list[Message] = [said.DataLeftOut(left_out)] if left_out else []
    if ignored := data.get("ignored"):
        found.append(said.FieldsUnused(ignored))
    if unread := data.get("unread_by_rouge"):
        found.append(said.ReferencesUnread(unread, data.get("references")))
    if unwritten := data.get("unwritten"):
        found.append(said.PartsUnwritten(unwritten))
    if opened := data.get("opens_thought"):
        found.append(said.ThoughtsOpened(opened["prompts"], opened.get("switch")))
    for name, as_system in (("developer", False), ("developer_as_system", True)):
        if count := data.get(name):
            found.append(said.DeveloperMessages(count, as_system))
    return [*map(str, found)]


def workers(summary: Summary, run: Run) -> list[str]:
    """Return a row for each machine; nothing for a run of one process."""
    machines: dict[tuple[str, ...], Counter[int]] = {}
    for worker in run.get("workers") or []:
        cpu = worker["environment"]["cpu"]
        known = (worker["machine"], cpu["model"] or _UNKNOWN, cpu["usable_threads"] or _UNKNOWN)
        machines.setdefault(tuple(map(str, known)), Counter())[worker.get("session", 1)] += 1
    columns = [left("machine"), left("CPU"), right("cores"), right("workers")]
    # A run that was continued had its workers again: the most that measured in one session.
    rows = [(*machine, str(max(sessions.values()))) for machine, sessions in machines.items()]
    return paragraphs("## Workers", Table(columns, rows)) if rows else []

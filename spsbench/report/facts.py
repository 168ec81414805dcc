"""What was measured, with which models, settings, machines and conditions, and why it ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from spsbench.axes import EAGER, MODEL, shown_engine
from spsbench.records import Speedup
from spsbench.report import judgement
from spsbench.report.results import times
from spsbench.report.tables import Table, in_full, left, right
from spsbench.report.wording import escape, printable
from spsbench.stats.anytime import FEWEST, relative_half_width
from spsbench.stats.conditions import distrust, untrusted_because
from spsbench.summary_types import Stopping, Summary

Run = Mapping[str, Any]
Fact = tuple[str, str]


def facts(summary: Summary, run: Run) -> list[Fact]:
    """(name, value) in the order in which one reads them; what the run did not record is left out."""
    found = [
        ("Target", model(run, "target")),
        ("Draft", model(run, "draft")),
        ("Pair", None if model(run, "target") else summary.get("pair")),
        *_arms(summary, run),
        ("Data", _data(summary)),
        ("Prompts", _prompts(summary)),
        ("New tokens per prompt", _length(run)),
        *_machine(run),
        ("Date", _date(run)),
        ("spsbench", _version(run)),
    ]
    return [(name, printable(str(text))) for name, text in found if text]


def setup(summary: Summary, run: Run) -> list[str]:
    """The facts as lines of report.md."""
    return [f"{escape(name)}: {escape(text)}  " for name, text in facts(summary, run)]


def model(run: Run, role: str) -> str | None:
    """Name and revision of the ``target`` or ``draft``; of a folder its name alone. None if unknown."""
    known = value(run, "models", role) or value(run, "identity", "pair", role)
    name = known.get("name") if isinstance(known, Mapping) else None
    if not name:
        return None
    name, revision = _short(str(name)), known.get("revision")
    return f"{name} ({str(revision)[:12]})" if revision else name


def sampling(name: str, params: Mapping[str, Any] | None) -> str:
    """``nucleus (T=1, top-p 0.8)``; the name alone for greedy decoding and where nothing else is known."""
    if not params or params.get("greedy"):
        return name
    said = [f"T={params['temperature']:g}"] if params.get("temperature") is not None else []
    said += [f"top-k {params['top_k']}"] if params.get("top_k") else []
    said += [f"top-p {params['top_p']:g}"] if params.get("top_p") not in (None, 1.0) else []
    return f"{name} ({', '.join(said)})" if said else name


def device(run: Run) -> str | None:
    """``cpu`` or ``cuda`` with the name of the processor; None if unknown."""
    kind, name = value(run, "identity", "device"), device_name(run)
    if not kind:
        return None
    return f"{kind} ({name})" if name else str(kind)


def device_name(run: Run) -> str | None:
    """The model of the CPU, or of the GPUs, that computed; None if unknown."""
    if str(value(run, "identity", "device") or "cpu").startswith("cpu"):
        model_name = value(run, "environment", "cpu", "model")
        return str(model_name) if model_name else None
    gpus = [gpu for gpu in value(run, "environment", "gpus") or () if isinstance(gpu, Mapping)]
    return ", ".join(_distinct([str(gpu.get("name")) for gpu in gpus])) or None


def dtype(run: Run) -> str | None:
    """What the target computed in: the checkpoint's own where the setting left it to it."""
    found = value(run, "models", "target", "dtype") or value(run, "identity", "dtype")
    return None if found is None else str(found)


def _short(name: str) -> str:
    """A folder by its last part: the path to it says nothing to other readers."""
    return name.rstrip("/").rpartition("/")[2] if name.startswith(("/", "./", "../", "~")) else name


def _arms(summary: Summary, run: Run) -> list[tuple[str, str | None]]:
    rows = summary["rows"]
    drafting = [row for row in rows if row["method"] == "sps"]
    drafters = _distinct([str(row.get("drafter") or MODEL) for row in drafting])
    engines = _distinct([shown_engine(row["engine"]) for row in rows])
    batches = sorted({row.get("batch", 1) for row in rows})
    return [
        ("Drafters", None if drafters in ([], [MODEL]) else ", ".join(drafters)),
        ("K", ranges([row["k"] for row in drafting])),
        ("Sampling", ", ".join(_samplings(rows, run))),
        ("Engines", None if engines in ([], [EAGER]) else ", ".join(engines)),
        ("Batch size", None if batches in ([], [1]) else ranges(batches)),
    ]


def _samplings(rows: Sequence[Mapping[str, Any]], run: Run) -> list[str]:
    """Every sampling with its parameters, which the runner recorded for each arm."""
    params = {arm.get("sampling"): arm.get("params") for arm in run.get("arms") or ()}
    return [sampling(name, params.get(name)) for name in _distinct([row["sampling"] for row in rows])]


def ranges(numbers: Sequence[int]) -> str:
    """Whole numbers in order, runs of three or more by their ends: ``1 to 7``, ``2, 4, 8``."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(
        f"{part[0]} to {part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in parts
    )


def _distinct(values: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _data(summary: Summary) -> Any:
    data = summary.get("data")
    return data.get("source") if isinstance(data, Mapping) else data


def _prompts(summary: Summary) -> str:
    return str(max((row["prompts"] for row in summary["rows"]), default=0))


def _length(run: Run) -> str | None:
    most = value(run, "identity", "max_new_tokens")
    if not most:
        return None
    return f"{most}, EOS ignored" if value(run, "identity", "fixed_length") else f"at most {most}"


def _machine(run: Run) -> list[tuple[str, Any]]:
    return [("Device", device(run)), ("dtype", dtype(run)), ("Threads", value(run, "models", "threads"))]


def _date(run: Run) -> str | None:
    created = run.get("created_utc") or value(run, "environment", "time_utc")
    return f"{str(created)[:10]} {str(created)[11:16]} UTC" if created else None


def _version(run: Run) -> str | None:
    version, commit = value(run, "environment", "spsbench"), value(run, "environment", "git", "commit")
    if not version:
        return None
    changed = ", with changes" if value(run, "environment", "git", "dirty") else ""
    return f"{version} (commit {str(commit)[:7]}{changed})" if commit else str(version)


def value(run: Run, *path: str) -> Any:
    """What run.json holds at a path of keys; None where it ends early."""
    content: Any = run
    for key in path:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content


_UNTOLD = "unknown"
_SHORT_HASH = 16


def untrusted(summary: Summary) -> list[str]:
    """One sentence where others took the CPU while the run measured."""
    return distrust(untrusted_because(summary))


def further_warnings(summary: Summary) -> list[str]:
    """The warnings without that of ``untrusted``, which stands at the top."""
    return [text for text in summary["warnings"] if text not in untrusted(summary)]


def doubts(summary: Summary) -> list[str]:
    """What must stand beside the numbers wherever they go: alarms, and times that are not to be trusted."""
    return [*judgement.alarms(summary), *untrusted(summary)]


def condition_titles(summary: Summary) -> list[str]:
    """What sets each of several conditions apart, e.g. ``threads 1, backend torch``."""
    entries = summary.get("conditions") or []
    return [
        ", ".join(f"{name} {_shown(value)}" for name, value in entry["differ"].items()) for entry in entries
    ]


def conditions_sentence(summary: Summary) -> str:
    """Why the main table has no times; empty for a run of one condition."""
    count = len(summary.get("conditions") or [])
    if not count:
        return ""
    return f"Measured under {count} different conditions; times are shown under each and not pooled."


def conditions(summary: Summary, run: Mapping[str, Any]) -> list[str]:
    """The times of a run of several conditions, under each."""
    entries = summary.get("conditions") or []
    if not entries:
        return []
    lines = ["## Times by condition", "", conditions_sentence(summary)]
    for entry, title in zip(entries, condition_titles(summary), strict=True):
        table = times(entry["rows"], in_full())
        lines += ["", f"### {escape(title)}", "", *table.as_markdown()]
    return lines


def token_hash(summary: Summary) -> str:
    """The first digits of the hash over all token ids, as ``--expect`` takes them; empty if there is none."""
    found = summary.get("token_sha256")
    return f"Hash of all token ids: {found[:_SHORT_HASH]}" if found else ""


def _shown(value: Any) -> str:
    if value is None or value == []:
        return _UNTOLD
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


ANYTIME = (
    "The speedup's intervals are those of a 95% confidence sequence, for each arm by itself: they stay valid "
    "when a run stops because they are narrow."
)

TOO_FEW = f"Below {FEWEST} prompts there is no interval that stays valid when a run stops by its width."


def stopping(summary: Summary) -> list[str]:
    """How the run ended and what its intervals are; nothing for a run of a fixed number of prompts."""
    found = summary.get("stopping")
    if found is None:
        return []
    widths = _widths(summary)
    said = [_ended(found, widths)]
    if found["anytime"] and widths:
        said.append(ANYTIME)
    elif found["anytime"] and found["prompts"] < FEWEST:
        said.append(TOO_FEW)
    return [sentence for sentence in said if sentence]


def _ended(found: Stopping, widths: list[float]) -> str:
    """E.g. ``Stopped after 24 of 40 prompts: the speedup is known to ±4.6%, asked was ±5%.``"""
    counted = f"{found['prompts']} of {found['pool']} prompts"
    known, precision = _known(widths), found["precision"]
    asked = "" if precision is None else f", asked was {_share(precision)}"
    if found["reason"] == "precision":
        return f"Stopped after {counted}: {known}{asked}." if known else f"Stopped after {counted}{asked}."
    if found["reason"] == "budget":
        budget = f"Budget of {found['budget_s']:g} s reached after {counted}"
        return f"{budget}: {known}{asked}." if known else f"{budget}{asked}."
    if found["reason"] == "prompts" and precision is not None:
        said = known or "there is no interval"
        return f"All {found['prompts']} prompts were run: {said}{asked}. Raise --limit."
    return ""


def _known(widths: list[float]) -> str:
    """How narrow the intervals are, as half-widths relative to the speedups."""
    if not widths:
        return ""
    if len(widths) == 1:
        return f"the speedup is known to {_share(widths[0])}"
    return f"the narrowest speedup is known to {_share(min(widths))}, the widest to {_share(max(widths))}"


def _widths(summary: Summary) -> list[float]:
    """Relative half-widths of the SpS arms' intervals."""
    found = [row["speedup"] for row in summary["rows"] if row["method"] == "sps" and row["speedup"]]
    widths = [relative_half_width(Speedup(**one)) for one in found]
    return [width for width in widths if width is not None]


def _share(value: float) -> str:
    return f"±{100 * value:.2g}%"


def workers(summary: Summary, run: Mapping[str, Any]) -> list[str]:
    """A row for each machine; nothing for a run of one process."""
    workers = run.get("workers") or []
    if not workers:
        return []
    machines: dict[tuple[str, str, str], Counter[int]] = {}
    for worker in workers:
        cpu = worker["environment"]["cpu"]
        machine = (
            str(worker["machine"]),
            str(cpu["model"] or _UNTOLD),
            str(cpu["usable_threads"] or _UNTOLD),
        )
        machines.setdefault(machine, Counter())[worker.get("session", 1)] += 1
    columns = [left("machine"), left("CPU"), right("cores"), right("workers")]
    # A run that was continued had its workers again: the most that measured in one session.
    rows = [(*machine, str(max(sessions.values()))) for machine, sessions in machines.items()]
    return ["## Workers", "", *Table(columns, rows).as_markdown()]

"""What was measured with which models, settings and machine: the lines under a report's title."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spsbench.axes import EAGER, MODEL, shown_engine
from spsbench.report.wording import escape, printable
from spsbench.summary_types import Summary

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


def section(summary: Summary, run: Run) -> list[str]:
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

"""The museum as a page and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.museum.exhibits import EXHIBITS
from spsbench.report.tables import Table, left, right
from spsbench.report.wording import number

Facts = Mapping[str, Any]
"""Of ``Visited.facts``, with ``date``, ``asked`` and ``environment``."""

_HEAD = """\
Texts of the mini pair, or of the random one that a note names, float32. Alarm: the e-value of the texts so
far reaches 1,000. At least 40 texts are drawn of a release, and as many of its control; the leakage is the
bound at that number. Where a note names contexts, a text is a short request at one of them. Faults that are
planted are in spsbench's own engine.

ONNX Runtime GenAI's `MtpGenerator` at top-k 1 is no exhibit: its target is a random Qwen 3.5 with a module,
which its own builder converts. `spsbench audit` finds it ([there](options.md#onnx-runtime-genais-modules)).
"""


def read_rows(out: Path) -> dict[str, Facts]:
    """Rows by exhibit that an earlier run has written; none where there is no file."""
    file = out.with_suffix(".json")
    found: dict[str, Facts] = json.loads(file.read_text())["exhibits"] if file.is_file() else {}
    return found


def write_rows(out: Path, rows: Mapping[str, Facts]) -> None:
    """``OUT.md`` and ``OUT.json``, exhibits in their order."""
    ordered = {exhibit.name: rows[exhibit.name] for exhibit in EXHIBITS if exhibit.name in rows}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps({"exhibits": ordered}, indent=1) + "\n")
    out.with_suffix(".md").write_text("\n".join(page(list(ordered.values()))) + "\n")


def page(rows: Sequence[Facts]) -> list[str]:
    """A table, and of each exhibit its defect, its threads, when and on what it was audited."""
    return [_HEAD, *table(rows).as_markdown(), "", *(_note(row) for row in rows)]


def table(rows: Sequence[Facts]) -> Table:
    """One row an exhibit."""
    columns = [left("exhibit"), left("release"), left("report"), left("setting")]
    columns += [right("texts until the alarm"), right("log10 e in all"), left("control")]
    columns += [right("texts"), left("verdict"), right("leakage at most")]
    return Table(columns, [_row(row) for row in rows])


def _row(row: Facts) -> list[str]:
    flawed, control = row["flawed"], row["control"]
    after = flawed["alarm_after"]
    setting = [
        f"K={flawed['k']}",
        row["sampling"],
        *(f"{name}={at}" for name, at in flawed["options"].items()),
    ]
    is_same = flawed["version"] == control["version"]
    return [
        row["name"],
        flawed["version"],
        row["reports"][0],
        ", ".join(setting),
        f"no alarm in {flawed['texts']}" if after is None else str(after),
        number(flawed["log10_e_value"], 1),
        control["release" if is_same else "version"],
        str(control["texts"]),
        "ALARM" if control["decision"] == "alarm" else "no alarm",
        "-" if control["bound"] is None else f"{control['bound']:.1%}",
    ]


def _note(row: Facts) -> str:
    asked = row["asked"]
    contexts = row.get("contexts", 0)
    where = f"{asked['prompts']} prompts"
    if contexts:
        where = f"{contexts} chosen contexts of {where}"
    if pair := row.get("pair"):
        where = f"{pair} (synthetic), {where}"
    told = [
        f"{asked['task']}, {where} in turns, at most {asked['max_new_tokens']} tokens",
        f"seed {asked['seed']}, {asked['threads']} thread(s)",
        f"{row['environment']['cpu']['model']}, {row['date']}",
    ]
    return f"* {row['name']}: {row['defect']} {' '.join(row['reports'])} ({', '.join(told)})"

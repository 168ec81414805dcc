"""``spsbench list runs``: what is in a folder of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base.axes import label
from spsbench.base.errors import SpsbenchError, UsageError
from spsbench.store.schema import RUN_FILE, SUMMARY_FILE, read_run, read_summary

if TYPE_CHECKING:
    from spsbench.report.tables import Table
    from spsbench.store.summary_types import Summary

Row = dict[str, Any]


def runs_in(folder: Path) -> list[Row]:
    """Return a row for each run at any depth, the latest first; a damaged run's row says what is wrong."""
    if not folder.is_dir():
        remedy = "Name the folder in which your runs are."
        raise UsageError(f"{folder} is not a folder.", flag="FOLDER", remedy=remedy)
    rows = [_row(path.parent, folder) for path in folder.rglob(RUN_FILE)]
    if not rows:
        raise UsageError(
            f"{folder} holds no run.", flag="FOLDER", remedy="Start one with `spsbench run`, or name another."
        )
    return sorted(rows, key=lambda row: (row["created_utc"] or "", row["run"]), reverse=True)


def _row(directory: Path, folder: Path) -> Row:
    name = str(directory.relative_to(folder)) if directory != folder else directory.resolve().name
    row: Row = {"run": name, "path": str(directory), "created_utc": None, "state": "damaged"}
    try:
        run = read_run(directory)
        row |= {"created_utc": run.get("created_utc"), "task": run.get("task_label"), "pair": run.get("pair")}
        row |= {"tags": run.get("tags") or {}, "arms": [arm["arm"] for arm in run.get("arms") or ()]}
        if not (directory / SUMMARY_FILE).is_file():
            return row | {"state": "unfinished"}
        return row | _speed_and_losslessness(read_summary(directory))
    except SpsbenchError as problem:
        return row | {"problem": problem.message}
    except KeyError as missing:
        why = f"its {SUMMARY_FILE} lacks {missing}: `spsbench report` writes it again."
        return row | {"problem": why}


def _speed_and_losslessness(summary: Summary) -> Row:
    from spsbench.report.judgement import judged_arms
    from spsbench.report.wording import full_name
    from spsbench.stats.conditions import times_label

    several = len({row["sampling"] for row in summary["rows"]}) > 1
    name = full_name if several else label
    return {
        "state": "complete" if summary["complete"] else "unfinished",
        "law": summary.get("law"),
        "times": times_label(summary),
        "losslessness": {
            arm["arm"]: arm["verdict"] for arm in judged_arms(summary) if arm["method"] == "sps"
        },
        "verdicts": [
            {"arm": each["arm"], "name": name(each), "speedup": each["speedup"], "outcome": each["outcome"]}
            for each in summary.get("verdict") or ()
        ],
        "untimed": [
            {
                "arm": row["arm"],
                "name": name(row),
                "failed": row["failed"],
                "missing": row["missing"],
                "of": row["sequences"] + row["failed"] + row["missing"],
            }
            for row in summary["rows"]
            if row["failed"] or row["missing"]
        ],
    }


def _untimed(arm: Row) -> str:
    """Say of how many sequences an arm has no time: a speedup beside it is that of fewer."""
    counts = [
        f"{what} {arm[key]}" for key, what in (("failed", "failed"), ("missing", "not run")) if arm[key]
    ]
    return f"{arm['name']}: {', '.join(counts)} of {arm['of']}"


_WORST_FIRST = ("alarm", "refuted", "lossy by design", "no evidence", "ok")


def table(rows: list[Row]) -> Table:
    """Return the table for a terminal of 80 columns."""
    from spsbench.report.tables import left, table_of
    from spsbench.report.wording import NOTHING, printable, speedup, tags

    def task(row: Row) -> str:
        law = printable(row.get("law") or "")
        return "\n".join(filter(None, [printable(str(row.get("task") or NOTHING)), law, tags(row)]))

    def result(row: Row) -> str:
        if "problem" in row:
            return printable(row["problem"])
        doubt = " UNDECIDED" if row.get("times") == "undecided" else ""
        verdicts = [f"{each['name']} {speedup(each['speedup'])}{doubt}" for each in row.get("verdicts", ())]
        untimed = [_untimed(each) for each in row.get("untimed", ())]
        state = [row["state"]] if row["state"] != "complete" else []
        return "\n".join([*verdicts, *untimed, *state]) or NOTHING

    def lossless(row: Row) -> str:
        verdicts = set(row.get("losslessness", {}).values())
        worst = next((verdict for verdict in _WORST_FIRST if verdict in verdicts), NOTHING)
        return worst.upper() if worst in ("alarm", "refuted") else worst

    columns = [
        left("run", lambda row: printable(row["run"])),
        left("task", task),
        left("fastest arm, speedup [95%]", result),
        left("lossless", lossless),
        left("date", lambda row: (row["created_utc"] or NOTHING)[:10]),
    ]
    return table_of(columns, rows)

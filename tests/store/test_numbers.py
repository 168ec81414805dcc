"""Every number of a run's journal, and what each wrong one comes to: damage that is named, or an alarm."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.commandline import Result, call
from support.synthetic_run import make_run

from spsbench.base.records import Hypothesis, Loop, TracedToken
from spsbench.store import RunStore
from spsbench.store.codec import FIELDS

ABSENT = object()
WRONG: dict[str, Any] = {
    "NaN": float("nan"),
    "infinity": float("inf"),
    "-1": -1,
    "10^400": 10**400,
    "text": "seven",
    "list": [1],
    "null": None,
    "absent": ABSENT,
}
DRAWN = {
    "positions": 3.0,
    "impossible": 0.0,
    "edge": 0.0,
    "log_score": 0.1,
    "log_score_var": 0.2,
    "log_e_power_0.8": -0.1,
    "log_e_power_1.25": 0.1,
    **{f"transform_{cell}": float(cell < 3) for cell in range(10)},
    "overlap": 2.5,
    "overlap_positions": 4.0,
    "drafted_positions": 3.0,
    **{f"leak{kind}_{name}": 0.5 for kind in ("", "_all") for name in ("score", "information", "var")},
    **{
        f"log_e_{name}": 0.01
        for name in ("mixture_0.02", "mixture_0.1", "mixture_0.5", "no_residual", "lenience")
    },
}
DECIDED = {
    "decisions": 24.0,
    "decisions_rounding": 0.0,
    "decisions_contradicted": 0.0,
    "decisions_closest": 0.01,
    **{
        f"decisions_rows_{role}{name}": value
        for role in ("target", "draft")
        for name, value in {"": 20.0, "_apart": 1e-6, "_beyond": 0.0}.items()
    },
}
SUMS = DRAWN | {f"rescored_{name}": value for name, value in DRAWN.items()} | DECIDED
"""As a float32 run has them, of both kinds of evidence."""

SIGNED = ("score", "log_e_", "hypotheses[0].log_prob")
"""In the names of numbers that may be -1."""

OPTIONAL = ("rounding", "closest", "edge", "leak_all", "no_residual", "lenience", "scores.", "conditions.")
"""In the names of sums and figures that a run may lack: what is then said is less."""


def places() -> Iterator[tuple[str, ...]]:
    """Where a number stands in a line, from the types: a new field is among them."""
    for name, field in FIELDS.items():
        if field.kind in ("int32", "float64"):
            yield (name,)
        elif field.kind == "list":
            yield (name, "0")
    for record, where in ((Loop, "loops"), (TracedToken, "trace")):
        for each in fields(record):
            if any(kind in str(each.type) for kind in ("int", "float")):
                yield (where, each.name, "0")
    yield from (("losslessness", name) for name in SUMS)
    yield from (("scores", "rouge2"), ("conditions", "waited_s"))
    yield from (("hypotheses", "0", each.name) for each in fields(Hypothesis) if "float" in str(each.type))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run whose every sequence has all that a line can hold, and its tables."""
    run = make_run(
        tmp_path_factory.mktemp("numbers") / "run", ks=(0, 2), samplings=("nucleus",), prompts=3, tokens=24
    )
    path = run / "samples.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["losslessness"] = dict(SUMS)
        row["conditions"] = {"waited_s": 0.0}
        row["hypotheses"] = [{"tokens": [1], "score": -0.5, "log_prob": -0.5, "reason": "eos"}]
        row["latency_s"], row["attempt"] = 0.5, 1
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with RunStore.open(run, writable=True) as store:
        store.write_parquet()
    return run


def lines_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]


def changed(row: dict[str, Any], place: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A line with another value at a place; a column or a list that is not there is made."""
    row = copy.deepcopy(row)
    inner: Any = row
    for step in place[:-1]:
        if isinstance(inner, dict) and inner.get(step) is None:
            inner[step] = [None] * len(row["loops"]["drafted"]) if place[0] == "loops" else [1]
        inner = inner[int(step)] if isinstance(inner, list) else inner[step]
    last: Any = int(place[-1]) if isinstance(inner, list) else place[-1]
    if value is ABSENT:
        del inner[last]
    else:
        inner[last] = value
    return row


def reported(run: Path, at: int, row: dict[str, Any], folder: Path) -> Result:
    """What ``report`` says of the run with another line in one place."""
    other = folder / "run"
    other.mkdir()
    shutil.copy(run / "run.json", other)
    rows = lines_of(run)
    rows[at] = row
    (other / "samples.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    return call("report", other, "--json")


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("wrong", [*WRONG])
@pytest.mark.parametrize("place", [*places()], ids=".".join)
def test_a_wrong_number_is_damage_that_is_named_or_an_alarm(
    place: tuple[str, ...], wrong: str, whole: Path, tmp_path: Path
) -> None:
    at = 1  # of the speculative arm
    row = lines_of(whole)[at]
    field = ".".join(place).replace(".0", "[0]") if place[0] != "losslessness" else ".".join(place)
    known: Any = row
    for step in place:
        known = known[int(step)] if isinstance(known, list) else (known or {}).get(step)
    if wrong == "absent" and (known is None or place[0] in ("token_ids", "prompt_ids")):
        return  # other tokens are other data
    result = reported(whole, at, changed(row, place, WRONG[wrong]), tmp_path)
    assert "fault of spsbench" not in result.err
    if result.code == 2:
        assert f"samples.jsonl is damaged in line {at + 1} (" in result.err
        assert place[-1 if place[-1] != "0" else -2].split("_")[0] in result.err
        return
    assert result.code == 0
    summary = json.loads(result.out)
    alarm = summary["losslessness"]["verdict"] == "alarm"
    if place[0] == "losslessness":
        may_be = (wrong == "-1" and any(part in field for part in SIGNED)) or (
            wrong == "absent" and any(part in field for part in OPTIONAL)
        )
        assert alarm or may_be, field
        if wrong in ("NaN", "infinity"):
            reasons = " ".join(reason for arm in summary["losslessness"]["arms"] for reason in arm["reasons"])
            assert alarm
            assert place[1] in reasons
        return
    assert tolerated(place, wrong), (place, wrong)


def tolerated(place: tuple[str, ...], wrong: str) -> bool:
    """Which other values are data: what a run may lack, and NaN of what an engine does not see."""
    field, null = place[0], wrong in ("null", "absent")
    if field in FIELDS and len(place) == 1:
        return null and (FIELDS[field].null or FIELDS[field].later)
    if field == "loops":
        nullable = "None" in str(next(each.type for each in fields(Loop) if each.name == place[1]))
        return (null and nullable) or (wrong == "NaN" and place[1] in ("beta_sum", "loop_s"))
    if field == "trace":
        return null and place[1] == "draft_prob"
    return (wrong == "-1" and field in ("scores", "hypotheses")) or (
        wrong == "absent" and field in ("scores", "conditions", "prompt_ids")
    )


# --- the journal is the truth


def faster(run: Path) -> None:
    """Make every speculative time a tenth, in the table that reports are made of."""
    path = run / "samples.parquet"
    table = pq.read_table(path)
    seconds = [
        value / 10 if arm.startswith("sps") else value
        for arm, value in zip(table["arm"].to_pylist(), table["decode_s"].to_pylist(), strict=True)
    ]
    place = table.schema.get_field_index("decode_s")
    pq.write_table(table.set_column(place, "decode_s", [seconds]), path, compression="zstd")


def contradicted(run: Path) -> None:
    """Put a contradiction into the journal without another size."""
    path = run / "samples.jsonl"
    old, new = b'"decisions_contradicted": 0.0', b'"decisions_contradicted": 9.0'
    path.write_bytes(path.read_bytes().replace(old, new))


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copied"))


def summary_of(run: Path) -> dict[str, Any]:
    result = call("report", run, "--json")
    assert result.code == 0, result.err
    found: dict[str, Any] = json.loads(result.out)
    return found


def test_tables_that_were_changed_are_made_again(copied: Path, whole: Path) -> None:
    compared = json.loads(call("compare", whole, copied, "--json").out)
    before = summary_of(copied)
    faster(copied)
    assert json.loads(call("compare", whole, copied, "--json").out) == compared
    faster(copied)
    assert summary_of(copied)["rows"] == before["rows"]


def test_a_journal_that_was_changed_in_place_is_read_again(copied: Path) -> None:
    size = (copied / "samples.jsonl").stat().st_size
    assert summary_of(copied)["losslessness"]["verdict"] != "alarm"
    contradicted(copied)
    assert (copied / "samples.jsonl").stat().st_size == size
    assert summary_of(copied)["losslessness"]["verdict"] == "alarm"


def test_without_a_journal_a_table_may_hold_what_a_line_may(copied: Path) -> None:
    (copied / "samples.jsonl").unlink()
    summary_of(copied)
    path = copied / "loops.parquet"
    table = pq.read_table(path)
    place = table.schema.get_field_index("loop_s")
    pq.write_table(table.set_column(place, "loop_s", [[-1.0] * len(table)]), path)
    result = call("report", copied)
    assert result.code == 2
    assert "loops.parquet is damaged (its column loop_s" in result.err


# --- times


def rewritten(run: Path, change: Any) -> None:
    rows = lines_of(run)
    (run / "samples.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows if change(row) is not False)
    )


def test_times_that_contradict_their_loops_stand_first(copied: Path) -> None:
    assert "doubted_times" not in summary_of(copied)

    def shorter(row: dict[str, Any]) -> None:
        if row["arm"].startswith("sps"):
            row["decode_s"] /= 10

    rewritten(copied, shorter)
    shown = call("report", copied).out
    assert "contradict its loops" in shown[: shown.index("ms/token")]
    assert "contradict its loops" in (copied / "report.md").read_text().split("## Results")[0]


def test_a_prompt_without_a_time_is_named_first(copied: Path) -> None:
    rewritten(copied, lambda row: (row["arm"], row["example_id"]) != ("sps-k2-nucleus", "doc-1"))
    (sentence,) = summary_of(copied)["doubted_times"]
    assert "1 of 3 prompts" in sentence
    assert "doc-1" in sentence
    shown = call("report", copied).out
    assert "doc-1" in shown[: shown.index("ms/token")]


def test_a_number_of_our_own_that_is_unsound_fails_its_sequence(copied: Path) -> None:
    with RunStore.open(copied, writable=True) as store:
        sample = next(iter(store.samples()))
        assert sample.generation.loops is not None
        sample.generation.loops[0].verify_s = float("nan")
        assert store.append(sample).failed
        assert store.failed() == {sample.key}
    assert "loops.verify_s[0] is nan" in lines_of(copied)[-1]["error"]

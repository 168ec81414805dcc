"""The table of engines by release: it goes on where it ended, and nothing looks audited that was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import versions
from benchmarks.gate_power import gate_run
from benchmarks.versions import DEFECTS, RELEASES, Release, ask, cell_of, fill, page, read

NEW, OLD = Release("openvino", "2026.4.1.0"), Release("openvino", "2025.2.0.0")
FACTS = {
    "setting": "K=4, T=1.5",
    "is_plain": False,
    "in_flight": 1,
    "decision": "undecided",
    "decided_after": 40,
    "texts": 40,
    "bound": 0.083,
    "log10_e_value": -0.3,
    "against": None,
    "cannot": None,
    "seconds": 9.0,
    "failures": [],
    "engine": {"version": "1"},
    "free": [{"test": "seeds", "passed": True}, {"test": "counters", "passed": False}],
}
ALARM = FACTS | {"decision": "alarm", "decided_after": 3, "free": []}


class Asked:
    """Answers in place of audits."""

    def __init__(self, **found: Any) -> None:
        self.found, self.keys = found, list[str]()

    def __call__(self, release: Release, group: str, evidence: Path, texts: int) -> dict[str, Any]:
        self.keys.append(f"{release.name} {group}")
        return self.found


def line(text: list[str], beginning: str) -> str:
    return next(each for each in text if each.startswith(f"| {beginning}"))


def test_it_goes_on_where_it_ended_and_a_failure_is_a_row(tmp_path: Path) -> None:
    out = tmp_path / "versions"
    rows = read(out)
    list(fill(rows, [NEW], ["sampled"], out, 40, Asked(cells=[cell_of(FACTS)])))
    broken = Asked(error="openvino cannot be asked: it hung.")
    assert list(fill(read(out), [NEW, OLD], ["sampled"], out, 40, broken)) == [
        "openvino@2025.2.0.0 sampled: openvino cannot be asked: it hung."
    ]
    assert broken.keys == ["openvino@2025.2.0.0 sampled"]
    again = Asked(cells=[])
    assert not list(fill(read(out), [NEW, OLD], ["sampled"], out, 40, again))
    text = out.with_suffix(".md").read_text().splitlines()
    assert "no alarm in 40, at most 8.3%; wrong: counters" in line(text, NEW.name)
    assert "| failed |" in line(text, OLD.name)
    assert "* openvino@2025.2.0.0 sampled: openvino cannot be asked: it hung." in text


def test_an_engine_that_gave_up_has_what_came_before_and_failed_after(tmp_path: Path) -> None:
    out = tmp_path / "versions"
    plain = cell_of(FACTS | {"is_plain": True, "free": []})
    list(
        fill(read(out), [NEW], ["sampled"], out, 40, Asked(cells=[plain], error="it does not load the draft"))
    )
    text = out.with_suffix(".md").read_text().splitlines()
    assert line(text, NEW.name).startswith(f"| {NEW.name} | no alarm in 40, at most 8.3% | failed | failed |")
    assert f"* {NEW.name} sampled: it does not load the draft" in text


def test_what_was_not_audited_says_so_and_synthetic_is_called_synthetic() -> None:
    text = page({})
    assert any("embedded pair (synthetic)" in each for each in text)
    for each in RELEASES:
        row = line(text, each.name.replace(":", ", ").replace("_", " "))
        assert row.count(" - ") == len(versions.COLUMNS)
    own = [each for each in DEFECTS if each.column is not None]
    assert sum("| not audited here" in each for each in text) == len(own)


def test_a_defect_has_the_first_and_the_last_release_with_an_alarm() -> None:
    def row(facts: dict[str, Any]) -> dict[str, Any]:
        return {"cells": [cell_of(facts)], "texts": 40}

    rows = {f"openvino@{version} sampled": row(ALARM) for version in ("2026.4.1.0", "2025.4.1.0")}
    rows["openvino@2025.2.0.0 sampled"] = row(FACTS)
    text = page(rows)
    assert "ALARM (3)" in line(text, "openvino@2025.4.1.0")
    found = line(text, "A rejection is handled one row late")
    assert "openvino-repro.py" in found
    assert found.endswith("| 2025.4.1.0 to 2026.4.1.0; no alarm here: 2025.2.0.0 |")


def test_an_audit_that_cannot_begin_is_an_error_with_its_reason(tmp_path: Path) -> None:
    found = ask(Release("openvino", "1.0"), "greedy", tmp_path / "evidence", 1)
    assert "not installed" in found["error"]


@pytest.mark.thorough
def test_a_simulated_gate_is_green_for_a_right_engine_and_red_for_faults() -> None:
    assert gate_run(0, None, 12, 12)[0] == []
    assert "K=4, 1 in flight: the law of its texts" in gate_run(0, "no residual", 40, 16)[0][0]
    assert "No drafted token was accepted" in gate_run(0, "accepts nothing", 12, 12)[0][0]

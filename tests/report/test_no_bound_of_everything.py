"""A sentence that bounds a leak by everything says nothing: none is printed, on no screen and no page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.commandline import SMALL, call
from support.drawing import unprinted

from spsbench.parts.verify.messages import at_most
from spsbench.parts.verify.outputs import rescored_outputs
from spsbench.report.messages import losslessness
from spsbench.report.messages.audits import AuditProgress
from spsbench.stats.messages.evidence import UNBOUNDED

ROOT = Path(__file__).parents[2]
# Chance alone may give an arm more than all of what the best rule accepts, and that is said.
NOTHING_SAID = re.compile(
    r"(?<!bring it )(?:at most|above|bound of|within|exclude) "
    r"(?:99\.[0-9]+|1[0-9]{2})(?:\.[0-9]+)?%(?! by chance)"
)
EVERYTHING = (0.991, 0.999, 1.0, 1.7)
PAGES = [
    *(ROOT / "tests/report/golden").iterdir(),
    *(ROOT / "tests/contract/__snapshots__").rglob("*.txt"),
    *(ROOT / "results/reference").rglob("*.md"),
    *(ROOT / "docs").glob("*.md"),
    ROOT / "README.md",
]


@pytest.mark.parametrize("text", ["leakage at most 100%", "no sign of a leak above 99.97%", "above 128.0%"])
def test_the_search_finds_one(text: str) -> None:
    assert NOTHING_SAID.search(text)


@pytest.mark.parametrize("text", ["at most 42%", "above 9.9%", "at most 10 texts", "within 0.3%"])
def test_the_search_leaves_others(text: str) -> None:
    assert not NOTHING_SAID.search(text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_has_one(page: Path) -> None:
    assert not NOTHING_SAID.search(" ".join(page.read_text(encoding="utf-8", errors="ignore").split()))


@pytest.mark.parametrize("bound", EVERYTHING)
def test_no_sentence_is_made_of_one(bound: float) -> None:
    evidence: Any = {"verdict": "ok", "log10_e_value": 0.1, "reasons": []}
    sums = {"leak_information": 1.0, "leak_score": 0.0, "leak_var": (bound / 1.645) ** 2, "impossible": 0.0}
    said = [
        losslessness.worded("ok", bound),
        losslessness.bound(bound),
        str(AuditProgress("K=4", 3, 9, evidence, bound)),
        at_most(bound),
        rescored_outputs(sums, 8).found,
        rescored_outputs(sums | {"impossible": 3.0}, 8).found,
    ]
    for text in said:
        assert not NOTHING_SAID.search(text), text
    assert UNBOUNDED in said[0]


def test_no_screen_of_little_evidence_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (
        ("run", *SMALL, "--rule", "block,modified-rejection", "--k", "7", "--out", tmp_path / "run"),
        ("report", tmp_path / "run", "--html"),
    ):
        with unprinted():
            done = call(*command)
        assert not NOTHING_SAID.search(" ".join((done.out + done.err).split())), command
    for name in ("report.md", "report.html"):
        assert not NOTHING_SAID.search(" ".join((tmp_path / "run" / name).read_text().split()))

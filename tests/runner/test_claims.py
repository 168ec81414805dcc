"""Rules from a file are enumerated before they are measured: a wrong claim is called lossy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.commandline import ALONE, BRIEF, Result, call

from spsbench.base.errors import UsageError
from spsbench.base.records import Arm, SamplingParams, Spec
from spsbench.runner import claims as module
from spsbench.runner.claims import claims

RULES = """
import torch
from spsbench.decode.rejection import Verdict, accept_draft
from spsbench.decode.rules import Rule
from spsbench.decode.sampling import draw
from spsbench.drafters.registry import RuleKind

def forgets(q, draft, u):
    verdict = accept_draft(q, draft, u)
    return Verdict(verdict.accepted, draw(q[int(verdict.accepted)], u[-1]))

def too_often(q, draft, u):
    return accept_draft(q, draft, torch.cat([u[:-1] / 1.3, u[-1:]]))

def raises(q, draft, u):
    return q.nothing

def kind(name, accept):
    return RuleKind(name, "For a test.", lossless=True, build=lambda options: Rule(accept))

RIGHT, FORGETS, TOO_OFTEN, RAISES = (
    kind("right", accept_draft), kind("forgets", forgets), kind("often", too_often), kind("raises", raises)
)
"""


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPSBENCH_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "rules.py"
    path.write_text(RULES)
    return path


def arm(rule: str) -> Arm:
    return Arm("sps", 2, "eager", "nucleus", SamplingParams(), rule=Spec(rule))


def run(file: Path, rule: str, *more: str) -> Result:
    flags = ("--limit", "3", "--max-new-tokens", "12", "--k", "2", "--rule", f"{file}:{rule}")
    return call("run", "xsum", *BRIEF, *flags, *(flag for flag in ALONE if flag != "--quiet"), *more)


def test_a_right_rule_is_what_it_claims_and_ours_are_not_asked(file: Path) -> None:
    mine = arm(f"{file}:RIGHT")
    assert claims([mine, arm("modified-rejection"), arm("lenience")]) == {mine.name: module.Claim()}


@pytest.mark.parametrize("rule", ["FORGETS", "TOO_OFTEN"])
def test_a_wrong_claim_is_refuted_with_its_tokens(rule: str, file: Path) -> None:
    (found,) = claims([arm(f"{file}:{rule}")]).values()
    assert "the loop emits (" in found.refuted
    assert "with probability" in found.refuted
    assert "the target with" in found.refuted


def test_it_is_called_lossy_and_measured_all_the_same(file: Path, tmp_path: Path) -> None:
    done = run(file, "FORGETS", "--out", str(tmp_path / "run"))
    assert done.code == 0, done.err
    assert (
        "claims to be lossless and is not, so it is reported as lossy: Behind (0,) the loop emits" in done.err
    )
    assert "SpS (K=2, forgets, lossy)" in done.out
    assert "it claims to be lossless and is not; leakage" in " ".join(done.out.split())
    assert "lossy by design" not in done.out
    record = json.loads((tmp_path / "run" / "run.json").read_text())["arms"][1]
    assert record["lossless"] is False
    assert record["enumerated"].startswith("Behind")


def test_a_refuted_claim_fails_the_gate(file: Path, tmp_path: Path) -> None:
    done = run(file, "FORGETS", "--fail-on", "lossless", "--out", str(tmp_path / "run"))
    assert done.code == 4
    assert "--fail-on: lossless: SpS (K=2, forgets, lossy), nucleus: refuted (Behind (0,)" in done.err


def test_what_a_file_raises_is_named_with_its_line(file: Path) -> None:
    done = run(file, "RAISES")
    assert done.code == 2
    assert f"{file}, line 16: AttributeError" in done.err
    assert "fault of spsbench" not in done.err


def test_a_relative_path_is_the_same_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    with pytest.raises(UsageError, match=r"rules\.py, line 16: AttributeError"):
        claims([arm("rules.py:RAISES")])


def test_a_cache_that_cannot_be_written_is_asked_again(file: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in the way")
    mine = arm(f"{file}:RIGHT")
    for _ in range(2):
        assert claims([mine]) == {mine.name: module.Claim()}


def test_a_damaged_answer_is_asked_again(file: Path, tmp_path: Path) -> None:
    mine = arm(f"{file}:RIGHT")
    claims([mine])
    (record,) = (tmp_path / "cache" / "claims").glob("*.json")
    for text in ("{}", "[]", "no JSON"):
        record.write_text(text)
        assert claims([mine]) == {mine.name: module.Claim()}


def test_it_is_enumerated_once_and_again_where_the_file_changed(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = module._claim_by_enumeration

    def counted(*specs: Any) -> Any:
        asked.append("enumerated")
        return real(*specs)

    monkeypatch.setattr(module, "_claim_by_enumeration", counted)
    for _ in range(2):
        claims([arm(f"{file}:RIGHT")])
    assert len(asked) == 1
    file.write_text(RULES + "\n# changed\n")
    claims([arm(f"{file}:RIGHT")])
    assert len(asked) == 2

"""``spsbench verify`` with a drafter and a rule by name: the good pass, the bad end with 4 and their name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.commandline import BRIEF, Cli, Result

from spsbench.parts.verify import analytic, effort, parts
from spsbench.parts.verify.effort import Effort, Sizes

pytestmark = pytest.mark.thorough_but("passes[early-exit]", "MISREPORTING")

TABLES: dict[str, Sizes] = {"tables": ((3, 2),), "wide_tables": ((5, 2),)}
TINY = Effort(draws=60, end_to_end=10, contexts=1, prompts=2, outputs=1, **TABLES)
FLAGS = (
    *("xsum", *BRIEF, "--effort", "full", "--threads", "1", "--sampling", "nucleus"),
    *("--top-p", "1", "--k", "2", "--json"),
)

DRAFTERS = """
import torch
from spsbench import Draft, DrafterKind
from spsbench.drafters.registry import RULES, RuleKind
from spsbench.drafters.model import ModelDrafter


class Withdrawing(ModelDrafter):
    def draft(self, tokens, k, u):
        draft = super().draft(tokens, k, u)
        n = next((i for i, token in enumerate(draft.tokens.tolist()) if token % 2 == 0), k)
        return Draft(draft.tokens[:n], draft.probs[:n])


class Misreporting(ModelDrafter):
    def draft(self, tokens, k, u):
        draft = super().draft(tokens, k, u)
        flat = draft.probs.pow(0.8)
        return Draft(draft.tokens, flat / flat.sum(-1, keepdim=True))


class Gambling(ModelDrafter):
    def draft(self, tokens, k, u):
        return super().draft(tokens, k, torch.rand(k).to(u))


class Raising(ModelDrafter):
    def draft(self, tokens, k, u):
        if len(tokens) % 5 == 0:
            raise LookupError("no idea")
        return super().draft(tokens, k, u)


class Stopping(ModelDrafter):
    "Lossless: stops behind an even token, and proposes nothing behind a multiple of three."

    def draft(self, tokens, k, u):
        draft = super().draft(tokens, k, u)
        n = next((i + 1 for i, token in enumerate(draft.tokens.tolist()) if token % 2 == 0), k)
        n = 0 if tokens[-1] % 3 == 0 else n
        return Draft(draft.tokens[:n], draft.probs[:n])


class Private:
    "Lossless: draws by itself, the same token for every text."

    def __init__(self, size):
        self.rows = torch.arange(1, size + 1, dtype=torch.float64).unsqueeze(0) / (size * (size + 1) / 2)

    def begin(self, prompt): ...

    def observe(self, tokens, accepted): ...

    def draft(self, tokens, k, u):
        rows = self.rows.expand(k, -1).contiguous().to(u.dtype)
        picks = torch.searchsorted(rows.cumsum(-1), u.unsqueeze(-1), right=True).squeeze(-1)
        return Draft(picks.clamp(max=rows.shape[-1] - 1), rows)


class Weighty(ModelDrafter):
    "It cannot be built on a table of probabilities."

    def __init__(self, context):
        context.target.layers
        super().__init__(context.draft, context.sampling, context.device)


def kind(name, made_by):
    return DrafterKind(name, "For a test.", lambda options, c: made_by(c.draft, c.sampling, c.device))


WITHDRAWING, MISREPORTING, GAMBLING, RAISING, STOPPING = (
    kind(each.__name__.lower(), each) for each in (Withdrawing, Misreporting, Gambling, Raising, Stopping)
)
WEIGHTY = DrafterKind("weighty", "For a test.", lambda options, context: Weighty(context))
PRIVATE = DrafterKind("private", "For a test.", lambda options, context: Private(context.vocab_size))
UNBUILT = DrafterKind("unbuilt", "For a test.", lambda options, context: 1 / 0)
CLAIMED = RuleKind("claimed", "Says that it is lossless.", True, RULES["lenience"].build, {"l": 0.5})
"""


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(effort.EFFORTS, "full", TINY)
    monkeypatch.setattr(analytic, "TOKENS", 16)
    monkeypatch.setattr(parts, "LONG", parts.LONG // 4)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "theirs.py"
    path.write_text(DRAFTERS)
    return path


def verdicts(result: Result) -> dict[str, str]:
    """Verdict by test of the only arm."""
    (found,) = json.loads(result.out)["findings"].values()
    return {finding["test"]: finding["verdict"] for finding in found}


def finding(result: Result, test: str) -> dict[str, Any]:
    (found,) = json.loads(result.out)["findings"].values()
    answer: dict[str, Any] = next(each for each in found if each["test"] == test)
    return answer


@pytest.mark.thorough
@pytest.mark.parametrize(
    "drafter", ["lookup:max_n=2", "early-exit", "theirs.py:STOPPING", "union:of=lookup+model"]
)
def test_a_good_drafter_passes(cli: Cli, file: Path, drafter: str) -> None:
    result = cli("verify", "--drafter", drafter, *FLAGS)
    assert result.code == 0, result.err
    assert json.loads(result.out)["arms"]["nucleus"]["drafter"] == drafter
    found = verdicts(result)
    assert {"contract", "enumeration", "clock", "sampling", "end to end", "outputs"} <= found.keys()
    assert set(found.values()) <= {"ok", "skipped"}
    assert found["enumeration"] == "ok"
    assert finding(result, "enumeration")["numbers"]["exact"]
    # One that draws K tokens and keeps some of them does not show which rows were theirs.
    assert found["analytic"] == ("skipped" if "STOPPING" in drafter else "ok")


def test_rows_that_a_drafter_does_not_show_are_not_asked_for(cli: Cli, file: Path) -> None:
    result = cli("verify", "--drafter", "theirs.py:PRIVATE", *FLAGS)
    assert result.code == 0, result.err
    assert verdicts(result)["analytic"] == "skipped"
    assert "theirs.py:PRIVATE does not show which rows" in finding(result, "analytic")["found"]


@pytest.mark.parametrize("drafter", ["WITHDRAWING", "MISREPORTING"])
def test_a_drafter_that_bends_the_law_fails(cli: Cli, file: Path, drafter: str) -> None:
    result = cli("verify", "--drafter", f"theirs.py:{drafter}", *FLAGS)
    assert result.code == 4
    found = verdicts(result)
    assert found["contract"] == "ok"
    assert found["enumeration"] == "FAILED"
    assert "a difference of" in finding(result, "enumeration")["found"]
    assert f"--drafter theirs.py:{drafter}: the sampler is wrong: caught by enumeration" in result.err


@pytest.mark.parametrize(
    ("drafter", "said"),
    [
        ("RAISING", "the drafter theirs.py:RAISING raised LookupError: no idea"),
        ("GAMBLING", "the drafter theirs.py:GAMBLING proposed ["),
        ("UNBUILT", "the drafter theirs.py:UNBUILT raised ZeroDivisionError: division by zero"),
    ],
)
def test_a_broken_contract_is_a_finding_with_the_drafters_name(
    cli: Cli, file: Path, drafter: str, said: str
) -> None:
    result = cli("verify", "--drafter", f"theirs.py:{drafter}", *FLAGS)
    assert result.code == 4
    assert verdicts(result)["contract"] == "FAILED"
    assert finding(result, "contract")["fault"].startswith(said)
    assert f"the drafter broke its contract: {said}" in result.err
    assert "Traceback" not in result.err


def test_what_cannot_be_built_on_tables_is_skipped_with_the_reason(cli: Cli, file: Path) -> None:
    result = cli("verify", "--drafter", "theirs.py:WEIGHTY", *FLAGS)
    assert result.code == 0, result.err
    for test in ("enumeration", "clock"):
        assert verdicts(result)[test] == "skipped"
        assert "has no attribute 'layers'" in finding(result, test)["found"]


def test_a_lossless_rule_passes_and_says_what_was_not_asked(cli: Cli) -> None:
    result = cli("verify", "--rule", "sample-and-compare", *FLAGS)
    assert result.code == 0, result.err
    assert verdicts(result)["enumeration"] == "ok"
    assert verdicts(result)["analytic"] == "skipped"
    assert "sample-and-compare" in finding(result, "analytic")["found"]


def test_a_lossy_rule_is_lossy_by_design_and_no_alarm(cli: Cli) -> None:
    result = cli("verify", "--rule", "lenience:l=0.5", *FLAGS)
    assert result.code == 0, result.err
    found = verdicts(result)
    assert {found[test] for test in ("enumeration", "sampling", "end to end", "outputs")} == {
        "lossy by design"
    }
    assert finding(result, "enumeration")["numbers"]["worst"] > 0.01
    assert json.loads(result.out)["arms"]["nucleus"]["lossless"] is False
    assert "lossy by design, leakage" in result.err
    assert "No test found" not in result.err
    shown = cli("verify", "--rule", "lenience:l=0.5", *(flag for flag in FLAGS if flag != "--json"))
    assert "lossless" not in shown.out
    assert "SpS (K=2, lenience:l=0.5, lossy) is lossy by design (nucleus)" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80


def test_a_rule_that_only_claims_to_be_lossless_fails(cli: Cli, file: Path) -> None:
    result = cli("verify", "--rule", "theirs.py:CLAIMED", *FLAGS)
    assert result.code == 4
    assert verdicts(result)["enumeration"] == "FAILED"
    assert "--rule theirs.py:CLAIMED" in result.err


def test_several_at_once_are_told_apart(cli: Cli) -> None:
    result = cli("verify", "--drafter", "lookup,suffix", *FLAGS)
    assert result.code == 0, result.err
    names = ["sps-k2-nucleus+lookup", "sps-k2-nucleus+suffix"]
    assert list(json.loads(result.out)["findings"]) == names

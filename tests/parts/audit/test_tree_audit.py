"""An audit finds planted faults of trees and block verification in texts of the embedded pair."""

from __future__ import annotations

import pytest
from support.tree_engine import TreeEngine, mini_pair

from spsbench.base.records import SamplingParams
from spsbench.decode import trees
from spsbench.parts.audit import engine_audit
from spsbench.parts.audit.engine_audit import Effort, EngineAudit, SettingResult
from spsbench.parts.verify.tree_faults import FAULTS, Fault

SHARP, FLAT = (SamplingParams(temperature=temperature, top_k=3) for temperature in (1.5, 3.0))
BLOCK = ("stopped at the first failure", "product as threshold")
"""Found under ``SHARP``, though their total variation is smaller there."""

FOUND = tuple(name for name in FAULTS if name != "token-wise residual")
"""That one is too small here: results/reference/rulebook.md."""

RULES = {
    "block": Fault(trees.traversal, "independent", (1, 1)),
    "recursive-rejection": Fault(trees.recursive_rejection, "without", (2,)),
    "recursive-rejection of two branches": Fault(trees.recursive_rejection, "without", (2, 1)),
    "recursive-rejection of the most probable": Fault(trees.recursive_rejection, "top", (2,)),
}


def audited(
    made: Fault, sampling: SamplingParams, texts: int, monkeypatch: pytest.MonkeyPatch
) -> SettingResult:
    """After texts of 24 tokens; where a chain is judged as a block the places in a loop are not bet on."""
    monkeypatch.setattr(engine_audit, "TO_LOCATE", 1)
    models, prompts = mini_pair()
    rule = "block" if max(made.branching) == 1 else "recursive-rejection"
    engine, effort = TreeEngine(models, made, sampling), Effort(1e-9, texts, 3600.0, 24)
    given = (engine, models, prompts, sampling, [], effort, 0, None, len(made.branching), rule)
    return EngineAudit(*given).run(lambda _: None)  # type: ignore[arg-type]


@pytest.mark.soak
@pytest.mark.parametrize("name", FOUND)
def test_a_fault_is_found_within_300_texts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = audited(FAULTS[name], SHARP if name in BLOCK else FLAT, 300, monkeypatch)
    assert found.decision == "alarm"
    assert found.decided_after <= 300


@pytest.mark.soak
@pytest.mark.parametrize("name", RULES)
def test_the_rules_stay_quiet(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = audited(RULES[name], FLAT, 100, monkeypatch)
    assert found.decision != "alarm"
    assert len(found.drawn) == 100

"""An audit finds block verification's planted faults in texts of the embedded pair."""

from __future__ import annotations

import pytest
from tree_engine import TreeEngine, mini_pair

from spsbench.records import SamplingParams
from spsbench.verify import engine_audit
from spsbench.verify.engine_audit import Effort, EngineAudit
from spsbench.verify.tree_faults import FAULTS

SAMPLING = SamplingParams(temperature=1.5, top_k=3)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["stopped at the first failure", "product as threshold"])
def test_a_fault_is_found_within_300_texts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After 158 and 138 texts of 24 tokens."""
    monkeypatch.setattr(engine_audit, "TO_LOCATE", 1)
    models, prompts = mini_pair()
    engine = TreeEngine(models, FAULTS[name], SAMPLING)
    given = (engine, models, prompts, SAMPLING, [], Effort(1e-9, 300, 600.0, 24), 0, None, 2, "block")
    found = EngineAudit(*given).run(lambda _: None)  # type: ignore[arg-type]
    assert found.decision == "alarm"
    assert found.decided_after <= 300

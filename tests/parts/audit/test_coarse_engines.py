"""An engine that computes in 16 bits may round a token into its nucleus; one that leaves it is found."""

from __future__ import annotations

import pytest
import torch
from parts.audit.test_in_flight import TABLE, prompts

from spsbench.base.protocol import Answer, Ask, Described
from spsbench.base.records import SamplingParams
from spsbench.decode.sampling import warp
from spsbench.engines.rescore import teacher_force
from spsbench.parts.audit.engine_audit import Effort, EngineAudit

CUT = SamplingParams(top_p=0.9)
TEXTS, TOKENS = 12, 40


class Straying:
    """Draws rightly but for one token of a text: the next below its nucleus, or the least probable one."""

    def __init__(self, *, far: bool) -> None:
        self._far = far
        self.strayed = 0

    def describe(self) -> Described:
        return Described("fake", "1")

    def close(self) -> None:
        pass

    def generate(self, ask: Ask) -> Answer:
        dice = torch.Generator().manual_seed(ask.seed or 0)
        ids, left = list[int](), True
        while len(ids) < ask.max_new_tokens:
            row = TABLE.score_uncached(torch.tensor([*ask.prompt_ids, *ids]), 1)[0]
            law = warp(row.unsqueeze(0), CUT)[0]
            outside = row.masked_fill(law > 0, -torch.inf)
            other = int(row.argmin() if self._far else outside.argmax())
            if left and law[other] <= 0 and (self._far or self._is_near(ask, ids, other)):
                ids.append(other)
                self.strayed, left = self.strayed + 1, False
            else:
                ids.append(int(torch.multinomial(law, 1, generator=dice)))
        return Answer(ids, "length")

    def _is_near(self, ask: Ask, ids: list[int], token: int) -> bool:
        """Whether bfloat16 may take the token for one of the nucleus."""
        given = (ask.prompt_ids, [*ids, token], CUT)
        return bool(teacher_force(TABLE, None, *given, torch.bfloat16).edge[-1])


@pytest.mark.parametrize(
    ("far", "dtype", "verdict"),
    [
        (False, torch.bfloat16, "ok"),
        (False, torch.float32, "alarm"),
        (False, None, "ok"),  # an engine that does not say
        (True, torch.bfloat16, "alarm"),
        (True, None, "alarm"),
    ],
)
def test_rounding_into_a_nucleus_is_no_fault(far: bool, dtype: torch.dtype | None, verdict: str) -> None:
    engine = Straying(far=far)
    law = (prompts(), CUT, [], Effort(1e-9, TEXTS, 600.0, TOKENS))
    result = EngineAudit(engine, (TABLE, None), *law, k=0, dtype=dtype).run(lambda _: None)
    assert engine.strayed == TEXTS
    assert result.evidence is not None
    assert result.evidence["verdict"] == verdict, result.evidence["reasons"]
    assert (result.evidence["impossible"] > 0) == (verdict == "alarm")

"""What reading a text again takes of a device does not grow with the text."""

from __future__ import annotations

import pytest
import torch
from support.counting import pair_of, peaks_of_proof
from support.device import emulated

from spsbench.base.records import Arm, Request, SamplingParams
from spsbench.engines import rescore
from spsbench.law import evidence

V, ROWS = 512, 64
PLAIN = SamplingParams()


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["eager", "graphed"])
def test_the_proof_holds_the_rows_of_one_part(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both models' logits in bfloat16, both warped in float32, and a chunk's in float64 at a time."""
    monkeypatch.setattr(rescore, "rows_at_a_time", lambda vocab_size: ROWS)
    monkeypatch.setattr(evidence, "CHUNK_ELEMENTS", 6 * V)  # as many rows as of 151,936
    arm = Arm("sps", 4, engine, "plain", PLAIN)
    peaks = list[int]()
    with emulated():
        pair = pair_of((1, 1), V, torch.bfloat16)
        for length in (ROWS, 2 * ROWS):
            request = Request(tuple(range(5, 21)), length, (), PLAIN, 1, fixed_length=True)
            found = peaks_of_proof(pair, arm, request)
            assert len(found.generation.tokens) == length
            assert found.left == 0
            peaks.append(found.proof)
    assert peaks[1] <= peaks[0] + 0.3 * ROWS * V * 4
    assert peaks[1] < 5.5 * ROWS * V * 4

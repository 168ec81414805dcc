"""What a loop on a CUDA device costs the host: launches and waits, on the emulated one."""

from __future__ import annotations

import pytest
import torch
from support.counting import Counted, counted, engine_of
from support.device import emulated

from spsbench.base.records import Arm, Request, SamplingParams

NUCLEUS = SamplingParams(temperature=0.8, top_p=0.95)
GRAPHS = {"ars": 1, "sps": 3}
"""All that a loop launches: one step; draft, verify and accept."""


def of(method: str, engine: str, batch: int) -> Counted:
    arm = Arm(method, 4 if method == "sps" else 0, engine, "nucleus", NUCLEUS, batch=batch)  # type: ignore[arg-type]
    prompt = tuple(range(5, 21))
    requests = [Request(prompt, 16, (), NUCLEUS, seed, fixed_length=True) for seed in range(batch)]
    with emulated() as device:
        return counted(device, engine_of(arm, 64, (2, 1), 512, torch.bfloat16), *requests)


@pytest.mark.thorough_but("sps-graphed-1")
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("engine", ["eager", "graphed"])
@pytest.mark.parametrize("method", ["ars", "sps"])
def test_waits_and_launches_of_a_loop(method: str, engine: str, batch: int) -> None:
    found = of(method, engine, batch)
    if engine == "graphed":
        assert found.launches == GRAPHS[method], found.table()
        assert not found.counts.up_bytes["loop"]
        answer = {"ars": 2, "sps": 6}[method]  # K drafted tokens, the one after them, how many stand
        assert found.counts.down_bytes["loop"] == 8 * answer * batch * found.loops
    assert found.counts.waited("loop") == found.loops, found.table()
    beside = 3 if batch == 1 else 3 + found.loops + 4 * batch  # the clock's, and rows that begin and end
    assert found.counts.waited("beside") <= beside, found.table()

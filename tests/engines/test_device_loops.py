"""What a loop on a CUDA device costs the host: launches and waits, on the emulated one."""

from __future__ import annotations

import pytest
import torch
from support.counting import Counted, counted, engine_of
from support.device import emulated

from spsbench.records import Arm, Request, SamplingParams

NUCLEUS = SamplingParams(temperature=0.8, top_p=0.95)
MOST_WAITS = {
    ("ars", "eager", 1): 1,
    ("sps", "eager", 1): 3,
    ("ars", "graphed", 1): 1,
    ("sps", "graphed", 1): 1,
    ("ars", "eager", 3): 3,
    ("sps", "eager", 3): 18,
    ("ars", "graphed", 3): 1,
    ("sps", "graphed", 3): 1,
}
MOST_GRAPHED_LAUNCHES = {"ars": 6, "sps": 8}
"""Of a loop: its graphs, the copy of its uniform numbers, and those of its rows."""


def of(method: str, engine: str, batch: int) -> Counted:
    arm = Arm(method, 4 if method == "sps" else 0, engine, "nucleus", NUCLEUS, batch=batch)  # type: ignore[arg-type]
    prompt = tuple(range(5, 21))
    requests = [Request(prompt, 16, (), NUCLEUS, seed, fixed_length=True) for seed in range(batch)]
    with emulated() as device:
        return counted(device, engine_of(arm, 64, (2, 1), 512, torch.bfloat16), *requests)


@pytest.mark.thorough_but("sps-graphed-1")
@pytest.mark.parametrize(("method", "engine", "batch"), MOST_WAITS)
def test_waits_and_launches_of_a_loop(method: str, engine: str, batch: int) -> None:
    found = of(method, engine, batch)
    if engine == "graphed" and batch == 1:
        assert found.launches <= MOST_GRAPHED_LAUNCHES[method], found.table()
    # Uniform numbers go up in blocks, one for each sequence in so few loops.
    most = batch + found.loops * MOST_WAITS[method, engine, batch]
    assert found.counts.waited("loop") <= most + 1, found.table()
    beside = 3 if batch == 1 else 3 + found.loops + 4 * batch  # the clock's, and rows that begin and end
    assert found.counts.waited("beside") <= beside, found.table()

"""How many CPU threads are fastest for one token."""

from __future__ import annotations

import time

import torch

from spsbench.models.causal_lm import CausalLM

_REPEATS = 6


@torch.inference_mode()
def fastest_threads(model: CausalLM) -> int:
    """Try one thread, two, four ... up to torch's own choice, on a forward of one row.

    Small models often run slower on two threads than on one; an arm on too many threads would be a
    slow baseline. Leaves torch's setting as it was.
    """
    most = torch.get_num_threads()
    counts = sorted({min(1 << i, most) for i in range(most.bit_length() + 1)})
    token = torch.zeros(1, dtype=torch.int64, device=model.device)
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    model.rollback(0)
    for _ in range(_REPEATS):
        for count in counts:
            torch.set_num_threads(count)
            started = time.perf_counter()
            model.score(token, last=1)
            seconds[count].append(time.perf_counter() - started)
    model.rollback(0)
    torch.set_num_threads(most)
    return min(counts, key=lambda count: sorted(seconds[count])[_REPEATS // 2])

#!/usr/bin/env bash
# torch 2.13.0: scaled_dot_product_attention on a CPU in bfloat16 takes longer for one query than for two.
#
# One query a head is what every step of plain decoding has. Each head's product of one row goes another way than that
# of several and costs a multiple: after 1,024 keys the same query given twice takes at most half the time, with equal
# numbers. With grouped queries (enable_gqa) the heads of a group, given as rows of one product, take a tenth. In float32
# two queries take longer than one, as one expects. So a measured speedup of speculative sampling in bfloat16 on a CPU is
# partly this: a block of drafts is cheaper than a single token.
# Seen 2026-11-29 on an AMD EPYC (Zen 4), one thread. Exits 0 while that is so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
"$work/venv/bin/python" - <<'PYTHON' 2>"$work/err" || { tail -5 "$work/err"; exit 1; }
import time
from functools import partial

import torch
from torch.nn.functional import scaled_dot_product_attention as attend

torch.set_num_threads(1)
torch.manual_seed(0)


def least_us(call) -> float:
    """Of some calls in turns, the fastest."""
    times = []
    for _ in range(40):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return 1e6 * min(times[5:])


print("torch", torch.__version__, "heads 16, width 64, keys 1024")
ratios = {}
with torch.inference_mode():
    for dtype in (torch.float32, torch.bfloat16):
        query = torch.randn(1, 16, 1, 64).to(dtype)
        keys, values = (torch.randn(1, 16, 1024, 64).to(dtype) for _ in range(2))
        twice = query.expand(-1, -1, 2, -1)
        one, two = (least_us(partial(attend, rows, keys, values)) for rows in (query, twice))
        apart = (attend(query, keys, values) - attend(twice, keys, values)[:, :, :1]).abs().max()
        print(f"{dtype}: one query {one:.0f} us, the same one twice {two:.0f} us, apart by {float(apart):.1e}")
        ratios[dtype] = one / two
        grouped = partial(attend, query, keys[:, :2], values[:, :2], enable_gqa=True)
        rows = partial(attend, query.view(1, 2, 8, 64), keys[:, :2], values[:, :2])
        torch.testing.assert_close(rows().view(1, 16, 1, 64), grouped())
        by_heads, as_rows = least_us(grouped), least_us(rows)
        print(f"{dtype}: two groups {by_heads:.0f} us, their heads as rows {as_rows:.0f} us")
assert ratios[torch.float32] < 1.1, "float32"
assert ratios[torch.bfloat16] > 1.3, "bfloat16"
assert by_heads > 4 * as_rows, "groups in bfloat16"
PYTHON

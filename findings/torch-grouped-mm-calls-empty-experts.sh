#!/usr/bin/env bash
# torch 2.13.0: _grouped_mm on a CPU multiplies for every expert, also for those that no token takes.
#
# transformers runs a mixture of experts by grouped products, which need multiply only for experts that a token
# takes, 8 of 64 here. On a CPU the operator is a loop of aten::mm over all groups, so that a layer costs 128
# products for 16 that have rows; a layer whose experts are called one by one ("eager") has 16. The outputs are equal.
# Seen 2026-11-29 on a CPU, random weights. Exits 0 while that is so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.23.0 numpy==2.4.6
"$work/venv/bin/python" - <<'PYTHON' 2>"$work/err" || { tail -5 "$work/err"; exit 1; }
import torch
import transformers
from torch.profiler import ProfilerActivity, profile

LAYERS, EXPERTS, TAKEN = 2, 64, 8
torch.manual_seed(0)
config = transformers.AutoConfig.for_model(
    "qwen3_moe", vocab_size=100, hidden_size=64, num_hidden_layers=LAYERS, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, num_experts=EXPERTS, num_experts_per_tok=TAKEN, moe_intermediate_size=32,
)
model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
ids = torch.tensor([[5]])


def products(way: str) -> tuple[int, torch.Tensor]:
    model.set_experts_implementation(way)
    with torch.inference_mode():
        model(ids, use_cache=False)
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            logits = model(ids, use_cache=False).logits
    return sum(row.count for row in seen.key_averages() if row.key == "aten::mm"), logits


print("torch", torch.__version__, "transformers", transformers.__version__)
grouped, by_groups = products("grouped_mm")
single, one_by_one = products("eager")
print(f"aten::mm for one token in {LAYERS} layers: grouped {grouped}, one by one {single}")
print(f"logits apart by {float((by_groups - one_by_one).abs().max()):.1e}")
assert grouped - single == LAYERS * 2 * (EXPERTS - TAKEN)
torch.testing.assert_close(by_groups, one_by_one)
PYTHON

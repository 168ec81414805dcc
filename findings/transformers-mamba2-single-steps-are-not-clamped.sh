#!/usr/bin/env bash
# transformers 5.24.0: layers of Mamba 2 clamp their time steps when they read a block, and not when they read one token.
#
# Behind its cache, a text read in blocks of four, as speculative decoding verifies drafts, has the logits of one forward
# without a cache; read token by token, as plain decoding does, it has others wherever a step lies outside of the
# bounds. Those are time_step_limit in Mamba 2, which bounds nothing unless it is set, and time_step_min in Nemotron-H,
# 0.001 by default: off by 0.02 and more of the largest logit here, with steps of about 0.0003. So plain and speculative
# greedy texts of one model may differ for more than rounding.
# Seen 2026-11-30 on a CPU, torch 2.13.0, random weights. Exits 0 while that is so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0 numpy==2.4.6
"$work/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

transformers.logging.set_verbosity_error()
SMALL = {"vocab_size": 100, "hidden_size": 32, "chunk_size": 8, "n_groups": 1}
MAMBA2 = {"num_hidden_layers": 2, "num_heads": 4, "head_dim": 16, "state_size": 8}
NEMOTRON_H = {
    "layers_block_type": ["mamba", "attention", "mamba"], "mamba_num_heads": 4, "mamba_head_dim": 16,
    "ssm_state_size": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
}
MODELS = {
    "mamba2": ("mamba2", MAMBA2, False),
    "mamba2, time_step_limit (0.001, inf)": ("mamba2", MAMBA2 | {"time_step_limit": (0.001, float("inf"))}, True),
    "nemotron_h": ("nemotron_h", NEMOTRON_H, True),
    "nemotron_h, time_step_min 1e-6": ("nemotron_h", NEMOTRON_H | {"time_step_min": 1e-6}, False),
}
ids = torch.randint(5, 100, (1, 32), generator=torch.Generator().manual_seed(0))


def built(kind, own):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SMALL | own), dtype=torch.float32).eval()
    torch.manual_seed(0)
    for name, weights in model.named_parameters():
        if weights.ndim > 1:
            torch.nn.init.normal_(weights, 0, 0.4)
        elif name.endswith("dt_bias"):
            torch.nn.init.constant_(weights, -8.0)  # softplus: 0.0003
        elif name.endswith("A_log"):
            torch.nn.init.constant_(weights, 0.0)
    return model


def off(model, length):
    """The largest difference of logits from one forward without a cache, over the largest logit."""
    cache, rows = DynamicCache(config=model.config), []
    with torch.inference_mode():
        whole = model(ids, use_cache=False).logits[0]
        for part in [ids[:, :8], *ids[:, 8:].split(length, dim=1)]:
            rows.append(model(part, use_cache=True, cache=cache).logits[0])
    return float((torch.cat(rows) - whole).abs().max() / whole.abs().max())


print("transformers", transformers.__version__, "torch", torch.__version__)
for said, (kind, own, bounded) in MODELS.items():
    model = built(kind, own)
    blocks, singly = off(model, 4), off(model, 1)
    print(f"{said}: in blocks of four {blocks:.1e}, token by token {singly:.1e}")
    assert blocks < 1e-4, "blocks are no longer right"
    assert (singly > 0.01) if bounded else (singly < 1e-4), "single steps have changed"
PYTHON

#!/usr/bin/env bash
# transformers 5.23.0: Bamba's attention counts every cached step from position 0 unless positions are given.
#
# Behind a cache a decoder's layers usually take positions from the cache's length. Bamba's rotary layers do
# not: fed one token at a time without position_ids, its logits are off by 0.14 of the largest, with no error;
# with position_ids they are those of one forward without a cache. Granite's hybrid, whose layers are built
# alike, is right without them. generate() gives positions itself.
# Seen 2026-11-29 on a CPU, torch 2.13.0, random weights. Exits 0 while that is so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.23.0 numpy==2.4.6
"$work/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

transformers.logging.set_verbosity_error()
SMALL = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "mamba_n_heads": 4, "mamba_d_head": 16}
SMALL |= {"mamba_n_groups": 1, "mamba_d_state": 8, "mamba_expand": 2, "mamba_chunk_size": 8}
GRANITE = {"layers_block_type": ["mamba", "attention"], "position_embedding_type": "rope"}
TYPES = {
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"num_local_experts": 0, "shared_intermediate_size": 64, **GRANITE},
}


def off(model, told):
    """The largest difference of logits from one forward without a cache, over the largest logit."""
    ids = torch.randint(5, 100, (1, 12), generator=torch.Generator().manual_seed(0))
    cache, rows = None, []
    with torch.inference_mode():
        whole = model(ids, use_cache=False).logits[0]
        for at in range(12):
            positions = {"position_ids": torch.tensor([[at]])} if told else {}
            step = model(ids[:, at : at + 1], past_key_values=cache, use_cache=True, **positions)
            cache = step.past_key_values
            rows.append(step.logits[0])
    return float((torch.cat(rows) - whole).abs().max() / whole.abs().max())


print("transformers", transformers.__version__, "torch", torch.__version__)
for kind, own in TYPES.items():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SMALL, **own)).eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data.mul_(6)
    told, untold = off(model, told=True), off(model, told=False)
    print(f"{kind}: with position_ids {told:.1e}, without {untold:.1e}")
    assert told < 1e-4, "positions that are given are no longer right"
    assert (untold > 0.05) if kind == "bamba" else (untold < 1e-4), "positions that are not given have changed"
PYTHON

#!/usr/bin/env bash
# transformers 5.24.0: Nemotron-H clamps its time steps at time_step_min, and time_step_limit does nothing.
#
# By the configurations' documentation time_step_limit is the range that steps are clamped to, and time_step_min belongs
# to the initialisation. Mamba 2 keeps to that. In Nemotron-H it is the other way round: (0.01, 0.05) in place of
# (0, inf) leaves every logit as it is, and time_step_min changes them, by 0.03 of the largest one here, where steps are
# about 0.0003. So a file that says (0, inf) and 0.001, the defaults, is read as if no step could be shorter than 0.001,
# with no warning. time_step_min=1e-6 given to from_pretrained is near to what the file says.
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

transformers.logging.set_verbosity_error()
SMALL = {"vocab_size": 100, "hidden_size": 32, "chunk_size": 8, "n_groups": 1}
PUBLISHED = {"time_step_min": 0.001, "time_step_limit": (0.0, float("inf"))}
TYPES = {
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention", "mamba"], "mamba_num_heads": 4, "mamba_head_dim": 16,
        "ssm_state_size": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    },
    "mamba2": {"num_hidden_layers": 2, "num_heads": 4, "head_dim": 16, "state_size": 8},
}
CHANGES = {"time_step_limit": (0.01, 0.05), "time_step_min": 1e-6}
ids = torch.randint(5, 100, (1, 32), generator=torch.Generator().manual_seed(0))


def logits(kind, **told):
    """Of the same weights for every configuration of a kind."""
    config = AutoConfig.for_model(kind, **SMALL | TYPES[kind] | PUBLISHED | told)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    torch.manual_seed(0)
    for name, weights in model.named_parameters():
        if weights.ndim > 1:
            torch.nn.init.normal_(weights, 0, 0.4)
        elif name.endswith("dt_bias"):
            torch.nn.init.constant_(weights, -8.0)  # softplus: 0.0003
        elif name.endswith("A_log"):
            torch.nn.init.constant_(weights, 0.0)
    with torch.inference_mode():
        return model(ids, use_cache=False).logits[0]


print("transformers", transformers.__version__, "torch", torch.__version__)
apart = {}
for kind in TYPES:
    published = logits(kind)
    for name, value in CHANGES.items():
        apart[kind, name] = float((logits(kind, **{name: value}) - published).abs().max() / published.abs().max())
        print(f"{kind}: {name} {value} in place of {PUBLISHED[name]}: logits apart by {apart[kind, name]:.1e}")
assert apart["mamba2", "time_step_limit"] > 0.01 and apart["mamba2", "time_step_min"] == 0, "Mamba 2"
assert apart["nemotron_h", "time_step_limit"] == 0, "Nemotron-H reads time_step_limit now"
assert apart["nemotron_h", "time_step_min"] > 0.01, "Nemotron-H no longer clamps at time_step_min"
PYTHON

#!/usr/bin/env bash
# mlx-lm 0.32.2: a Llama that transformers 5 saved is run with a RoPE base of 10,000, whatever its own is.
#
# transformers 5 writes the base as rope_parameters.rope_theta and no longer as rope_theta at the top of config.json.
# MLX-LM's Llama reads the one at the top and takes 10,000 if there is none, with no error and no warning: of a tiny
# Llama with the base 500,000 most greedy tokens are others, with logits off by more than the largest one. With
# rope_theta written at the top as well, both libraries agree to 1e-5. Its Qwen 3 reads rope_parameters and is right as
# saved, so that one model that works says nothing of the next; other types have defaults of their own.
# Seen 2026-11-30 on a CPU (mlx 0.32.4, transformers 5.24.0, torch 2.13.0), random weights. Exits 0 while that is so.
# On Linux glibc 2.35 or newer is needed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet mlx-lm==0.32.2 mlx==0.32.4 mlx-cpu==0.32.4 \
  torch==2.13.0 transformers==5.24.0 numpy==2.4.6
export HF_HUB_OFFLINE=1 WORK=$work
"$work/venv/bin/python" - 2>"$work/err" <<'PYTHON' || { tail -5 "$work/err"; exit 1; }
import json
import os
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from mlx_lm.utils import load_model
from transformers import AutoConfig, AutoModelForCausalLM

WORK, BASE = Path(os.environ["WORK"]), 500_000.0
SMALL = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "initializer_range": 0.3,
    "tie_word_embeddings": False, "rope_parameters": {"rope_type": "default", "rope_theta": BASE},
}
mx.set_default_device(mx.cpu)
ids = torch.randint(0, 96, (1, 64), generator=torch.Generator().manual_seed(0))


def by_transformers(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return model(ids).logits[0].numpy()


def by_mlx_lm(folder):
    model, _ = load_model(folder)
    return np.array(model(mx.array(ids.numpy())))[0]


def compared(folder):
    """The largest difference of logits over the largest logit, and the places whose best token differs."""
    ours, theirs = by_transformers(folder), by_mlx_lm(folder)
    return np.abs(ours - theirs).max() / np.abs(ours).max(), (ours.argmax(-1) != theirs.argmax(-1)).sum()


print(*(f"{name} {version(name)}" for name in ("mlx-lm", "mlx", "transformers", "torch")))
seen = {}
for kind in ("llama", "qwen3"):
    torch.manual_seed(0)
    folder = WORK / kind
    AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SMALL)).save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    assert written["rope_parameters"]["rope_theta"] == BASE and "rope_theta" not in written, "what is written has changed"
    before = by_transformers(folder)
    seen[kind] = {"as saved": compared(folder)}
    (folder / "config.json").write_text(json.dumps(written | {"rope_theta": BASE}))
    seen[kind]["with rope_theta at the top"] = compared(folder)
    np.testing.assert_array_equal(by_transformers(folder), before)  # the key changes nothing there
    for how, (apart, others) in seen[kind].items():
        print(f"{kind} {how}: logits apart by {apart:.1e} of the largest, another best token at {others} of 64 places")
assert seen["llama"]["as saved"][0] > 0.1 and seen["llama"]["as saved"][1] > 10, "mlx-lm reads the base of Llama now"
for apart, others in (seen["llama"]["with rope_theta at the top"], *seen["qwen3"].values()):
    assert apart < 1e-4 and others == 0
PYTHON

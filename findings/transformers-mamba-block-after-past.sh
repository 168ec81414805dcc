#!/usr/bin/env bash
# transformers 5.23.0: a Mamba model that reads several tokens after a past begins with an empty state.
#
# Read token by token behind its cache, a text has the logits of one forward without a cache. Read as a
# prompt and then a block of four, as speculative decoding verifies a draft, the rows of the block are
# those of another text: off by 0.6 of the largest logit (Mamba) and 0.4 (Falcon-Mamba), with no error.
# The selective scan for several tokens takes no state. Mamba 2 is right.
# Seen 2026-11-28 on a CPU, torch 2.13.0, random weights. Exits 0 while that is so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.23.0 numpy==2.4.6
"$work/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

transformers.logging.set_verbosity_error()
SMALL = {"vocab_size": 100, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2}
TYPES = {"mamba": {}, "falcon_mamba": {}, "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 2, "chunk_size": 8}}


def off(model, parts):
    """The largest difference of logits from one forward without a cache, over the largest logit."""
    ids = torch.randint(5, 100, (1, sum(parts)), generator=torch.Generator().manual_seed(0))
    cache, rows, start = DynamicCache(config=model.config), [], 0
    with torch.inference_mode():
        whole = model(ids, use_cache=False).logits[0]
        for n in parts:
            rows.append(model(ids[:, start : start + n], cache_params=cache, use_cache=True).logits[0])
            start += n
    return float((torch.cat(rows) - whole).abs().max() / whole.abs().max())


print("transformers", transformers.__version__, "torch", torch.__version__)
for kind, own in TYPES.items():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SMALL, **own)).eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data.mul_(4)
    singly, block = off(model, [8, 1, 1, 1, 1]), off(model, [8, 4])
    print(f"{kind}: token by token {singly:.1e}, as a block {block:.1e}")
    assert singly < 1e-4, "single steps are no longer right"
    assert (block < 1e-4) if kind == "mamba2" else (block > 0.1), "a block after a past has changed"
PYTHON

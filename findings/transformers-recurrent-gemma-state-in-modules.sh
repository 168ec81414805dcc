#!/usr/bin/env bash
# transformers 5.23.0: the recurrent state of RecurrentGemma belongs to the model, not to the cache.
#
# Two sequences of one model, each with a cache of its own, take turns: the second one's prompt replaces the
# first one's state, whose next rows are off by 0.08 of the largest logit. There is no error, and the caches
# hold attention alone. Alone, the same calls give the logits of one forward without a cache.
# Seen 2026-11-28 on a CPU, torch 2.13.0, random weights. Exits 0 while that is so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.23.0 numpy==2.4.6
"$work/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM
from transformers.cache_utils import DynamicCache

transformers.logging.set_verbosity_error()
torch.manual_seed(0)
config = RecurrentGemmaConfig(
    vocab_size=100, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64,
    lru_width=32, attention_window_size=64,
)
model = RecurrentGemmaForCausalLM(config).eval()
ours, theirs = torch.randint(5, 100, (2, 1, 12))


def off(beside):
    """Our rows, a prompt of eight and four single tokens, against one forward without a cache."""
    own, other, rows = DynamicCache(config=config), DynamicCache(config=config), []

    def read(ids, cache, start, end):
        places = torch.arange(start, end)[None]
        given = {"past_key_values": cache, "use_cache": True, "position_ids": places}
        return model(ids[:, start:end], **given).logits[0]

    with torch.inference_mode():
        whole = model(ours, use_cache=False).logits[0]
        rows.append(read(ours, own, 0, 8))
        if beside:
            read(theirs, other, 0, 8)
        rows += [read(ours, own, at, at + 1) for at in range(8, 12)]
    return float((torch.cat(rows) - whole).abs().max() / whole.abs().max())


print("transformers", transformers.__version__, "torch", torch.__version__)
alone, in_turns = off(beside=False), off(beside=True)
print(f"alone {alone:.1e}, beside another sequence {in_turns:.1e}")
assert alone < 1e-4, "one sequence alone is no longer right"
assert in_turns > 1e-2, "two sequences no longer share a state"
PYTHON

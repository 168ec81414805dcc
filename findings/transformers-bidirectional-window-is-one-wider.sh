#!/usr/bin/env bash
# transformers 5.23.0: one `sliding_window` is two windows, by whether the attention is causal.
#
# With a window of 4 a causal row sees 4 tokens: itself and three before. A bidirectional row sees 4 before,
# itself and 4 after, nine in all. A drafter of blocks whose layers attend in both directions over a window
# (DFlash) therefore reads one token further back than a causal reader of the same config, and two readers
# of one folder disagree on one row of its context, with no error.
# Seen 2026-11-30, torch 2.13.0 on a CPU. Exits 0 while that is so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.23.0 numpy==2.4.6
"$work/venv/bin/python" - <<'PYTHON'
import inspect

import torch
import transformers
from transformers import AutoConfig
from transformers.masking_utils import (
    create_bidirectional_sliding_window_mask,
    create_sliding_window_causal_mask,
)

WINDOW, TOKENS, ROW = 4, 16, 8
config = AutoConfig.for_model("llama", vocab_size=50, hidden_size=16, num_attention_heads=2, num_hidden_layers=1)
config.sliding_window = WINDOW
config._attn_implementation = "eager"
given = {
    "config": config,
    "inputs_embeds": torch.zeros(1, TOKENS, 16),
    "attention_mask": None,
    "past_key_values": None,
    "position_ids": torch.arange(TOKENS)[None],
    "cache_position": torch.arange(TOKENS),
}


def seen(create):
    names = inspect.signature(create).parameters
    mask = create(**{name: value for name, value in given.items() if name in names})
    return [column - ROW for column in range(TOKENS) if mask[0, 0, ROW, column] == 0]


causal, both = seen(create_sliding_window_causal_mask), seen(create_bidirectional_sliding_window_mask)
print("transformers", transformers.__version__, "window", WINDOW)
print("causal row sees", causal)
print("bidirectional row sees", both)
assert causal == [-3, -2, -1, 0], "the causal window has changed"
assert both == [-4, -3, -2, -1, 0, 1, 2, 3, 4], "the bidirectional window has changed"
PYTHON

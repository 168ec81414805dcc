"""Does the module of GenAI's MtpGenerator read the prompt? Its accepted drafts, and the module's own.

    python onnxruntime-genai-mtp.py make FOLDER SEED   # a random Qwen 3.5 with a module; torch, transformers
    spsbench audit --engine onnxruntime-genai:speculation=mtp --target FOLDER ...     # converts it, cached
    PYTHONPATH=. GENAI/bin/python onnxruntime-genai-mtp.py compare CONVERTED          # K = 1, greedy

The last runs in the engine's environment, from the top of the tree: MtpGenerator, and both graphs over ONNX
Runtime with a module that begins at the first token of the text, or at that of the prompt.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

SIZES = {
    "vocab_size": 264, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "head_dim": 32,
    "num_attention_heads": 4, "num_key_value_heads": 2, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"], "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    | {"mrope_section": [2, 1, 1], "mrope_interleaved": True}, "bos_token_id": 256, "eos_token_id": 257,
}  # fmt: skip
PROMPTS, OF_PROMPT, OF_TEXT = 40, 12, 64


def make(folder: Path, seed: str) -> None:
    """Write a target whose layers count little beside the embedding, which its module hands on."""
    import tokenizers
    import torch
    import transformers
    from safetensors.torch import load_file, save_file

    torch.manual_seed(int(seed))
    vision = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 32}
    config = transformers.Qwen3_5Config(text_config=SIZES, vision_config=vision, tie_word_embeddings=False)
    transformers.Qwen3_5ForConditionalGeneration(config).save_pretrained(folder)
    one = transformers.Qwen3_5TextConfig(
        **SIZES | {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
    )
    layer = transformers.Qwen3_5ForCausalLM(one).state_dict()
    state = load_file(folder / "model.safetensors")
    state |= {name.replace("model.", "mtp.", 1): part for name, part in layer.items() if ".layers.0." in name}
    for name in state:
        if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")) and "visual" not in name:
            state[name] = 0.1 * state[name]
    state["model.language_model.embed_tokens.weight"] *= 4
    width = SIZES["hidden_size"]
    through = torch.cat([torch.eye(width), torch.zeros(width, width)], 1)
    state["mtp.fc.weight"] = through + 0.05 * torch.randn(width, 2 * width)
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        state[f"mtp.{name}.weight"] = 0.05 * torch.randn(width)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    told = json.loads((folder / "config.json").read_text())
    told["text_config"]["mtp_num_hidden_layers"] = 1
    (folder / "config.json").write_text(json.dumps(told))
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = {letter: number for number, letter in enumerate(alphabet)} | {"<s>": 256, "</s>": 257}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(words, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(folder)


def compare(converted: Path) -> None:
    import onnxruntime as ort
    import onnxruntime_genai as og

    from spsbench.base import Load
    from spsbench.parts.external.workers.onnxruntime_genai import compose, compose_module

    ort.set_default_logger_severity(3)
    load = Load(str(converted), "none", 1, threads=1, options={"speculation": "mtp"})
    folder = Path(tempfile.mkdtemp())
    (folder / "apart").mkdir()
    compose(load, folder)
    compose_module(load, folder / "apart")
    target, module = og.Model(str(folder)), og.Model(str(folder / "apart"))
    graphs = [ort.InferenceSession(converted / name) for name in ("model.onnx", "mtp.onnx")]
    rng, loops = np.random.default_rng(0), 0
    accepted, same = dict.fromkeys(("theirs", "empty", "read"), 0), dict.fromkeys(("empty", "read"), 0)
    for _ in range(PROMPTS):
        prompt = rng.integers(0, 256, OF_PROMPT).astype(np.int32)
        params = og.GeneratorParams(target)
        params.set_search_options(max_length=OF_PROMPT + OF_TEXT, do_sample=False)
        params.set_speculative_options(max_draft_tokens=1)
        generator, theirs = og.MtpGenerator(target, module, params), list[int]()
        generator.append_tokens(prompt)
        while not generator.is_done():
            generator.generate_next_token()
            now = generator.get_stats()
            if now["rounds"] > len(theirs):
                theirs.append(now["draft_tokens_accepted"] - sum(theirs))
        ids = generator.get_sequence()
        states = row_of(graphs[0], "hidden_states", input_ids=ids)
        loops += len(theirs)
        accepted["theirs"] += sum(theirs)
        for name, first in (("empty", OF_PROMPT - 1), ("read", 0)):
            rows = row_of(graphs[1], "logits", input_ids=ids[first + 1 :], hidden_states=states[first:-1])
            right = rows.argmax(-1)[OF_PROMPT - 1 - first : -1] == ids[OF_PROMPT + 1 :]
            kept, place = list[int](), 0
            while place < len(right):
                kept.append(int(right[place]))
                place += 1 + kept[-1]
            accepted[name] += sum(kept)
            same[name] += kept == theirs[: len(kept)]
    print(f"onnxruntime-genai {og.__version__}: {PROMPTS} texts, {loops} loops")
    print("accepted:", accepted, "texts with its every decision:", same)


def row_of(graph: Any, output: str, **given: Any) -> Any:
    """Return an output of one forward over an empty cache."""
    count = len(given["input_ids"])
    feeds = {
        name: array[None].astype(np.int64 if array.ndim == 1 else np.float32) for name, array in given.items()
    }
    for each in graph.get_inputs():
        if each.name == "attention_mask":
            feeds[each.name] = np.ones((1, count), np.int64)
        elif each.name == "position_ids":
            feeds[each.name] = np.tile(np.arange(count), (3, 1, 1))
        elif each.name.endswith((".key", ".value")):
            feeds[each.name] = np.zeros((1, SIZES["num_key_value_heads"], 0, SIZES["head_dim"]), np.float32)
        elif each.name not in feeds:
            feeds[each.name] = np.zeros([1 if isinstance(n, str) else n for n in each.shape], np.float32)
    return graph.run([output], feeds)[0][0]


if __name__ == "__main__":
    {"make": make, "compare": compare}[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])

"""OpenVINO GenAI 2026.4.1.0: presence and frequency penalties change their sign with the logits'.

A softmax does not change where one number is taken off all logits. This script takes 100 off every logit of a
model and draws the same seeds from the model and from that copy:

* without a penalty the texts are the same;
* with a presence or a frequency penalty they are not: it is taken off logits of 0 and more and added to
  negative ones (``apply`` of ``PresencePenaltyTransform`` and ``FrequencyPenaltyTransform`` in
  src/cpp/src/sampling/logit_transformers.hpp), so that a token that was written becomes more probable.

    python openvino-penalties.py TARGET

TARGET is a folder of OpenVINO's (openvino_model.xml and .bin), on the CPU. Needs openvino-genai alone.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

PROMPT, TEXTS, TOKENS, SHIFT = [278, 80, 299, 272, 425, 1002, 511, 12], 40, 24, -100.0
FLOAT32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "INFERENCE_NUM_THREADS": 1}


def main(target: str) -> None:
    """Draw from both and count."""
    with tempfile.TemporaryDirectory() as folder:
        shift(Path(target), Path(folder))
        pipes = {name: pipeline(each) for name, each in (("as it is", target), ("100 lower", folder))}
        for setting in ({}, {"presence_penalty": 1.5}, {"frequency_penalty": 1.5}):
            texts = {name: draw(pipe, setting) for name, pipe in pipes.items()}
            same = sum(a == b for a, b in zip(*texts.values(), strict=True))
            print(setting or "no penalty", f"{same} of {TEXTS} texts are the same")
            for name, drawn in texts.items():
                tokens = sum(map(len, drawn))
                again = tokens - sum(len(set(text)) for text in drawn)
                print(f"  {name}: {tokens} tokens, {again} of them were there before")


def shift(source: Path, folder: Path) -> None:
    """Write a copy of a model whose logits are all lower by the same number."""
    model = ov.Core().read_model(source / "openvino_model.xml")
    read = model.output("logits").get_node().input(0)
    lower = ov.opset13.add(read.get_source_output(), ov.opset13.constant(np.float32(SHIFT)))
    read.replace_source_output(lower.output(0))
    ov.save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)
    for each in (*source.glob("*tokenizer*"), *source.glob("*.json")):
        (folder / each.name).write_bytes(each.read_bytes())


def pipeline(folder: str) -> Any:
    """Load a model without a prefix cache."""
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching, scheduler.cache_size = False, 1
    return genai.LLMPipeline(folder, "CPU", scheduler_config=scheduler, **FLOAT32)


def draw(pipe: Any, setting: dict[str, Any]) -> list[list[int]]:
    """Token ids of the texts, one a seed."""
    texts = []
    for seed in range(TEXTS):
        config = genai.GenerationConfig(do_sample=True, temperature=1.0, top_p=1.0, rng_seed=seed, **setting)
        config.max_new_tokens, config.top_k = TOKENS, 2**31 - 1
        config.ignore_eos, config.apply_chat_template = True, False
        found = pipe.generate(ov.Tensor(np.array([PROMPT], dtype=np.int64)), config)
        texts.append([int(token) for token in found.tokens[0]])
    return texts


if __name__ == "__main__":
    main(*sys.argv[1:])

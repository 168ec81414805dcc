"""OpenVINO GenAI on the CPU, in float32, without its prefix cache.

TARGET and DRAFT are folders of OpenVINO's (openvino_model.xml and .bin) in float32. For the audit each was
made of the Hugging Face folder that is named above: written as a GGUF file in float16, loaded by
LLMPipeline(..., enable_save_ov_model=True), and the float32 weights put back into what that saved.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any


def arguments(parser: argparse.ArgumentParser) -> None:
    """What has to be said."""
    parser.add_argument("--target", metavar="OPENVINO_DIR", required=True, help="folder of the target")
    parser.add_argument("--draft", metavar="OPENVINO_DIR", required=True, help="folder of the draft")


def outputs(case: dict[str, Any], options: argparse.Namespace, seeds: Sequence[int]) -> Iterator[list[int]]:
    """One output a seed."""
    import numpy as np
    import openvino
    import openvino_genai as genai

    properties = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    properties |= {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    if case["threads"] is not None:
        properties["INFERENCE_NUM_THREADS"] = case["threads"]
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    scheduler.cache_size = 1
    more = {"draft_model": genai.draft_model(options.draft, "CPU", **properties)} if case["k"] else {}
    pipeline = genai.LLMPipeline(options.target, "CPU", scheduler_config=scheduler, **more, **properties)
    prompt = openvino.Tensor(np.array([case["prompt_ids"]], dtype=np.int64))
    config = generation_config(genai, case)
    for seed in seeds:
        config.rng_seed = seed
        ids = [int(token) for token in pipeline.generate(prompt, config).tokens[0]]
        ends = [place for place, token in enumerate(ids) if token in case["stop_ids"]]
        yield ids[: ends[0] + 1 if ends else case["max_new_tokens"]]


def generation_config(genai: Any, case: dict[str, Any]) -> Any:
    """Of every request, but for the seed."""
    config, sampling = genai.GenerationConfig(), case["sampling"]
    config.max_new_tokens, config.apply_chat_template = case["max_new_tokens"], False
    config.stop_token_ids = set(case["stop_ids"])
    config.do_sample = not sampling["greedy"]
    if config.do_sample:
        config.temperature, config.top_p = sampling["temperature"], sampling["top_p"]
        config.top_k = sampling["top_k"] or 2**31 - 1
    if case["k"]:
        config.num_assistant_tokens = case["k"]
    return config

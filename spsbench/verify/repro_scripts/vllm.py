"""vLLM's build for CPUs, one request at a time, without its prefix cache.

TARGET and DRAFT are the Hugging Face folders that are named above. The audit ran with LD_PRELOAD set to
lib/libiomp5.so of the environment that vLLM is installed in, as vLLM advises.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from typing import Any


def arguments(parser: argparse.ArgumentParser) -> None:
    """What has to be said."""
    parser.add_argument("--target", metavar="HF_DIR", required=True, help="folder of the target")
    parser.add_argument("--draft", metavar="HF_DIR", required=True, help="folder of the draft")


def outputs(case: dict[str, Any], options: argparse.Namespace, seeds: Sequence[int]) -> Iterator[list[int]]:
    """One output a seed."""
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    if case["threads"] is not None:
        os.environ["OMP_NUM_THREADS"] = str(case["threads"])
    import vllm

    method = case["options"]["draft_sample_method"]
    speculation = {"method": "draft_model", "model": options.draft, "num_speculative_tokens": case["k"]}
    llm = vllm.LLM(
        options.target,
        dtype=case["dtype"],
        max_model_len=case["context"],
        max_num_seqs=1,
        enable_prefix_caching=False,
        enforce_eager=case["options"]["eager"],
        speculative_config=speculation | {"draft_sample_method": method} if case["k"] else None,
        generation_config="vllm",
        seed=0,
    )
    common = {"max_tokens": case["max_new_tokens"], "stop_token_ids": case["stop_ids"]}
    common |= {"ignore_eos": True, "detokenize": False}
    sampling = {name: case["sampling"][name] for name in ("temperature", "top_p", "top_k")}
    if case["sampling"]["greedy"]:
        sampling = {"temperature": 0.0}
    for seed in seeds:
        parameters = vllm.SamplingParams(**common, **sampling, seed=seed)
        prompt = {"prompt_token_ids": case["prompt_ids"]}
        found = llm.generate(prompt, parameters, use_tqdm=False)[0]
        yield [int(token) for token in found.outputs[0].token_ids]

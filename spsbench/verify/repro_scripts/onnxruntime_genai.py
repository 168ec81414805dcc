"""ONNX Runtime GenAI on the CPU, in float32.

TARGET and DRAFT are folders of its builder, made of the Hugging Face folders that are named above:

    python -m onnxruntime_genai.models.builder -i HF_DIR -o TARGET -p fp32 -e cpu -c CACHE
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def arguments(parser: argparse.ArgumentParser) -> None:
    """What has to be said."""
    parser.add_argument("--target", metavar="ONNX_DIR", required=True, help="folder of the target")
    parser.add_argument("--draft", metavar="ONNX_DIR", required=True, help="folder of the draft")


def outputs(case: dict[str, Any], options: argparse.Namespace, seeds: Sequence[int]) -> Iterator[list[int]]:
    """One output a seed."""
    import numpy as np
    import onnxruntime_genai as genai

    prompt = np.array(case["prompt_ids"], dtype=np.int32)
    with tempfile.TemporaryDirectory() as folder:
        compose(case, Path(options.target).absolute(), Path(options.draft).absolute(), Path(folder))
        model = genai.Model(folder)
    search = {"max_length": len(prompt) + case["max_new_tokens"], "repetition_penalty": 1.0}
    search["do_sample"] = not case["sampling"]["greedy"]
    if search["do_sample"]:
        search |= {name: case["sampling"][name] for name in ("temperature", "top_k", "top_p")}
        config = json.loads((Path(options.target) / "genai_config.json").read_text())
        search["top_k"] = search["top_k"] or config["model"]["vocab_size"]  # with 0 it ignores top_p
    for seed in seeds:
        parameters = genai.GeneratorParams(model)
        parameters.set_search_options(**search, **({"random_seed": seed} if search["do_sample"] else {}))
        if case["k"]:
            parameters.set_speculative_options(max_draft_tokens=case["k"])
        generator = genai.Generator(model, parameters)
        generator.append_tokens(prompt)
        ids: list[int] = []
        while not generator.is_done() and len(ids) < case["max_new_tokens"]:
            generator.generate_next_token()
            ids.append(int(generator.get_next_tokens()[0]))
            if ids[-1] in case["stop_ids"]:
                break
        yield ids


def compose(case: dict[str, Any], target: Path, draft: Path, folder: Path) -> None:
    """A configuration of both models; their folders must lie beneath it, so they are linked."""
    config = json.loads((target / "genai_config.json").read_text())
    config["model"]["decoder"] = linked("target", target, folder, case["threads"])
    if case["k"]:
        config["model"]["draft"] = linked("draft", draft, folder, case["threads"])
        config["speculative"] = {"max_draft_tokens": case["k"]}
    (folder / "genai_config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        content = json.loads((target / name).read_text())
        if "tokenizer_class" in content:
            content["tokenizer_class"] = "PreTrainedTokenizerFast"
        (folder / name).write_text(json.dumps(content))


def linked(role: str, source: Path, folder: Path, threads: int | None) -> dict[str, Any]:
    """The decoder's configuration of a model."""
    (folder / role).symlink_to(source, target_is_directory=True)
    decoder: dict[str, Any] = json.loads((source / "genai_config.json").read_text())["model"]["decoder"]
    decoder["filename"] = f"{role}/{decoder['filename']}"
    if threads is not None:
        decoder["session_options"] |= {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
    return decoder

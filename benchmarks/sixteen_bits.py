"""Is losslessness judged rightly in 16 bits, on deep models whose rows are as sharp as a real model's?

Random models of an architecture's own class: their best logit lies about 18 above the mean, and the draft is
the target with noise on its weights. The production engine writes texts, each decision is derived again, and
the rows are held against an uncached forward. Counted are alarms of right samplers, or of planted faults.

Run by hand, an hour and a half on one core for all; the models are random, so it is all synthetic:

    python -m benchmarks.sixteen_bits [--faults] [--texts 8] [--only llama] [--deep] [--out rows.jsonl]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from spsbench.base.records import SamplingParams, Spec
from spsbench.models.torch_lm import TorchLM
from spsbench.parts.verify.controls import CONTROLS
from spsbench.parts.verify.outputs import decided_outputs, output_sums
from spsbench.parts.verify.subject import SamplerUnderTest
from spsbench.stats.losslessness import rows_apart
from spsbench.testing import Letters

K = 4
HEIGHT = 18.0
"""Of the best logit above the mean: 12 to 25 in checkpoints that people have."""
NOISE = 0.03
"""On a draft's weights, in deviations of each matrix: about two of three drafts are accepted."""

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
SAMPLINGS = {"nucleus": SamplingParams(temperature=0.8, top_p=0.95), "T 1": SamplingParams()}
VOCABULARIES = {6: 2_048, 12: 16_384, 24: 32_768}
LARGE = 151_936

_GROUPED = {"num_key_value_heads": 2, "intermediate_size": 256}
_HEADS = _GROUPED | {"head_dim": 32}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_FALCON = {"alibi": False, "multi_query": True, "parallel_attn": True}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _GROUPED),
    "qwen2": ("Qwen2Config", _GROUPED),
    "qwen3": ("Qwen3Config", _HEADS),
    "mistral": ("MistralConfig", _HEADS | {"sliding_window": 32}),
    "gemma3": ("Gemma3TextConfig", _HEADS | {"sliding_window": 32, "query_pre_attn_scalar": 32}),
    "phi3": ("Phi3Config", _GROUPED | {"pad_token_id": None}),
    "mixtral": ("MixtralConfig", _GROUPED | _EXPERTS),
    "olmo2": ("Olmo2Config", _GROUPED),
    "granite": ("GraniteConfig", _GROUPED),
    "gpt_neox": ("GPTNeoXConfig", {"intermediate_size": 256}),
    "opt": ("OPTConfig", {"ffn_dim": 256, "word_embed_proj_dim": 128}),
    "falcon": ("FalconConfig", _FALCON),
}
"""Configuration class and sizes beside ``_SIZES``."""
_SIZES = {"hidden_size": 128, "num_attention_heads": 4, "max_position_embeddings": 512}


@dataclass(frozen=True, slots=True)
class Case:
    """A pair in a dtype under a sampling, with a fault or none."""

    architecture: str
    layers: int
    vocab_size: int
    dtype: str
    sampling: str
    fault: str | None = None


def cases(faults: bool, only: str | None, deep: bool) -> Iterator[Case]:
    """Right samplers on every pair, or every fault on a few."""
    shapes = [(name, *size) for name in ARCHITECTURES for size in [*VOCABULARIES.items(), (6, LARGE)]]
    shapes += [(name, 24, LARGE) for name in ("llama", "qwen3")]
    if faults:
        shapes = [("llama", 6, LARGE), ("qwen3", 12, 16_384), ("gemma3", 24, 32_768)]
    for architecture, layers, vocab_size in shapes:
        if only not in (None, architecture) or (deep and layers < 24):
            continue
        for dtype in DTYPES:
            for sampling in SAMPLINGS:
                for fault in CONTROLS if faults else (None,):
                    if fault == "raw-draft" and sampling == "T 1":
                        continue  # there the raw row is the warped one
                    yield Case(architecture, layers, vocab_size, dtype, sampling, fault)


def pair(case: Case, prompt: torch.Tensor) -> tuple[TorchLM, TorchLM]:
    """Target and draft with random weights, rounded to the case's dtype."""
    name, sizes = ARCHITECTURES[case.architecture]
    config = getattr(transformers, name)(
        vocab_size=case.vocab_size,
        num_hidden_layers=case.layers,
        **_SIZES | sizes | {"bos_token_id": 0, "eos_token_id": case.vocab_size - 1},
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    target = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        head = target.get_output_embeddings().weight
        logits = target(prompt.unsqueeze(0)).logits[0].float()
        head.mul_(HEIGHT / float((logits.max(-1).values - logits.mean(-1)).mean()))
        draft = transformers.AutoModelForCausalLM.from_config(config).eval()
        draft.load_state_dict(target.state_dict())
        for weights in draft.parameters():
            if weights.ndim > 1:
                weights.add_(NOISE * weights.std() * torch.randn_like(weights))
    dtype = DTYPES[case.dtype]
    return TorchLM(target.to(dtype)), TorchLM(draft.to(dtype))


def judged(case: Case, models: tuple[TorchLM, TorchLM], prompts: list[list[int]]) -> dict[str, Any]:
    """What the decisions and rows of some texts say of a sampler, and how many drafts it accepted."""
    subject = SamplerUnderTest(
        *models, sampling=SAMPLINGS[case.sampling], k=K, device=torch.device("cpu"), control=case.fault
    )
    letters = Letters("".join(chr(0x100 + i) for i in range(case.vocab_size - 1)))
    _, decisions = output_sums(subject, prompts, letters)
    finding = decided_outputs(decisions, len(prompts), Spec("modified-rejection"))
    rows = rows_apart(decisions, "target")
    return {"alarm": not finding.passed, "found": finding.found, **finding.numbers, **(rows or {})}


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    torch.set_num_threads(1)
    at, models, alarms, count = None, None, 0, 0
    for case in cases(options.faults, options.only, options.deep):
        began = time.monotonic()
        generator = torch.Generator().manual_seed(1)
        prompts = torch.randint(1, case.vocab_size - 1, (options.texts, 24), generator=generator)
        if models is None or at != (case.architecture, case.layers, case.vocab_size, case.dtype):
            at = (case.architecture, case.layers, case.vocab_size, case.dtype)
            models = pair(case, prompts[0])
        found = judged(case, models, prompts.tolist())
        alarms, count = alarms + found["alarm"], count + 1
        row = {name: getattr(case, name) for name in case.__slots__} | found
        row["seconds"] = round(time.monotonic() - began, 1)
        print(json.dumps(row), flush=True)
        if options.out:
            with options.out.open("a") as out:
                out.write(json.dumps(row) + "\n")
    print(f"{alarms} alarms in {count} {'faulty' if options.faults else 'right'} samplers (synthetic)")
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--faults", action="store_true", help="plant each fault, on three pairs")
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--only", choices=ARCHITECTURES)
    parser.add_argument("--deep", action="store_true", help="24 layers alone")
    parser.add_argument("--out", type=Path, help="rows as JSON lines")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

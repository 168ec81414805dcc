"""What layers laid out for oneDNN, grouped queries and compiled layers save in bfloat16 on a CPU, in turns.

    python -m benchmarks.packed_layers [--rounds 16] [--threads 1] [--context 128] [MODEL ...]

A model is ``smollm2``, the real one; ``hybrid``, a random one of Qwen3.5's shape (24 layers, 1,024 wide);
``experts``, a random one of Qwen3-MoE's (8 of 64 experts); their times are **synthetic**. Printed are medians
and minima of a forward of one row and of five, as stored, packed, packed with grouped queries, compiled as
well and (one row) as transformers' ``generate`` takes a token of the stored one, the ratios to the stored one
with the largest difference of a logit over the largest logit; and how many layers were packed and compiled in
which time. ``types`` counts tiny random models of every causal type of transformers by what was packed and
whether the logits of nine tokens are equal bit for bit; ``graphs`` by how many layers have one, and whether
its operators give those logits.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from benchmarks.architectures import whole_model
from benchmarks.tiny_types import tiny_config
from spsbench.models import TorchLM
from spsbench.models.attention import group_queries
from spsbench.models.compiled import compile_layers
from spsbench.models.hf_errors import quiet_libraries
from spsbench.models.packed import PackedLinear, pack_layers
from spsbench.models.packed_experts import PackedExperts

ROWS, TOKENS = (1, 5), 8


def smollm2() -> Any:
    from spsbench.models.source import find

    location = find("package:smollm2", None, "--target").location
    return transformers.AutoModelForCausalLM.from_pretrained(location, dtype=torch.bfloat16)


def hybrid() -> Any:
    """Three gated delta rules, then full attention, and so on."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        "qwen3_5_text",
        vocab_size=4096,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=24,
        num_attention_heads=16,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=16,
        linear_num_value_heads=16,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        eos_token_id=None,
        pad_token_id=None,
    )
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().bfloat16()


def experts() -> Any:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        "qwen3_moe",
        vocab_size=4096,
        hidden_size=1024,
        num_hidden_layers=12,
        num_attention_heads=16,
        num_key_value_heads=2,
        head_dim=64,
        num_experts=64,
        num_experts_per_tok=8,
        moe_intermediate_size=384,
        eos_token_id=None,
        pad_token_id=None,
    )
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


MODELS: dict[str, Callable[[], Any]] = {"smollm2": smollm2, "hybrid": hybrid, "experts": experts}


@torch.inference_mode()
def measure(name: str, rounds: int, context: int) -> list[str]:
    """Return the table's rows of a model."""
    stored = MODELS[name]().eval()
    packed = copy.deepcopy(stored)
    started = time.perf_counter()
    count = pack_layers(packed)
    taken_s = time.perf_counter() - started
    ids = torch.arange(context) % 500 + 3
    plain, laid_out, compiled = TorchLM(stored), TorchLM(packed), TorchLM(copy.deepcopy(stored))
    pack_layers(compiled.model)
    started = time.perf_counter()
    compile_layers(compiled)
    compiled_s = time.perf_counter() - started
    arms = {
        "stored": (plain, False),
        "packed": (laid_out, False),
        "grouped": (laid_out, True),
        "compiled": (compiled, True),
    }
    for model in (plain, laid_out, compiled):
        model.score(ids, last=1)
    lines = []
    for rows in ROWS:
        times: dict[str, list[float]] = {arm: [] for arm in (*arms, "generate")}
        logits = {}
        for _ in range(rounds):
            for arm, (model, is_grouped) in arms.items():
                have_queries_grouped(model.model, is_grouped)
                started = time.perf_counter()
                logits[arm] = model.score(ids[:rows], last=rows).float()
                times[arm].append(time.perf_counter() - started)
                model.rollback(context)
            if rows == 1:
                times["generate"].append(_generated_s(stored, ids) / TOKENS)
        cells = [_ms(times[arm]) if times[arm] else "" for arm in times]
        for arm in ("packed", "grouped", "compiled"):
            apart = (logits[arm] - logits["stored"]).abs().max() / logits["stored"].abs().max()
            ratio = statistics.median(times[arm]) / statistics.median(times["stored"])
            cells.append(f"{ratio:.2f} ({min(times[arm]) / min(times['stored']):.2f}), {apart:.1e}")
        lines.append(f"| {name} | {rows} | {' | '.join(cells)} |")
    assert compiled.compiled is not None
    of = f"{compiled.compiled.layers} of {compiled.compiled.of} decoder layers compiled in {compiled_s:.1f} s"
    return [*lines, f"{count} layers packed in {taken_s:.2f} s, {of}"]


def have_queries_grouped(model: Any, is_grouped: bool) -> None:
    if is_grouped:
        group_queries(model)
    else:
        for part in model.modules():
            vars(part).pop("groups_queries", None)


@torch.inference_mode()
def count_types() -> list[str]:
    """Return a line of every outcome."""
    found: dict[str, list[str]] = {}
    ids = torch.arange(3, 12)[None]
    for kind in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        torch.manual_seed(0)
        try:
            model = whole_model(tiny_config(kind)).to(torch.bfloat16).eval()
            before = model(ids, use_cache=False).logits
        except Exception:  # of many types; it takes more than ids
            found.setdefault("not built, or more than ids", []).append(kind)
            continue
        pack_layers(model)
        parts = [*model.modules()]
        products = {id(part.product) for part in parts if isinstance(part, PackedLinear)}
        layers = sum(isinstance(part, PackedLinear) for part in parts)
        what = "none" if not layers else "joined" if len(products) < layers else "alone"
        what += " and experts" * any(isinstance(part, PackedExperts) for part in parts)
        is_equal = torch.equal(model(ids, use_cache=False).logits, before)
        found.setdefault(f"{what}, {'equal' if is_equal else 'another'} logits", []).append(kind)
    return [f"{len(kinds)} {what}: {', '.join(kinds[:8])}" for what, kinds in sorted(found.items())]


@torch.inference_mode()
def count_graphs() -> list[str]:
    """Return a line of every outcome, and of every reason; nothing is compiled."""
    found: dict[str, list[str]] = {}
    for kind in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        torch.manual_seed(0)
        try:
            lm = TorchLM(whole_model(tiny_config(kind)).to(torch.bfloat16).eval())
            pack_layers(lm.model)
            before = _behind_cache(lm)
            with patch("torch._inductor.compile", lambda graph, inputs, options: graph):
                compile_layers(lm)
        except Exception:  # of many types; it takes more than ids, or has no cache to roll back
            found.setdefault("not built, or no cache of tokens alone", []).append(kind)
            continue
        assert lm.compiled is not None
        count, of, reason = lm.compiled.layers, lm.compiled.of, lm.compiled.reason
        what = "all layers" if count == of else "some layers" if count else "no layer"
        same = "equal" if torch.equal(_behind_cache(lm), before) else "another"
        found.setdefault(f"{what}, {same} logits", []).append(kind)
        if count < of:
            found.setdefault(f"because {reason}"[:80], []).append(kind)
    return [f"{len(kinds)} {what}: {', '.join(kinds[:8])}" for what, kinds in sorted(found.items())]


def _behind_cache(lm: TorchLM) -> torch.Tensor:
    lm.begin([*range(3, 12)])
    rows = [lm.score(torch.arange(3, 3 + count), count).clone() for count in (1, 5, 1)]
    lm.rollback(0)
    return torch.cat(rows)


def _generated_s(model: Any, ids: torch.Tensor) -> float:
    """Return the seconds of some tokens behind the first, which the prompt costs."""
    stamps = []
    for tokens in (1, 1 + TOKENS):
        started = time.perf_counter()
        model.generate(ids[None], do_sample=False, min_new_tokens=tokens, max_new_tokens=tokens)
        stamps.append(time.perf_counter() - started)
    return stamps[1] - stamps[0]


def _ms(times: list[float]) -> str:
    return f"{1e3 * statistics.median(times):.1f} ({1e3 * min(times):.1f})"


COUNTS = {"types": count_types, "graphs": count_graphs}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="*", help=", ".join((*MODELS, *COUNTS)))
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=128, help="tokens")
    given = parser.parse_args()
    quiet_libraries()
    torch.set_num_threads(given.threads)
    arms = "packed | grouped | compiled"
    print(f"| model | rows | stored, ms | {arms} | `generate` | of stored: {arms} |")
    for name in given.model or MODELS:
        lines = COUNTS[name]() if name in COUNTS else measure(name, given.rounds, given.context)
        print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()

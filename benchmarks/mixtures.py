"""Does rounding that turns an expert, or ill-conditioned weights, make a right sampler look wrong?

Tiny random models of every mixture of experts that the installed transformers has, with matrices four times
as large as they begin: a router's scores often lie closer than bfloat16 rounds, and one expert more or less
moves a row by much. The draft is the target with noise on its weights. The production engine writes short
texts, and each is judged as a run of its own, which has the least to average over. Beside the verdict stands
what would be said if no text were read a second time. With ``--faults`` the samplers of ``verify --control``
are planted on some types, until one is found; ``--dense`` takes models without experts, in float32, where
rounding has a bound that ill-conditioned weights exceed.

Run by hand; the models are random, so it is all synthetic:

    python -m benchmarks.mixtures [--texts 14] [--only mixtral,olmoe] [--faults] [--dense] [--out rows.jsonl]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from spsbench.base.records import RESCORED, Request, SamplingParams, Spec
from spsbench.decode.clock import FakeClock
from spsbench.engines.derivation import Derivation
from spsbench.engines.local import EagerEngine
from spsbench.engines.rescore import rescored, score_stats, teacher_force
from spsbench.engines.rows_held import rows_held_against, with_explained
from spsbench.law.evidence import Sums, added
from spsbench.models.torch_lm import TorchLM
from spsbench.parts.verify.controls import CONTROLS, SHARED, planted_everywhere
from spsbench.parts.verify.outputs import decided_outputs, output_sums, rescored_outputs
from spsbench.parts.verify.parts import booked_time, independent_uniforms, same_warp
from spsbench.parts.verify.subject import SamplerUnderTest
from spsbench.stats.losslessness import decisions_of, evidence_of
from spsbench.testing import Letters

K, LAYERS, TOKENS, PROMPT, VOCABULARY = 4, 3, 14, 12, 258
SCALE, HEIGHT, NOISE = 4.0, 12.0, 0.03
"""Of the matrices; of the best logit above the mean; on a draft's weights, in deviations of each matrix."""
SAMPLINGS = (SamplingParams(temperature=0.8, top_p=0.95), SamplingParams(), SamplingParams(greedy=True))
DENSE = ("llama", "qwen3", "gemma3_text", "gpt2", "opt", "phi3", "olmo2", "camembert", "xlm-roberta")
FAULTY = ("mixtral", "qwen3_moe", "deepseek_v3")

_EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
_SIZES = {
    **dict.fromkeys(_EXPERTS, 8),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("hidden_size", "n_embd"), 64),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_hidden_size", "intermediate_size_mlp", "ffn_dim"), 96),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "v_head_dim", "index_head_dim"), 16),
    **dict.fromkeys(("sliding_window", "attention_chunk_size"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "index_topk"), 8),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "moe_num_shared_experts"), 1),
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers"), 1),
    "num_nextn_predict_layers": 0,
    "index_n_heads": 2,
    "word_embed_proj_dim": 64,
}


def mixtures() -> list[str]:
    """Every causal type whose configuration has experts."""
    found = []
    for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        try:
            config = transformers.CONFIG_MAPPING[kind]()
        except Exception:
            continue
        if any(getattr(config, name, None) for name in _EXPERTS):
            found.append(kind)
    return found


def config_of(kind: str) -> Any:
    """A configuration of the type that is small in each size it has."""
    large = transformers.CONFIG_MAPPING[kind]()
    sizes: dict[str, Any] = {name: size for name, size in _SIZES.items() if hasattr(large, name)}
    if hasattr(large, "num_key_value_heads"):
        sizes["num_key_value_heads"] = 4 if "kv_lora_rank" in sizes else 2
    if getattr(large, "head_dim", None) and "kv_lora_rank" not in sizes:
        sizes["head_dim"] = 16
    if isinstance(kinds := getattr(large, "layer_types", None), list):
        each = list(dict.fromkeys(kinds))
        sizes["layer_types"] = [each[layer % len(each)] for layer in range(LAYERS)]
    if isinstance(getattr(large, "mlp_layer_types", None), list):
        sizes["mlp_layer_types"] = ["dense", *["sparse"] * (LAYERS - 1)]
    sizes |= {"vocab_size": VOCABULARY, "bos_token_id": 256, "eos_token_id": 257, "pad_token_id": None}
    if kind in ("camembert", "xlm-roberta"):  # their positions begin behind the padding's
        sizes |= {"is_decoder": True, "max_position_embeddings": 258, "pad_token_id": 1}
    return transformers.CONFIG_MAPPING[kind](**sizes)


def pair(kind: str, dtype: torch.dtype) -> tuple[TorchLM, TorchLM]:
    """Target and draft with random weights."""
    config = config_of(kind)
    torch.manual_seed(0)
    target = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        head = target.get_output_embeddings().weight
        for name, weights in target.named_parameters():
            if weights.ndim > 1 and weights is not head and "embed" not in name:
                weights.mul_(SCALE)
        logits = target(input_ids=torch.randint(0, 256, (1, 24)), use_cache=False).logits[0].float()
        head.mul_(HEIGHT / float((logits.max(-1).values - logits.mean(-1)).mean()))
        draft = transformers.AutoModelForCausalLM.from_config(config).eval()
        draft.load_state_dict(target.state_dict())
        for weights in draft.parameters():
            if weights.ndim > 1:
                weights.add_(NOISE * weights.std() * torch.randn_like(weights))
    return TorchLM(target.to(dtype)), TorchLM(draft.to(dtype))


@torch.inference_mode()
def text(models: Sequence[TorchLM], index: int) -> dict[str, float]:
    """The sums of one text of the production engine, and of its second reading; every fourth is by ArS."""
    target, draft = models
    k = K if index % 4 else 0
    generator = torch.Generator().manual_seed(index)
    prompt = torch.randint(0, 256, (PROMPT,), generator=generator).tolist()
    sampling = SAMPLINGS[index % len(SAMPLINGS)]
    letters = Letters("".join(chr(0x100 + i) for i in range(VOCABULARY)))
    engine = EagerEngine(
        target, draft if k else None, k, letters, target.device, FakeClock(0.001), derivation=Derivation(k=k)
    )
    request = Request(tuple(prompt), TOKENS, (), sampling, seed=index, fixed_length=True)
    generation = engine.generate(request)
    reading = teacher_force(target, draft, prompt, generation.tokens, sampling)
    kept = generation.kept_rows
    assert kept is not None
    sums = rows_held_against("target", target, kept.target, generation, reading, prompt, k, index)
    if k:
        sums |= rows_held_against("draft", draft, kept.draft, generation, reading, prompt, k, index)
    scores = rescored(score_stats(reading, index))
    once = {"impossible_once": scores[f"{RESCORED}impossible"], "tokens": float(len(generation.tokens))}
    return (generation.losslessness or {}) | with_explained(scores, sums, RESCORED) | sums | once


def alarms(texts: Sequence[dict[str, float]], dtype: str) -> list[str]:
    """What a run that wrote these texts would be alarmed by."""
    rows = [(str(i), None, int(sums["tokens"]), "length", sums) for i, sums in enumerate(texts)]
    columns = ["example_id", "error", "new_tokens", "finish_reason", "losslessness"]
    frame = pd.DataFrame(rows, columns=columns)
    kinds = decisions_of(frame, dtype), evidence_of(frame, RESCORED, exact=dtype == "float32")
    return [reason for kind in kinds if kind and kind["verdict"] == "alarm" for reason in kind["reasons"]]


def read_once(sums: dict[str, float]) -> dict[str, float]:
    """The sums of a text as if it had not been read a second time."""
    left_out = ("_again", "_explained", "_possible")
    plain = {name: value for name, value in sums.items() if not name.endswith(left_out)}
    for role in ("target", "draft"):
        if cleared := sums.get(f"decisions_rows_{role}_cleared"):
            plain[f"decisions_rows_{role}_beyond"] += cleared
    return plain | {f"{RESCORED}impossible": sums["impossible_once"]}


def swept(
    kinds: Sequence[str], dtype: str, texts: int, faults: Sequence[str | None], first: int = 0
) -> Iterator[dict[str, Any]]:
    """One row for each type and fault; a type that this script cannot build has its reason."""
    for kind in kinds:
        try:
            models = pair(kind, getattr(torch, dtype))
            text(models, 1)
        except Exception as error:
            yield {"type": kind, "not_run": f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"}
            continue
        for fault in faults:
            if fault:
                yield _found(kind, models, fault, texts)
                continue
            sums = [text(models, first + i) for i in range(texts)]
            total = {name: sum(one.get(name, 0.0) for one in sums) for name in set().union(*sums)}
            rows = total["decisions_rows_target"]
            chosen = total.get("decisions_rows_target_chosen", 0.0)
            yield {
                "type": kind,
                "dtype": dtype,
                "texts": texts,
                "alarms_once": sum(bool(alarms([read_once(one)], dtype)) for one in sums),
                "alarms": sum(bool(alarms([one], dtype)) for one in sums),
                "alarm_of_all": alarms(sums, dtype),
                "impossible": [total["impossible_once"], total[f"{RESCORED}impossible"]],
                "apart": total["decisions_rows_target_apart"] / rows,
                "rounding": total.get("decisions_rows_target_blocks", 0.0)
                / max(total.get("decisions_rows_target_measured", 0.0), 1.0),
                "read_again": sum(one.get("decisions_rows_target_again", 0.0) > 0 for one in sums),
                "unexplained": (
                    total["decisions_rows_target_apart"] - total.get("decisions_rows_target_explained", 0.0)
                )
                / rows,
                "experts": total.get("decisions_rows_target_experts", 0.0) / chosen if chosen else None,
            }


def _found(kind: str, models: Sequence[TorchLM], fault: str, texts: int) -> dict[str, Any]:
    """How many texts with a fault it takes until the tests of whole outputs fail, and what they say."""
    if fault in SHARED:
        return _found_in_parts(kind, models, fault)
    evidence, decisions = Sums(), Sums()
    prompts = torch.randint(0, 256, (texts, PROMPT), generator=torch.Generator().manual_seed(0)).tolist()
    letters = Letters("".join(chr(0x100 + i) for i in range(VOCABULARY)))
    for index, prompt in enumerate(prompts):
        subject = SamplerUnderTest(
            target=models[0],
            draft=models[1],
            sampling=SAMPLINGS[0] if fault == "raw-draft" else SAMPLINGS[index % 2],
            k=K,
            device=models[0].device,
            control=fault,
            seed=index,
        )
        more = output_sums(subject, [prompt], letters)
        evidence, decisions = added(evidence, more[0]), added(decisions, more[1])
        findings = [
            decided_outputs(decisions, index + 1, Spec("modified-rejection")),
            rescored_outputs(evidence, index + 1),
        ]
        if failed := [finding.found for finding in findings if not finding.passed]:
            return {"type": kind, "fault": fault, "texts": index + 1, "found": failed}
    return {"type": kind, "fault": fault, "texts": texts, "found": []}


def _found_in_parts(kind: str, models: Sequence[TorchLM], fault: str) -> dict[str, Any]:
    """What the tests of warper, uniform numbers and clock say of a fault in code that no row depends on."""
    prompts = torch.randint(0, 256, (2, PROMPT), generator=torch.Generator().manual_seed(0)).tolist()
    target, draft = models
    subject = SamplerUnderTest(
        target=target, draft=draft, sampling=SAMPLINGS[0], k=K, device=target.device, control=fault, seed=0
    )
    letters = Letters("".join(chr(0x100 + i) for i in range(VOCABULARY)))
    with planted_everywhere(fault):
        findings = [same_warp(subject, prompts), independent_uniforms(subject), booked_time(K, letters)]
    found = [finding.found for finding in findings if not finding.passed]
    return {"type": kind, "fault": fault, "texts": 0, "found": found}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--texts", type=int, default=14)
    parser.add_argument("--first", type=int, default=0, help="of the texts, which differ by their number")
    parser.add_argument("--only", help="types, with commas")
    parser.add_argument("--faults", action="store_true", help=f"plant each fault, on {', '.join(FAULTY)}")
    parser.add_argument("--dense", action="store_true", help="models without experts, in float32")
    parser.add_argument("--out", type=Path, help="rows as JSON lines")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    kinds: Sequence[str] = DENSE if options.dense else FAULTY if options.faults else mixtures()
    kinds = options.only.split(",") if options.only else kinds
    faults: Sequence[str | None] = [*CONTROLS, *SHARED] if options.faults else [None]
    dtype = "float32" if options.dense else "bfloat16"
    once = after = texts = 0
    planted = found = 0
    for row in swept(kinds, dtype, 8 if options.faults else options.texts, faults, options.first):
        print(json.dumps(row), flush=True)
        if options.out:
            with options.out.open("a") as out:
                out.write(json.dumps(row) + "\n")
        if "found" in row:
            planted, found = planted + 1, found + bool(row["found"])
        if "alarms" in row:
            once, after, texts = once + row["alarms_once"], after + row["alarms"], texts + row["texts"]
    if options.faults:
        print(f"{found} of {planted} planted faults found (synthetic)")
    else:
        print(f"{after} alarms in {texts} texts, {once} without a second reading (synthetic)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

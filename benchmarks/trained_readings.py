"""A head that was trained for each reading of its ids, and what is accepted of it under every reading.

    python -m benchmarks.trained_readings

A tiny random target writes text; an EAGLE-3 head over three of its states is trained on it, once for ids that
count the layers before a state and once for ids that name the layer whose output it is, with the same ids in
the folder. Two steps deep, as EAGLE-3 is trained: the second reads the head's own state.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import kl_div

from spsbench.base.records import Spec
from spsbench.drafters.read_otherwise import by_reading
from spsbench.drafters.served_drafts import readings
from spsbench.models.reading import read_draft
from spsbench.models.speculators import eagle3_body
from spsbench.models.torch_lm import TorchLM
from spsbench.models.trained import config_of_layers

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

HIDDEN, SIZE, LAYERS, IDS = 64, 64, 6, (1, 3, 5)
READS = "eagle_aux_hidden_state_layer_ids"
LAYER = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "vocab_size": SIZE,
    "intermediate_size": 128,
    "head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": None,
    "max_position_embeddings": 256,
}


def target_model() -> Any:
    from transformers import LlamaForCausalLM

    config = config_of_layers({**LAYER, "num_hidden_layers": LAYERS, "initializer_range": 0.12})
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    model.lm_head.weight.data *= 3.0
    return model


@torch.no_grad()
def written(model: Any, texts: int, length: int) -> Tensor:
    """[texts, length] sampled by the target at temperature 1."""
    ids = torch.randint(SIZE, (texts, 2))
    return model.generate(ids, max_length=length, do_sample=True, top_k=0, pad_token_id=0)  # type: ignore[no-any-return]


def trained(model: Any, states: tuple[int, ...], steps: int) -> dict[str, Tensor]:
    """Weights of a head over the target's states after so many layers, each."""
    torch.manual_seed(1)
    body = eagle3_body(config_of_layers({**LAYER, "num_hidden_layers": 1}), before_residual=False)
    fc = torch.nn.Linear(3 * HIDDEN, HIDDEN, bias=False)
    norm, body.norm = body.norm, torch.nn.Identity()
    head = torch.nn.Linear(HIDDEN, SIZE, bias=False)
    head.weight.data.copy_(model.lm_head.weight)
    parts = torch.nn.ModuleList([body, fc, norm, head])
    optimizer = torch.optim.AdamW(parts.parameters(), 2e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        ids = written(model, 32, 40)
        with torch.no_grad():
            told = model(input_ids=ids, output_hidden_states=True)
            read = torch.cat([told.hidden_states[state] for state in states], -1)
            wanted = told.logits.log_softmax(-1)
            embedded = model.get_input_embeddings()(ids)
        state, loss = fc(read)[:, :-1], torch.zeros(())
        for depth in range(2):
            tokens = embedded[:, 1 + depth :]
            state = body(inputs_embeds=torch.cat([tokens, state[:, : tokens.shape[1]]], -1)).last_hidden_state
            found = head(norm(state)).log_softmax(-1)
            loss = loss + kl_div(found, wanted[:, 1 + depth :], reduction="batchmean", log_target=True) / 38
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    kept = {name: part for name, part in body.state_dict().items() if not name.startswith(("embed", "norm"))}
    return {**kept, "fc.weight": fc.weight, "norm.weight": norm.weight, "lm_head.weight": head.weight}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--texts", type=int, default=16)
    args = parser.parse_args()
    from support.published_heads import write

    model = target_model()
    target = TorchLM(model)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **LAYER,
        "num_hidden_layers": 1,
        "draft_vocab_size": SIZE,
        "eagle_config": {READS: list(IDS)},
    }
    with TemporaryDirectory() as name:
        for trained_for, shift in (("after", 0), ("output", 1)):
            states = tuple(each + shift for each in IDS)
            weights = {n: part.detach().clone() for n, part in trained(model, states, args.steps).items()}
            folder = write(Path(name) / trained_for, config, weights)
            draft = read_draft(folder, "HEAD")
            wanted = readings(draft, [], LAYERS)
            prompts = written(model, args.texts, 8).tolist()
            spec = Spec("heads", (("from", str(folder)),))
            for reading in by_reading(target, spec, wanted, prompts, k=4, tokens=64):
                lengths = np.array(reading.lengths)
                found = {
                    "trained for": f"ids={trained_for}",
                    "read": dict(reading.options) or "as written (ids=after)",
                    "by place": [round(chance, 3) for chance in reading.by_place],
                    "tokens per loop": round(float(lengths.mean()), 3),
                    "standard error": round(float(lengths.std(ddof=1) / len(lengths) ** 0.5), 3),
                }
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()

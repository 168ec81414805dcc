#!/usr/bin/env bash
# speculators 0.9.0: the sliding window of a DFlash drafter does not slide within a block.
#
# transformers reads sliding_window = 6 as six keys for each place: itself and the five before it. In a DFlash drafter
# that speculators trains, a Qwen 3 layer with the same field sees six tokens of context before the block, the same six
# from every place, and then the block up to itself: 7, 8, 9 and 10 keys in a block of four, and 10 for all with
# sliding_window_non_causal. Who runs such a drafter as its layers' configuration says drops up to a block of context,
# in silence, once a text is longer than the window. Counted by gradients: what a place's output depends on.
# Seen 2026-11-30 on a CPU (transformers 5.19.0, torch 2.13.0), random weights. Exits 0 while that is so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.19.0 numpy==2.4.6 pydantic==2.14.4 \
  aiohttp datasets==5.1.0 openai psutil
"$work/venv/bin/pip" install --quiet --no-deps speculators==0.9.0 hs-connectors==0.9.0  # without torchvision and torchaudio
export HF_HUB_OFFLINE=1
"$work/venv/bin/python" - 2>"$work/err" <<'PYTHON' || { tail -5 "$work/err"; exit 1; }
from importlib.metadata import version

import torch
from speculators import SpeculatorsConfig, VerifierConfig
from speculators.losses.utils import resolve_loss_config
from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import Qwen3Config, Qwen3Model

WINDOW, BLOCK, LENGTH, START, WIDTH = 6, 4, 32, 20, 32


def layer():
    return Qwen3Config(
        hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, vocab_size=64, max_position_embeddings=64, layer_types=["sliding_attention"],
        sliding_window=WINDOW, use_sliding_window=True, attn_implementation="eager",
    )


def read_by(output, *inputs):
    """The places of each input that an output depends on."""
    slopes = torch.autograd.grad(output.sum(), inputs, retain_graph=True)
    return [slope[0].abs().sum(-1).nonzero().flatten().tolist() for slope in slopes]


def dflash(non_causal):
    """For each place of a block at START, the places of the text that it sees, counted from the text's first token."""
    torch.manual_seed(0)
    proposal = GreedyTokenProposalConfig(speculative_tokens=BLOCK - 1)
    verifier = VerifierConfig(name_or_path=None, architectures=["Qwen3ForCausalLM"])
    config = DFlashSpeculatorConfig(
        transformer_layer_config=layer(), draft_vocab_size=64, block_size=BLOCK, aux_hidden_state_layer_ids=[1],
        mask_token_id=5, sliding_window_non_causal=non_causal,
        speculators_config=SpeculatorsConfig(
            algorithm="dflash", default_proposal_method="greedy", proposal_methods=[proposal], verifier=verifier,
        ),
    )
    model = DFlashDraftModel(config).float().eval()
    for weights in model.parameters():
        torch.nn.init.normal_(weights, 0, 0.3)
    seen = {}

    def embedded(module, given, output):
        seen["block"] = output.detach().requires_grad_()
        return seen["block"]

    def scored(module, given, output):
        seen["logits"] = output[0]

    model.embed_tokens.register_forward_hook(embedded)
    model.lm_head.register_forward_hook(scored)
    context = torch.randn(1, LENGTH, WIDTH, requires_grad=True)
    trained = torch.zeros(1, LENGTH).index_fill(1, torch.tensor(START), 1)  # one block, at START
    model(
        hidden_states=context, input_ids=torch.randint(0, 64, (1, LENGTH)), loss_mask=trained,
        verifier_last_hidden_states=torch.randn(1, LENGTH, WIDTH), max_anchors=1,
        document_ids=torch.zeros(1, LENGTH, dtype=torch.long), loss_config=resolve_loss_config("kl_div", "eager"),
    )
    rows = [read_by(row, context, seen["block"]) for row in seen["logits"]]
    return [before + [START + place for place in block] for before, block in rows]


def transformers_layer():
    torch.manual_seed(0)
    text = torch.randn(1, LENGTH, WIDTH, requires_grad=True)
    rows = Qwen3Model(layer()).eval()(inputs_embeds=text).last_hidden_state[0]
    return [read_by(rows[at], text)[0] for at in range(START, START + BLOCK)]


print(*(f"{name} {version(name)}" for name in ("speculators", "transformers", "torch")), f"sliding_window {WINDOW}")
ours, causal, both = transformers_layer(), dflash(False), dflash(True)
for how, rows in {"transformers": ours, "DFlash": causal, "DFlash, non-causal": both}.items():
    for at, places in enumerate(rows, START):
        print(f"{how}: place {at} sees {len(places)} keys, {places[0]} to {places[-1]}")
block = range(START, START + BLOCK)
assert ours == [list(range(at - WINDOW + 1, at + 1)) for at in block], "transformers counts otherwise"
assert causal == [list(range(START - WINDOW, at + 1)) for at in block], "the window of a block has changed"
assert both == [list(range(START - WINDOW, START + BLOCK))] * BLOCK, "the window of a block has changed"
PYTHON

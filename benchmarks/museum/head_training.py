"""Trains a DFlash head, in an environment of transformers 5.15 or later.

    PYTHON head_training.py TARGET ASKED.json OUT

The head is the release's own class (that of Muse Glimmer), one layer of the target's width. It learns the
target's distributions over the target's own continuations: from the hidden states of two layers up to a
token, and that token, those of the ``K`` tokens after it.
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

K, BATCH, CONTEXT, UPDATES, RATE, WARMUP = 4, 16, 128, 1800, 1e-3, 20
NEW_TOKENS, WEIGHTS, MASK = 80, (1.0, 0.6, 0.4, 0.2), 1

torch: Any = importlib.import_module("torch")
transformers: Any = importlib.import_module("transformers")


@dataclass(frozen=True)
class Text:
    """A continuation: token ids, hidden states of two layers, distributions, and where the prompt ends."""

    ids: Any
    hidden: Any
    probs: Any
    prompt: int


def main(target_folder: str, asked: str, out: str) -> None:
    """Write texts, train, and save."""
    torch.set_num_threads(1)
    target = transformers.AutoModelForCausalLM.from_pretrained(target_folder, dtype=torch.float32)
    target.requires_grad_(False)
    target.generation_config = transformers.GenerationConfig()
    layers = [target.config.num_hidden_layers // 2 - 1, target.config.num_hidden_layers - 1]
    given = json.loads(Path(asked).read_text())
    texts = [_text(target, layers, given["stop"], *each) for each in enumerate(given["prompts"])]
    torch.manual_seed(0)
    head = _new(target, layers)
    _train(head, target, texts)
    head.save_pretrained(out)


def _new(target: Any, layers: list[int]) -> Any:
    module = importlib.import_module("transformers.models.muse_glimmer_assistant")
    own = target.config
    config = module.MuseGlimmerAssistantConfig(
        hidden_size=own.hidden_size,
        intermediate_size=own.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=own.num_attention_heads,
        num_key_value_heads=own.num_key_value_heads,
        head_dim=own.head_dim,
        block_size=K + 1,
        mask_token_id=MASK,
        target_layer_ids=layers,
        bos_token_id=None,
        eos_token_id=own.eos_token_id,
        pad_token_id=own.pad_token_id,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        layer_types=["full_attention"],
    )
    return module.MuseGlimmerAssistantModel(config)


def _text(target: Any, layers: list[int], stop: list[int], seed: int, prompt: list[int]) -> Text:
    torch.manual_seed(seed)
    ids = torch.tensor([prompt])
    config = transformers.GenerationConfig(
        max_new_tokens=NEW_TOKENS, do_sample=True, top_k=0, eos_token_id=stop, pad_token_id=min(stop)
    )
    with torch.no_grad():
        ids = target.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        read = target(ids, output_hidden_states=True)
    hidden = torch.cat([read.hidden_states[layer + 1] for layer in layers], -1)[0]
    return Text(ids[0], hidden, read.logits[0].softmax(-1), len(prompt))


def _train(head: Any, target: Any, texts: list[Text]) -> None:
    """AdamW, a short warm-up and a linear fall; cross-entropy, the first tokens weighing most."""
    optimiser = torch.optim.AdamW(head.parameters(), lr=RATE, weight_decay=0.01)
    dice, weights = torch.Generator().manual_seed(0), torch.tensor(WEIGHTS)
    for update in range(UPDATES):
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1.0, (update + 1) / WARMUP) * (1 - update / UPDATES)
        inputs, wanted = _batch(texts, target, dice)
        found = head(attention_mask=None, past_key_values=None, use_cache=False, **inputs)
        logs = target.lm_head(found.last_hidden_state[:, 1:]).log_softmax(-1)
        loss = -(wanted * logs).sum(-1)
        (loss * weights).mean().backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        if update % 50 == 0:
            shared = torch.minimum(wanted, logs.exp()).sum(-1).mean(0)
            print(update, loss.mean(0).tolist(), "overlap", shared.tolist(), flush=True)


def _batch(texts: list[Text], target: Any, dice: Any) -> tuple[dict[str, Any], Any]:
    """Contexts that end before a token of a continuation, that token with masks, and what comes after it."""
    embed = target.get_input_embeddings().weight
    hidden: list[Any] = []
    noise: list[Any] = []
    wanted: list[Any] = []
    places: list[Any] = []
    while len(hidden) < BATCH:
        text = texts[int(torch.randint(len(texts), (1,), generator=dice))]
        first, end = text.prompt - 1, len(text.ids) - K - 1
        if end <= first:
            continue
        at = int(torch.randint(first, end, (1,), generator=dice))
        hidden.append(text.hidden[at - CONTEXT : at])
        noise.append(embed[torch.tensor([int(text.ids[at])] + [MASK] * K)])
        wanted.append(text.probs[at : at + K])
        places.append(torch.arange(at - CONTEXT, at + K + 1))
    named = {"noise_embeds": noise, "context_hidden_states": hidden, "position_ids": places}
    return {name: torch.stack(rows) for name, rows in named.items()}, torch.stack(wanted)


if __name__ == "__main__":
    main(*sys.argv[1:])

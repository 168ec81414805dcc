"""Texts that the mini pair writes without any code of ours: what an audit is fed in tests."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from spsbench.base.paths import mini_dir

PROMPTS, PROMPT_TOKENS, TOKENS = 48, 8, 40


@cache
def _model(role: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(mini_dir() / role, dtype=torch.float32).eval()


def prompts(seed: int = 0) -> list[list[int]]:
    """Those of ``written``."""
    found: list[list[int]] = _prompts(torch.Generator().manual_seed(seed)).tolist()
    return found


def _prompts(generator: torch.Generator) -> torch.Tensor:
    return torch.randint(10, 1000, (PROMPTS, PROMPT_TOKENS), generator=generator)


def written(*, leak: float = 0.0, temperature: float = 1.0, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of prompt_ids and completion_ids, each token from the draft with probability ``leak``.

    ``temperature`` is that of the one who writes; 0 takes the most probable token.
    """
    texts = _texts(leak, temperature, seed).tolist()
    return [{"prompt_ids": t[:PROMPT_TOKENS], "completion_ids": t[PROMPT_TOKENS:]} for t in texts]


@cache
@torch.inference_mode()
def _texts(leak: float, temperature: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    target, draft = _model("target"), _model("draft")
    ids = _prompts(generator)
    caches, rows, text = [None, None], ids, ids
    for _ in range(TOKENS):
        logits = []
        for index, model in enumerate((target, draft)):
            output = model(input_ids=rows, past_key_values=caches[index], use_cache=True)
            caches[index] = output.past_key_values
            logits.append(output.logits[:, -1])
        leaked = torch.rand(PROMPTS, 1, generator=generator) < leak
        chosen = torch.where(leaked, logits[1], logits[0])
        if temperature:
            rows = torch.multinomial((chosen / temperature).softmax(-1), 1, generator=generator)
        else:
            rows = chosen.argmax(-1, keepdim=True)
        text = torch.cat([text, rows], 1)
    return text

"""Recurrent, hybrid and indexed families, tiny and random: loops with rejections against an uncached forward.

    python -m benchmarks.hybrids [FAMILY ...]

500 loops of K = 4 for each family, with random acceptance lengths, in texts of 50. A row of the table is the
largest difference of any accepted row, in shares of the largest logit, float32; then greedy SpS, with the
model's own first texts as drafts that are wrong at random places, against greedy ArS and ``generate``.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from spsbench.models import TorchLM

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

K, LOOPS, TEXT, PROMPT = 4, 500, 50, 24


@torch.inference_mode()
def worst_row(model: TorchLM, generator: torch.Generator, loops: int = LOOPS) -> float:
    """Return the largest difference in loops whose acceptance lengths are drawn."""
    worst = 0.0
    for _ in range(loops // TEXT):
        lengths = torch.randint(0, K + 1, (TEXT,), generator=generator).tolist()
        tokens = torch.randint(model.vocab_size, (PROMPT + sum(lengths) + TEXT + K,), generator=generator)
        wrong = (tokens + 1) % model.vocab_size
        model.begin(tokens[:PROMPT].tolist())
        rows: list[Tensor] = []
        for number, accepted in enumerate(lengths):
            start = model.length
            block = tokens[start : start + K + 1].clone()
            block[accepted + 1 :] = wrong[start + accepted + 1 : start + K + 1]
            parts = torch.split(block, 1 if number % 5 == 4 else K + 1)
            scored = torch.cat([model.score(part, last=len(part)).clone() for part in parts])
            rows.append(scored[: accepted + 1])
            model.rollback(start + accepted + 1)
        read = torch.cat(rows)
        full = model.score_uncached(tokens[: PROMPT - 1 + len(read)], last=len(read))
        worst = max(worst, float((read - full).abs().max() / full.abs().max()))
    return worst


@torch.inference_mode()
def greedy(model: TorchLM, prompt: list[int], count: int, generator: torch.Generator | None) -> list[int]:
    """Write greedily; with a generator in loops whose drafts are the text itself, wrong at random places."""
    text = [] if generator is None else greedy(model, prompt, count + K + 1, None)
    pending, out = model.begin(prompt), list[int]()
    while len(out) < count:
        if generator is None:
            out.append(int(model.score(pending, last=1).argmax()))
            pending = torch.tensor(out[-1:])
            continue
        draft = text[len(out) : len(out) + K]
        flips = torch.rand(K, generator=generator) < 0.3
        draft = [(token + int(flip)) % model.vocab_size for token, flip in zip(draft, flips, strict=True)]
        best = model.score(torch.tensor([int(pending), *draft]), last=K + 1).argmax(-1).tolist()
        accepted = next((i for i in range(K) if best[i] != draft[i]), K)
        out += [*draft[:accepted], best[accepted]]
        pending = torch.tensor(out[-1:])
        model.rollback(len(prompt) + len(out) - 1)
    return out[:count]


def by_generate(model: Any, prompt: list[int], count: int) -> list[int]:
    made = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        suppress_tokens=None,
        eos_token_id=None,
    )
    tokens: list[int] = made[0, len(prompt) :].tolist()
    return tokens


def main() -> None:
    tiny = import_module("support.tiny_models")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    print(f"{'family':16} {'how':7} {'worst row':>9} loops SpS=ArS ArS=generate", flush=True)
    for family in sys.argv[1:] or [*tiny.RECURRENT, *tiny.MORE_RECURRENT]:
        # Wider weights make some of these ill-conditioned: two dtypes of one forward then differ by 1e-4.
        inner = tiny.make(tiny.config_of(family, initializer_range=0.1))
        model = TorchLM(inner, tiny.TOKENS)
        generator = torch.Generator().manual_seed(1)
        worst = worst_row(model, generator)
        prompts = torch.randint(tiny.TOKENS, (3, PROMPT), generator=generator).tolist()
        alone = [greedy(model, prompt, 30, None) for prompt in prompts]
        sps = [greedy(model, prompt, 30, generator) for prompt in prompts]
        try:
            library = str(alone == [by_generate(inner, prompt, 30) for prompt in prompts])
        except Exception as error:
            library = f"{type(error).__name__}: {str(error)[:60]}"
        print(
            f"{family:16} {model.rolled_back_by:7} {worst:9.1e} {LOOPS} {sps == alone!s:7} {library}",
            flush=True,
        )


if __name__ == "__main__":
    main()

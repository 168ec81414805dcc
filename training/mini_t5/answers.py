"""What target and drafts answer to the task data, and how often each draft would have been accepted.

Plain batched ``generate()`` and forwards with the answer given, independent of the benchmark's own decoding
(see ``training.answers``).
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, T5ForConditionalGeneration

from training.answers import GREEDY, Agreement, Sampling, r_prime, warped
from training.gates import rows_of
from training.mini_t5.examples import SUMMARIZE, TRANSLATE
from training.mini_t5.model import SHAPES, load
from training.mini_t5.tokenizer import EOS_ID, PAD_ID

SAMPLINGS = {"greedy": GREEDY, "temperature 1": Sampling(1.0, 1.0)}
TEMPLATES = {"wmt": TRANSLATE, "cnndm": SUMMARIZE}
REFERENCES = {"wmt": "target", "cnndm": "highlights"}
MAX_NEW_TOKENS = 128
ROWS = 50
K = 4
WORKERS = 2


@dataclass(frozen=True)
class Answers:
    """The answers to one task under one sampling.

    Attributes:
        task, sampling: their names.
        texts: of target and drafts, by the model's name.
        references: what the answers are compared with.
        lengths: tokens of each of the target's answers, with EOS.
        alpha, r_prime: acceptance of each draft, and tokens per loop at K = 4 over K + 1.
    """

    task: str
    sampling: str
    texts: dict[str, list[str]]
    references: list[str]
    lengths: list[int]
    alpha: dict[str, float]
    r_prime: dict[str, float]


def all_answers(pair: Path, limit: int | None = None) -> list[Answers]:
    """Answers of the pair in a folder to its own task data, or to the first ``limit`` of each task.

    Each task under each sampling in a process of one thread.
    """
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        asked = [
            pool.submit(answers_to, pair, task, sampling, limit)
            for task in TEMPLATES
            for sampling in SAMPLINGS
        ]
        return [done.result() for done in asked]


def answers_to(pair: Path, task: str, sampling: str, limit: int | None) -> Answers:
    """Answers of the pair in a folder to one task under one sampling, both by name."""
    torch.set_num_threads(1)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(pair / "target")
    models = {name: load(pair / name) for name in SHAPES}
    rows, how = rows_of(pair / "data" / f"{task}.jsonl")[:limit], SAMPLINGS[sampling]
    sources = [tokenizer.encode(TEMPLATES[task].format(**row)) for row in rows]
    emitted = {name: generate(model, sources, how, seed=0) for name, model in models.items()}
    found = agreement(models, sources, emitted["target"], how)
    return Answers(
        task,
        sampling,
        {name: tokenizer.batch_decode(ids, skip_special_tokens=True) for name, ids in emitted.items()},
        [row[REFERENCES[task]] for row in rows],
        [len(ids) for ids in emitted["target"]],
        {draft: agreed.alpha for draft, agreed in found.items()},
        {draft: r_prime(agreed.chances, K) for draft, agreed in found.items()},
    )


def generate(
    model: T5ForConditionalGeneration, sources: list[list[int]], sampling: Sampling, seed: int
) -> list[list[int]]:
    """Emitted tokens for each source, with EOS."""
    torch.manual_seed(seed)
    how: dict[str, Any] = {"do_sample": False}
    if sampling.temperature > 0:
        how = {"do_sample": True, "top_k": 0, "top_p": sampling.top_p, "temperature": sampling.temperature}
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    emitted: dict[int, list[int]] = {}
    for begin in range(0, len(order), ROWS):
        rows = order[begin : begin + ROWS]
        width = max(len(sources[row]) for row in rows)
        ids = torch.tensor([sources[row] + [PAD_ID] * (width - len(sources[row])) for row in rows])
        with torch.inference_mode():
            outputs = model.generate(
                input_ids=ids, attention_mask=(ids != PAD_ID).long(), max_new_tokens=MAX_NEW_TOKENS, **how
            )
        emitted |= zip(rows, map(_until_eos, outputs[:, 1:].tolist()), strict=True)
    return [emitted[index] for index in range(len(sources))]


def _until_eos(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(EOS_ID) + 1] if EOS_ID in tokens else tokens


def agreement(
    models: dict[str, T5ForConditionalGeneration],
    sources: list[list[int]],
    emitted: list[list[int]],
    sampling: Sampling,
) -> dict[str, Agreement]:
    """How each draft agrees with the target on what the target emitted."""
    found = {name: Agreement([], []) for name in models if name != "target"}
    for source, tokens in zip(sources, emitted, strict=True):
        rows = {name: _distributions(model, source, tokens, sampling) for name, model in models.items()}
        chosen = torch.tensor(tokens)[:, None]
        for name, agreed in found.items():
            shares = rows[name].gather(1, chosen) / rows["target"].gather(1, chosen).clamp_min(1e-9)
            agreed.chances.append(shares[:, 0].clamp_max(1.0).tolist())
            agreed.overlaps.append(torch.minimum(rows["target"], rows[name]).sum(-1).tolist())
    return found


def _distributions(
    model: T5ForConditionalGeneration, source: list[int], tokens: list[int], sampling: Sampling
) -> torch.Tensor:
    """What the model draws each of ``tokens`` from, [n, V]."""
    decoder = torch.tensor([[PAD_ID, *tokens[:-1]]])
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([source]), decoder_input_ids=decoder, use_cache=False).logits
    return warped(logits[0], sampling)

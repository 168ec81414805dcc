"""Models and loops for the tests that derive every decision of an output anew."""

from __future__ import annotations

from functools import cache

import torch
from support.tiny_models import make_pair

from spsbench.base.records import Generation, Request
from spsbench.config import resolve
from spsbench.config.models import TORCH
from spsbench.engines.rescore import teacher_force
from spsbench.engines.rows_held import rows_held_against
from spsbench.law.evidence import Sums
from spsbench.models.causal_lm import CausalLM
from spsbench.models.pair import find_pair, load_pair
from spsbench.models.tokenizer import Tokenizer
from spsbench.models.torch_lm import TorchLM

Models = tuple[CausalLM, CausalLM]


@cache
def tiny(architecture: str = "llama", dtype: torch.dtype = torch.float32) -> Models:
    """Target and draft with random weights."""
    target, draft = make_pair(architecture, late=0.5)
    return TorchLM(target.to(dtype)), TorchLM(draft.to(dtype))


@cache
def mini() -> tuple[Models, Tokenizer]:
    """The embedded pair."""
    pair = load_pair(find_pair(resolve({}).pair), ("float32", "float32"), torch.device("cpu"), TORCH)
    return (pair.target, pair.draft), pair.tokenizer


def decisions(models: Models, asked: Request, generation: Generation, k: int) -> Sums:
    """The sums over the decisions of an output, each derived once more, and over the rows that they had.

    In float32 a row that contradicts an independent forward counts as a decision that does.
    """
    target, draft = models
    prompt, sampling = asked.prompt_ids, asked.sampling
    reading = teacher_force(target, draft, prompt, generation.tokens, sampling)
    sums = generation.losslessness or {}
    if kept := generation.kept_rows:
        given = (prompt, k, asked.seed)
        assert reading.draft_logits is not None
        for role, model, rows in (("target", target, kept.target), ("draft", draft, kept.draft)):
            sums = sums | rows_held_against(role, model, rows, generation, reading, *given)
    found = {name: value for name, value in sums.items() if name.startswith("decisions")}
    if found:
        beyond = sum(value for name, value in found.items() if name.endswith("_beyond"))
        found["decisions_contradicted"] += beyond
    return found

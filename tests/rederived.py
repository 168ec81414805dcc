"""Models and loops for the tests that derive every decision of an output anew."""

from __future__ import annotations

from functools import cache

import torch
from tiny_models import make_pair

from spsbench.config import resolve
from spsbench.config.models import TORCH
from spsbench.drafters.registry import Policy
from spsbench.engines.rescore import decided_again, teacher_force
from spsbench.law.evidence import Sums
from spsbench.models.causal_lm import CausalLM
from spsbench.models.pair import find_pair, load_pair
from spsbench.models.tokenizer import Tokenizer
from spsbench.models.torch_lm import TorchLM
from spsbench.records import Generation, Request

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


def decisions(
    models: Models, asked: Request, generation: Generation, k: int, policy: Policy | None = None
) -> Sums:
    """The sums over the decisions of an output, each derived once more from uncached forwards."""
    target, draft = models
    reading = teacher_force(target, draft, asked.prompt_ids, generation.tokens, asked.sampling)
    sums = decided_again(reading, generation, asked.sampling, k, asked.seed, target.model.dtype, policy)
    return {name: value for name, value in sums.items() if name.startswith("decisions")}

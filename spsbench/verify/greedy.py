"""Greedy SpS must write what greedy ArS writes, except for ties that rounding decides."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import torch

from spsbench.decode.algorithms import start
from spsbench.decode.clock import FakeClock, Stopwatch
from spsbench.decode.sampling import UniformStream
from spsbench.models.causal_lm import CausalLM
from spsbench.models.torch_lm import TorchLM
from spsbench.records import SamplingParams
from spsbench.verify.finding import Finding
from spsbench.verify.subject import SamplerUnderTest

TOKENS = 48
_GREEDY = SamplingParams(greedy=True)
_COPY_LIMIT_PARAMETERS = 2_000_000_000


@torch.inference_mode()
def greedy_identity(
    subject: SamplerUnderTest, prompts: Sequence[Sequence[int]], row_difference: float
) -> Finding:
    """Compare the greedy outputs token by token and judge where they first part.

    At a difference the two best logits are compared again in float32, without a cache. A gap of at
    most twice what the row count changes is a numeric tie; a larger one is a bug.

    Args:
        row_difference: largest difference of logits between one and K+1 rows.
    """
    greedy = replace(subject, sampling=_GREEDY)
    witness: CausalLM | None = None
    ties, bugs, same, first = 0, 0, 0, None
    widest = 0.0
    for prompt in prompts:
        plain, speculative = _plain(greedy, prompt), _speculative(greedy, prompt)
        parting = next((i for i, (a, b) in enumerate(zip(plain, speculative, strict=False)) if a != b), None)
        if parting is None:
            same += 1
            continue
        first = parting if first is None else min(first, parting)
        witness = witness or _in_float32(subject.target)
        gap = _gap(witness, [*prompt, *plain[:parting]], plain[parting], speculative[parting])
        widest = max(widest, gap)
        ties, bugs = (ties + 1, bugs) if gap <= 2 * row_difference else (ties, bugs + 1)
    found = f"{same} of {len(prompts)} outputs identical, {ties} numeric ties, {bugs} bugs"
    return Finding(
        "greedy",
        bugs == 0,
        found if first is None else f"{found}; first parting at token {first}, widest gap {widest:.2g}",
        f"any greedy difference in {len(prompts)} outputs of {TOKENS} tokens that rounding does not explain",
        {
            "outputs": len(prompts),
            "identical": same,
            "numeric_ties": ties,
            "bugs": bugs,
            "first_parting": first,
            "widest_gap": widest,
            "tie_limit": 2 * row_difference,
        },
    )


def _plain(subject: SamplerUnderTest, prompt: Sequence[int]) -> list[int]:
    """Greedy ArS, untouched by any control."""
    loops = start(subject.target, None, prompt, 0, _GREEDY, UniformStream(0, subject.device))
    return [loop.tokens[0] for loop in islice(loops(Stopwatch(FakeClock())), TOKENS)]


def _speculative(subject: SamplerUnderTest, prompt: Sequence[int]) -> list[int]:
    """Greedy SpS, with the subject's control."""
    tokens: list[int] = []
    drafter = subject.build_drafter(_GREEDY)
    with subject.loops(subject.target, drafter, prompt, seed=0) as begin:
        loops = begin()
        while len(tokens) < TOKENS:
            tokens += next(loops).tokens
    return tokens[:TOKENS]


def _gap(witness: CausalLM, context: Sequence[int], one: int, other: int) -> float:
    """How far apart two tokens' logits are after a context, by an uncached forward."""
    row = witness.score_uncached(torch.tensor(context, device=witness.device), last=1)[0].float()
    return abs(float(row[one] - row[other]))


def _in_float32(model: CausalLM) -> CausalLM:
    """A float32 copy of a model of lower precision, if it is small enough to copy."""
    exact = model.dtype in (torch.float32, torch.float64)
    if exact or model.parameters > _COPY_LIMIT_PARAMETERS:
        return model
    return TorchLM(copy.deepcopy(model.reference().model).float(), model.vocab_size)

"""Tests of whole outputs: greedy SpS against greedy ArS, and sampled ones against an uncached forward."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import torch

from spsbench.decode.algorithms import start
from spsbench.decode.clock import FakeClock, Stopwatch, SystemClock
from spsbench.decode.sampling import UniformStream
from spsbench.decode.stopping import TextDecoder
from spsbench.engines.local import EagerEngine
from spsbench.engines.rescore import rescored, teacher_force
from spsbench.law.evidence import MIXTURES, POWERS, Sums
from spsbench.models.causal_lm import CausalLM
from spsbench.models.torch_lm import TorchLM
from spsbench.records import RESCORED, Request, SamplingParams
from spsbench.verify.controls import planted
from spsbench.verify.effort import Finding
from spsbench.verify.subject import SamplerUnderTest

_GREEDY_TOKENS, TOKENS = 48, 64
_GREEDY = SamplingParams(greedy=True)
_COPY_LIMIT_PARAMETERS = 2_000_000_000
ALARM = 1000.0
_ONE_SIDED_95 = 1.645


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
    partings: list[int] = []
    gaps: list[float] = []
    for prompt in prompts:
        plain, speculative = _greedy_outputs(greedy, prompt)
        parting = next((i for i, (a, b) in enumerate(zip(plain, speculative, strict=False)) if a != b), None)
        if parting is not None:
            witness = witness or _in_float32(subject.target)
            context = torch.tensor([*prompt, *plain[:parting]], device=witness.device)
            row = witness.score_uncached(context, last=1)[0].float()
            partings.append(parting)
            gaps.append(abs(float(row[plain[parting]] - row[speculative[parting]])))
    same, bugs = len(prompts) - len(gaps), sum(gap > 2 * row_difference for gap in gaps)
    found = f"{same} of {len(prompts)} outputs identical, {len(gaps) - bugs} numeric ties, {bugs} bugs"
    first, widest = min(partings, default=None), max(gaps, default=0.0)
    return Finding(
        "greedy",
        bugs == 0,
        found if first is None else f"{found}; first parting at token {first}, widest gap {widest:.2g}",
        f"any greedy difference in {len(prompts)} outputs of {_GREEDY_TOKENS} tokens that rounding does not "
        "explain",
        {
            "outputs": len(prompts),
            "identical": same,
            "numeric_ties": len(gaps) - bugs,
            "bugs": bugs,
            "first_parting": first,
            "widest_gap": widest,
            "tie_limit": 2 * row_difference,
        },
    )


def _greedy_outputs(subject: SamplerUnderTest, prompt: Sequence[int]) -> tuple[list[int], list[int]]:
    """By ArS, untouched by any control, and by SpS with the subject's."""
    loops = start(subject.target, None, prompt, 0, _GREEDY, UniformStream(0, subject.device))
    plain = [loop.tokens[0] for loop in islice(loops(Stopwatch(FakeClock())), _GREEDY_TOKENS)]
    tokens: list[int] = []
    drafter = subject.build_drafter(_GREEDY)
    with subject.loops(subject.target, drafter, prompt, seed=0) as begin:
        speculative = begin()
        while len(tokens) < _GREEDY_TOKENS:
            tokens += next(speculative).tokens
    return plain, tokens[:_GREEDY_TOKENS]


def _in_float32(model: CausalLM) -> CausalLM:
    """A float32 copy of a model of lower precision, if it is small enough to copy."""
    exact = model.dtype in (torch.float32, torch.float64)
    if exact or model.parameters > _COPY_LIMIT_PARAMETERS:
        return model
    return TorchLM(copy.deepcopy(model.reference().model).float(), model.vocab_size)


def rescored_outputs(
    subject: SamplerUnderTest, prompts: Sequence[Sequence[int]], decoder: TextDecoder
) -> Finding:
    """Measure leakage of the draft into outputs of the engine, and e-values against other distributions."""
    engine = EagerEngine(
        subject.target,
        subject.draft,
        subject.k,
        decoder,
        subject.device,
        SystemClock(),
        subject.build_rule(),
        subject.build_drafter,
    )
    total: Sums = {}
    for seed, prompt in enumerate(prompts, start=subject.seed):
        request = Request(tuple(prompt), TOKENS, (), subject.sampling, seed=seed, fixed_length=True)
        with planted(subject.control, subject.target):
            tokens = engine.generate(request).tokens
        sums = rescored(teacher_force(subject.target, subject.draft, prompt, tokens, subject.sampling), seed)
        for name, value in sums.items():
            short = name.removeprefix(RESCORED)
            total[short] = total.get(short, 0.0) + value
    return _judged(total, len(prompts))


def _judged(total: Sums, outputs: int) -> Finding:
    names = [f"log_e_mixture_{x}" for x in MIXTURES] + [f"log_e_power_{x}" for x in POWERS]
    e_value = sum(math.exp(min(total.get(name, 0.0), 700.0)) for name in names) / len(names)
    information, impossible = total.get("leak_information", 0.0), total["impossible"]
    numbers: dict[str, float | int | str | None] = {"outputs": outputs, "e_value": e_value, **total}
    passed, leakage = e_value < ALARM and impossible == 0, "nothing was left to chance"
    if information > 0:
        estimate = total["leak_score"] / information
        error = math.sqrt(total["leak_var"]) / information
        bound = max(estimate, 0.0) + _ONE_SIDED_95 * error
        # An estimate beside an "ok" reads as a leak that was found; there its noise alone is known.
        leakage = f"leakage {estimate:.2%}, at most {bound:.2%}"
        if passed:
            leakage = f"no sign of a leak; one above {min(bound, 1.0):.1%} would have been seen (95%)"
        numbers |= {"leakage": estimate, "leakage_error": error, "leakage_bound": bound}
    return Finding(
        "outputs",
        passed,
        f"{leakage}, e-value {e_value:.2g}, {impossible:.0f} impossible tokens",
        f"alarm at an e-value of {ALARM:.0f}: at most one false alarm in {ALARM:.0f}, whenever evaluated",
        numbers,
    )

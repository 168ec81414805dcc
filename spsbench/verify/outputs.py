"""Tier 2: whole outputs of the engine, tested by an uncached forward without loops."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spsbench.decode.clock import SystemClock
from spsbench.decode.stopping import TextDecoder
from spsbench.engines.local import EagerEngine
from spsbench.engines.rescore import rescore
from spsbench.law.evidence import MIXTURES, POWERS, Sums
from spsbench.records import RESCORED, Request
from spsbench.verify.controls import planted
from spsbench.verify.finding import Finding
from spsbench.verify.subject import SamplerUnderTest

TOKENS = 64
ALARM = 1000.0
_ONE_SIDED_95 = 1.645


def rescored_outputs(
    subject: SamplerUnderTest, prompts: Sequence[Sequence[int]], decoder: TextDecoder
) -> Finding:
    """Leakage of the draft into real outputs, and e-values against other distributions."""
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
    for index, prompt in enumerate(prompts):
        request = Request(
            tuple(prompt), TOKENS, (), subject.sampling, seed=subject.seed + index, fixed_length=True
        )
        with planted(subject.control, subject.target):
            tokens = engine.generate(request).tokens
        sums = rescore(subject.target, subject.draft, prompt, tokens, subject.sampling, request.seed)
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

"""All tests of the sampler together, for one sampling or as a matrix of planted faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import torch

from spsbench.base import FIXED, MODEL, SamplingParams, UsageError
from spsbench.decode import TextDecoder
from spsbench.drafters import HIDDEN, DrafterFault, build_drafter, drafter_kind, rule_kind, siblings_of
from spsbench.law import Sums, added
from spsbench.parts.verify.analytic import analytic
from spsbench.parts.verify.controls import SHARED, planted, planted_everywhere
from spsbench.parts.verify.draft_faults import FAULTS as DRAFT_FAULTS
from spsbench.parts.verify.effort import FAULTS, LOSSY, Effort, Finding, measured, skipped
from spsbench.parts.verify.messages import LogitDifference, NotOnTables
from spsbench.parts.verify.outputs import (
    decided_outputs,
    end_to_end_draws,
    greedy_identity,
    output_sums,
    remembered_draws,
    rescored_outputs,
)
from spsbench.parts.verify.parts import (
    SIZE,
    booked_time,
    enumerated,
    independent_uniforms,
    kept_contract,
    same_warp,
)
from spsbench.parts.verify.subject import SamplerUnderTest, telling_contexts, written
from spsbench.testing import context_of

TESTS = (
    "enumeration",
    "rows",
    "warp",
    "uniforms",
    "clock",
    "analytic",
    "greedy",
    "sampling",
    "end to end",
    "outputs",
    "decisions",
)
"""What a planted fault is put to; ``contract`` comes before, where nothing is planted, and only a drafter's
fault is enumerated."""

OF_THE_LAW = frozenset(
    {"enumeration", "analytic", "greedy", "sampling", "end to end", "outputs", "decisions"}
)
"""What a rule that is lossy by design need not pass."""

Contexts = list[tuple[int, ...]]


def findings(
    subject: SamplerUnderTest,
    prompts: Sequence[Sequence[int]],
    decoder: TextDecoder,
    effort: Effort,
    contexts: Contexts | None = None,
) -> Iterator[Finding]:
    """Run every test that says something about the subject's sampling.

    A drafter's fault is a finding, and what a rule does that is lossy by design is not a failure.
    """
    if subject.shape is not None:
        rule_kind(subject.rule.name).require_tree(siblings_of(subject.drafter))
        if HIDDEN in drafter_kind(subject.drafter.name).needs_of(subject.drafter):
            raise UsageError(
                f"{subject.drafter} reads states of the target, whose branches are read in line here.",
                flag="--drafter",
                remedy=f"Verify the rule with --drafter {MODEL} and the same tree.",
            )
    few = prompts[: effort.prompts]
    with_fault = planted(subject.control, subject.target)

    def tests() -> Iterator[tuple[str, Callable[[], Finding]]]:
        """Yield the tests, first of the sampler's parts, then of its outputs."""
        yield from _drafter_tests(subject, few, effort)
        yield "rows", lambda: row_difference(subject, few[:2])
        yield "warp", with_fault(lambda: same_warp(subject, few))
        yield "uniforms", with_fault(lambda: independent_uniforms(subject))
        yield "clock", with_fault(lambda: no_tree(subject, "clock") or _clock(subject, decoder))
        yield "analytic", lambda: no_tree(subject, "analytic") or analytic(subject, few)
        if subject.sampling.greedy:
            difference = row_difference(subject, prompts[:2]).numbers["difference"]
            yield "greedy", lambda: greedy_identity(subject, few, float(difference or 0))
        else:
            where = contexts or _draw_contexts(subject, prompts, effort)
            yield "sampling", lambda: remembered_draws(subject, where, effort.draws)
            yield "end to end", lambda: end_to_end_draws(subject, where[:1], effort.end_to_end)
        outputs_of = prompts[: effort.outputs]
        sums = cache(lambda: output_sums(subject, outputs_of, decoder))
        yield "outputs", lambda: rescored_outputs(sums()[0], len(outputs_of))
        yield "decisions", lambda: decided_outputs(sums()[1], len(outputs_of), subject.rule)

    with planted_everywhere(subject.control):
        for test, run in tests():
            try:
                finding = run()
            except DrafterFault as fault:
                finding = Finding(test, False, str(fault), fault=str(fault))
            else:
                if test in OF_THE_LAW and not (subject.is_lossless or finding.unjudged):
                    finding = replace(finding, passed=True, bounds="nothing", unjudged=LOSSY)
            yield finding


def _drafter_tests(
    subject: SamplerUnderTest, prompts: Sequence[Sequence[int]], effort: Effort
) -> Iterator[tuple[str, Callable[[], Finding]]]:
    """Where nothing is planted, or a drafter's fault."""
    if subject.control is None:
        yield "contract", lambda: kept_contract(subject, prompts)
    if subject.control is None or subject.control in DRAFT_FAULTS:
        with_fault = planted(subject.control, subject.target)
        yield "enumeration", with_fault(lambda: enumerated(subject, effort.tables, effort.wide_tables))


def no_tree(subject: SamplerUnderTest, test: str) -> Finding | None:
    """Return the finding that a test of chains does not apply to trees."""
    return skipped(test, "drafts are trees") if subject.shape is not None else None


_TOKENS = 24
_LIMIT = {torch.float32: 1e-3, torch.float64: 1e-9}
_COARSE_LIMIT = 1e-1


@torch.inference_mode()
def row_difference(subject: SamplerUnderTest, prompts: Sequence[Sequence[int]]) -> Finding:
    """Return the largest difference between logits of the target's text scored one row and K+1 rows at a
    time.

    Kernels differ by row count, so it is not 0; twice this is how close two best logits must be for
    greedy SpS and greedy ArS to differ without a bug.
    """
    worst, scale = 0.0, 0.0
    for prompt in prompts:
        text = written(subject, prompt, subject.seed)
        tail = torch.tensor(text[-_TOKENS:], device=subject.device)
        rows: list[torch.Tensor] = []
        for size in (1, subject.k + 1):
            subject.target.begin(text[: 1 - _TOKENS])
            blocks = torch.split(tail, size)
            rows.append(torch.cat([subject.target.score(block, last=len(block)).clone() for block in blocks]))
        worst = max(worst, float((rows[0].double() - rows[1].double()).abs().max()))
        scale = max(scale, float(rows[0].abs().max()))
    limit = _LIMIT.get(subject.target.dtype, _COARSE_LIMIT)
    return measured("rows", worst <= limit * scale, LogitDifference(worst, scale, limit, subject.k + 1))


def _clock(subject: SamplerUnderTest, decoder: TextDecoder) -> Finding:
    """Test the clock. A drafter other than the draft model is timed on tables, where its time is known."""
    if (subject.drafter.name, subject.policy.name) == (MODEL, FIXED):
        return booked_time(subject.k, decoder, rule=subject.build_rule())
    needs = drafter_kind(subject.drafter.name).needs_of(subject.drafter)
    policy = str(subject.policy)
    context = context_of(SIZE, SamplingParams(), policy, needs=needs)
    try:
        drafter = build_drafter(subject.drafter, context)
    except (UsageError, DrafterFault) as error:
        return skipped("clock", NotOnTables(error))
    return booked_time(subject.k, decoder, lambda: drafter, subject.build_rule())


def _draw_contexts(subject: SamplerUnderTest, prompts: Sequence[Sequence[int]], effort: Effort) -> Contexts:
    """Chosen without the sampler, so the same for any sampler."""
    return telling_contexts(subject, prompts[: max(effort.prompts, effort.contexts)], effort.contexts)


def control_matrix(
    subject: SamplerUnderTest,
    prompts: Sequence[Sequence[int]],
    decoder: TextDecoder,
    effort: Effort,
    done: Callable[[str, list[Finding]], None],
) -> dict[str, dict[str, bool]]:
    """Run every test against every control; True where the test found it out."""
    matrix: dict[str, dict[str, bool]] = {}
    # A wrong sampler does not change them; a fault that is shared does, and chooses its own.
    contexts = None if subject.sampling.greedy else _draw_contexts(subject, prompts, effort)
    for name in FAULTS:
        shared = None if name in SHARED else contexts
        results = list(findings(replace(subject, control=name), prompts, decoder, effort, shared))
        if name not in SHARED and all(finding.passed for finding in results):
            more = decided_by_more(replace(subject, control=name), prompts[: effort.outputs], decoder)
            results = [more if finding.test == more.test else finding for finding in results]
        matrix[name] = {finding.test: not finding.passed for finding in results}
        done(name, results)
    return matrix


_MORE = 16


def decided_by_more(
    subject: SamplerUnderTest, prompts: Sequence[Sequence[int]], decoder: TextDecoder
) -> Finding:
    """Derive the decisions of the same prompts with other seeds, until one contradicts, at most ``_MORE``
    times.

    A mild fault decides otherwise now and then: lenience of .9 on the embedded pair in one of 1,500.
    """
    total, outputs = Sums(), 0
    for again in range(1, _MORE + 1):
        _, decisions = output_sums(replace(subject, seed=subject.seed + 1_000 * again), prompts, decoder)
        total = added(total, decisions)
        outputs += len(prompts)
        finding = decided_outputs(total, outputs, subject.rule)
        if not finding.passed or finding.unjudged:
            break
    return finding

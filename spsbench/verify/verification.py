"""All tests of the sampler together, for one sampling or as a matrix of controls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from spsbench.axes import FIXED, MODEL
from spsbench.decode.stopping import TextDecoder
from spsbench.drafters.checked import DrafterFault
from spsbench.drafters.registry import build_drafter, drafter_kind
from spsbench.errors import UsageError
from spsbench.records import SamplingParams
from spsbench.testing import context_of
from spsbench.verify.analytic import analytic
from spsbench.verify.controls import NAMES, SHARED, planted, planted_everywhere
from spsbench.verify.drafting import enumerated, kept_contract
from spsbench.verify.effort import Effort
from spsbench.verify.finding import LOSSY, Finding, row_difference, skipped
from spsbench.verify.greedy import greedy_identity
from spsbench.verify.outputs import rescored_outputs
from spsbench.verify.sampling import end_to_end_draws, remembered_draws
from spsbench.verify.streams import independent_uniforms
from spsbench.verify.subject import SamplerUnderTest, telling_contexts
from spsbench.verify.timing import SIZE, booked_time
from spsbench.verify.warping import same_warp

TESTS = ("rows", "warp", "uniforms", "clock", "analytic", "greedy", "sampling", "end to end", "outputs")
"""What a planted fault is put to. ``contract`` and ``enumeration`` come before, where nothing is planted."""

OF_THE_LAW = frozenset({"enumeration", "analytic", "greedy", "sampling", "end to end", "outputs"})
"""What a rule that is lossy by design need not pass."""


Contexts = list[tuple[int, ...]]


def findings(
    subject: SamplerUnderTest,
    prompts: Sequence[Sequence[int]],
    decoder: TextDecoder,
    effort: Effort,
    contexts: Contexts | None = None,
) -> Iterator[Finding]:
    """Run every test that says something about the subject's sampling."""
    with planted_everywhere(subject.control):
        yield from _of_parts(subject, prompts[: effort.prompts], decoder, effort)
        yield from _of_whole(subject, prompts, decoder, effort, contexts)


def _judged(subject: SamplerUnderTest, test: str, run: Callable[[], Finding]) -> Finding:
    """What a test found; a drafter's fault is a finding, and what a lossy rule does is not a failure."""
    try:
        found = run()
    except DrafterFault as fault:
        return Finding(test, False, str(fault), "nothing", fault=str(fault))
    if subject.is_lossless or found.unjudged or test not in OF_THE_LAW:
        return found
    return replace(found, passed=True, bounds="nothing", unjudged=LOSSY)


def _of_parts(
    subject: SamplerUnderTest, prompts: Sequence[Sequence[int]], decoder: TextDecoder, effort: Effort
) -> Iterator[Finding]:
    """What the sampler is made of: drafter, rule, rows, warper, uniform numbers, clock."""
    if subject.control is None:
        yield _judged(subject, "contract", lambda: kept_contract(subject, prompts))
        tables = effort.tables, effort.wide_tables
        yield _judged(subject, "enumeration", lambda: enumerated(subject, *tables))
    yield row_difference(replace(subject, control=None), prompts[:2])
    with planted(subject.control, subject.target):
        yield same_warp(subject, prompts)
        yield independent_uniforms(subject)
        yield _judged(subject, "clock", lambda: _clock(subject, decoder))


def _clock(subject: SamplerUnderTest, decoder: TextDecoder) -> Finding:
    """A drafter that is not the draft model is timed as one that takes a known time, on tables."""
    if (subject.drafter.name, subject.policy.name) == (MODEL, FIXED):
        return booked_time(subject.k, decoder, rule=subject.build_rule())
    needs, policy = drafter_kind(subject.drafter.name).needs_of(subject.drafter), str(subject.policy)
    context = context_of(SIZE, SamplingParams(), policy, needs=needs)
    try:
        drafter = build_drafter(subject.drafter, context)
    except (UsageError, DrafterFault) as error:
        return skipped("clock", f"it cannot be built on a table of probabilities: {error}")
    return booked_time(subject.k, decoder, lambda: drafter, subject.build_rule())


def _of_whole(
    subject: SamplerUnderTest,
    prompts: Sequence[Sequence[int]],
    decoder: TextDecoder,
    effort: Effort,
    contexts: Contexts | None,
) -> Iterator[Finding]:
    """What the sampler writes."""
    few = prompts[: effort.prompts]
    tests: dict[str, Callable[[], Finding]] = {"analytic": lambda: analytic(subject, few)}
    if subject.sampling.greedy:
        difference = row_difference(replace(subject, control=None), prompts[:2]).numbers["difference"]
        tests["greedy"] = lambda: greedy_identity(subject, few, float(difference or 0))
    else:
        where = contexts or _contexts(subject, prompts, effort)
        tests["sampling"] = lambda: remembered_draws(subject, where, effort.draws)
        tests["end to end"] = lambda: end_to_end_draws(subject, where[:1], effort.end_to_end)
    tests["outputs"] = lambda: rescored_outputs(subject, prompts[: effort.outputs], decoder)
    for test, run in tests.items():
        yield _judged(subject, test, run)


def _contexts(subject: SamplerUnderTest, prompts: Sequence[Sequence[int]], effort: Effort) -> Contexts:
    """Where draws are made: chosen without the sampler, so with any sampler in place."""
    return telling_contexts(subject, prompts[: max(effort.prompts, effort.contexts)], effort.contexts)


Row = dict[str, bool]


def control_matrix(
    subject: SamplerUnderTest,
    prompts: Sequence[Sequence[int]],
    decoder: TextDecoder,
    effort: Effort,
    done: Callable[[str, list[Finding]], None],
) -> dict[str, Row]:
    """Every control against every test; True where the test found it out."""
    matrix: dict[str, Row] = {}
    # A wrong sampler does not change them; a fault that is shared does, and chooses its own.
    contexts = None if subject.sampling.greedy else _contexts(subject, prompts, effort)
    for name in NAMES:
        shared = None if name in SHARED else contexts
        found = list(findings(replace(subject, control=name), prompts, decoder, effort, shared))
        matrix[name] = {finding.test: not finding.passed for finding in found}
        done(name, found)
    return matrix

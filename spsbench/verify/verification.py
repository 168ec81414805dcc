"""All tests of the sampler in one go, for one sampling or as a matrix of controls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from spsbench.decode.stopping import TextDecoder
from spsbench.verify.analytic import analytic
from spsbench.verify.controls import NAMES, SHARED, planted, planted_everywhere
from spsbench.verify.finding import Finding, row_difference
from spsbench.verify.greedy import greedy_identity
from spsbench.verify.outputs import rescored_outputs
from spsbench.verify.sampling import end_to_end_draws, remembered_draws
from spsbench.verify.streams import independent_uniforms
from spsbench.verify.subject import SamplerUnderTest, telling_contexts
from spsbench.verify.timing import booked_time
from spsbench.verify.warping import same_warp

TESTS = ("rows", "warp", "uniforms", "clock", "analytic", "greedy", "sampling", "end to end", "outputs")


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is drawn and read.

    Attributes:
        draws: a context, on remembered rows; 20,000 find a total variation of .023 with 99% power.
        end_to_end: draws in one context with every forward done anew.
        contexts: where draws are made.
        prompts: read by the tests of the warper, of the formulas and of greedy.
        outputs: generated and read again.
    """

    draws: int = 20_000
    end_to_end: int = 2_000
    contexts: int = 2
    prompts: int = 8
    outputs: int = 16

    @classmethod
    def reduced(cls) -> Effort:
        """Enough to catch every control, in seconds each."""
        return cls(draws=200, end_to_end=300, contexts=10, prompts=4, outputs=10)

    @property
    def needed(self) -> int:
        """How many prompts the tests want; each gives one context at most."""
        return max(self.prompts, self.contexts, self.outputs)


Contexts = list[tuple[int, ...]]


def findings(
    subject: SamplerUnderTest,
    prompts: Sequence[Sequence[int]],
    decoder: TextDecoder,
    effort: Effort,
    contexts: Contexts | None = None,
) -> Iterator[Finding]:
    """Run every test that says something about the subject's sampling.

    Args:
        subject: the sampler under test.
        prompts: of the task, at least one.
        decoder: of the pair's tokens.
        effort: sizes.
        contexts: where draws are made, if that is known.

    Yields:
        one finding a test, as soon as it is there.
    """
    with planted_everywhere(subject.control):
        yield from _of_parts(subject, prompts[: effort.prompts], decoder)
        yield from _of_whole(subject, prompts, decoder, effort, contexts)


def _of_parts(
    subject: SamplerUnderTest, prompts: Sequence[Sequence[int]], decoder: TextDecoder
) -> Iterator[Finding]:
    """What the sampler is made of: rows, warper, uniform numbers, clock."""
    yield row_difference(replace(subject, control=None), prompts[:2])
    with planted(subject.control, subject.target):
        yield same_warp(subject, prompts)
        yield independent_uniforms(subject)
        yield booked_time(subject.k, decoder)


def _of_whole(
    subject: SamplerUnderTest,
    prompts: Sequence[Sequence[int]],
    decoder: TextDecoder,
    effort: Effort,
    contexts: Contexts | None,
) -> Iterator[Finding]:
    """What the sampler writes."""
    few = prompts[: effort.prompts]
    yield analytic(subject, few)
    if subject.sampling.greedy:
        difference = row_difference(replace(subject, control=None), prompts[:2]).numbers["difference"]
        yield greedy_identity(subject, few, float(difference or 0))
    else:
        contexts = contexts or _contexts(subject, prompts, effort)
        yield remembered_draws(subject, contexts, effort.draws)
        yield end_to_end_draws(subject, contexts[:1], effort.end_to_end)
    yield rescored_outputs(subject, prompts[: effort.outputs], decoder)


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
    """Every control against every test; True where the test found it out.

    Args:
        subject: the sampler; its own control is ignored.
        prompts, decoder, effort: see ``findings``.
        done: told after each control, for progress.
    """
    matrix: dict[str, Row] = {}
    # A wrong sampler does not change them; a fault that is shared does, and chooses its own.
    contexts = None if subject.sampling.greedy else _contexts(subject, prompts, effort)
    for name in NAMES:
        shared = None if name in SHARED else contexts
        found = list(findings(replace(subject, control=name), prompts, decoder, effort, shared))
        matrix[name] = {finding.test: not finding.passed for finding in found}
        done(name, found)
    return matrix

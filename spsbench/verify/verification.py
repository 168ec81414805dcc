"""All tests of the sampler in one go, for one sampling or as a matrix of controls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from spsbench.tasks.stopping import TextDecoder
from spsbench.verify.analytic import analytic
from spsbench.verify.contexts import telling_contexts
from spsbench.verify.controls import CONTROLS
from spsbench.verify.finding import Finding
from spsbench.verify.greedy import greedy_identity
from spsbench.verify.outputs import rescored_outputs
from spsbench.verify.rows import row_difference
from spsbench.verify.sampling import end_to_end_draws, remembered_draws
from spsbench.verify.subject import Subject

TESTS = ("rows", "analytic", "greedy", "sampling", "end to end", "outputs")


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is drawn and read.

    Attributes:
        draws: a context, on remembered rows; 20,000 find a total variation of .023 with 99% power.
        end_to_end: draws in one context with every forward done anew.
        contexts: where draws are made.
        prompts: read by the analytic and the greedy test.
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
        return cls(draws=1_500, end_to_end=300, contexts=1, prompts=4, outputs=10)


def findings(
    subject: Subject, prompts: Sequence[Sequence[int]], decoder: TextDecoder, effort: Effort
) -> Iterator[Finding]:
    """Run every test that says something about the subject's sampling.

    Args:
        subject: the sampler under test.
        prompts: of the task, at least one.
        decoder: of the pair's tokens.
        effort: sizes.

    Yields:
        one finding a test, as soon as it is there.
    """
    honest = replace(subject, control=None)
    rows = row_difference(honest, prompts[:2])
    yield rows
    yield analytic(subject, prompts[: effort.prompts])
    if subject.sampling.greedy:
        yield greedy_identity(subject, prompts[: effort.prompts], float(rows.numbers["difference"] or 0))
    else:
        contexts = telling_contexts(honest, prompts[: effort.prompts], effort.contexts)
        yield remembered_draws(subject, contexts, effort.draws)
        yield end_to_end_draws(subject, contexts[:1], effort.end_to_end)
    yield rescored_outputs(subject, prompts[: effort.outputs], decoder)


Row = dict[str, bool]


def control_matrix(
    subject: Subject,
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
    for name in CONTROLS:
        found = list(findings(replace(subject, control=name), prompts, decoder, effort))
        matrix[name] = {finding.test: not finding.passed for finding in found}
        done(name, found)
    return matrix

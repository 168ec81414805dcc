"""The stages of a loop: what a backend does as one program, with no host in between.

propose
    K forwards of the draft, each row warped and a token drawn from it by its uniform number.
verify
    One forward of the target over the pending token and K drafted ones, its rows warped, and the verdict of
    modified rejection. With K = 0 that is a step of ArS.

On CUDA a stage is a graph that was captured, and the verdict one of its own (``engines.cuda_graph``). Over
ONNX Runtime it is a graph that was written (``models.onnx_stages``). What a backend has no program for runs
operator by operator (``drafters.model``, ``decode.rows``, ``decode.rejection``): the same law, and the
definition of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

from torch import Tensor

from spsbench.base.records import PROGRAM, SamplingParams
from spsbench.decode.protocols import Drafter, LanguageModel
from spsbench.decode.rejection import Decision, Draft
from spsbench.decode.rows import Floats, Integers, Rows

Stage = Callable[[], object]
"""A program of fixed shape over memory that stays where it is."""


@dataclass(frozen=True, slots=True)
class Unstaged:
    """Stands in the place of a stage that runs operator by operator.

    Attributes:
        reason: why, as a clause: ``a vocabulary of 49,152``; behind ``PARTLY`` where it was a program before;
            empty where the backend has no programs.
    """

    reason: str = ""


class Proposed(NamedTuple):
    """What the stage gave.

    Attributes:
        tokens: [m] drafted tokens, at most K; none where the program failed.
        rows: the m rows that they were drawn from.
        logits: [1, V] of the place after them, if the program could not decide it; the host goes on there.
            None where m is K, or the program failed.
    """

    tokens: Integers
    rows: Rows
    logits: Tensor | None


Propose = Callable[[Sequence[int], Floats], Proposed]
"""Drafts after the pending tokens [n], by uniform numbers [K]."""


class Verified(NamedTuple):
    """What the stage gave: K+1 rows, and the verdict; None where the program could not come to one."""

    rows: Rows
    decision: Decision | None


Verify = Callable[[int, Draft, Floats], Verified | None]
"""Judges K tokens drafted after the pending one, by uniform numbers [K+1]. None where another number was
drafted, or not by a stage with the same law, or where the program failed."""


class Staged(Protocol):
    """A model that has programs for stages, for some laws."""

    def propose_stage(self, k: int, sampling: SamplingParams) -> Propose | Unstaged: ...

    def verify_stage(self, k: int, sampling: SamplingParams) -> Verify | Unstaged: ...


class StagedDrafter(Protocol):
    """A drafter whose model has a program for its stage."""

    def propose(self, tokens: Sequence[int], k: int, u: Floats) -> Draft | None:
        """Draft as ``Drafter.draft`` does, by the program, with numbers on the host; None without one."""
        ...


class _Programs:
    used = True


@contextmanager
def no_programs() -> Iterator[None]:
    """Run loops operator by operator while the block lasts, so that operators can be replaced or observed."""
    before, _Programs.used = _Programs.used, False
    try:
        yield
    finally:
        _Programs.used = before


def _staged(model: LanguageModel) -> Staged | None:
    # Not by isinstance, which looks through the whole protocol, in every loop.
    return cast("Staged", model) if _Programs.used and hasattr(model, "propose_stage") else None


def propose_of(
    model: LanguageModel, k: int, sampling: SamplingParams, unless: str = ""
) -> Propose | Unstaged:
    """Return a model's stage for drafting; none if the reason ``unless`` is given."""
    staged = _staged(model)
    if staged is None:
        return Unstaged()
    return Unstaged(unless) if unless else staged.propose_stage(k, sampling)


def verify_of(model: LanguageModel, k: int, sampling: SamplingParams, unless: str = "") -> Verify | Unstaged:
    """Return a model's stage for verifying; see ``propose_of``."""
    staged = _staged(model)
    if staged is None:
        return Unstaged()
    return Unstaged(unless) if unless else staged.verify_stage(k, sampling)


def proposes(drafter: Drafter) -> Callable[[Sequence[int], int, Floats], Draft | None] | None:
    """Return ``StagedDrafter.propose`` if the drafter has it."""
    return cast("StagedDrafter", drafter).propose if hasattr(drafter, "propose") else None


def recorded(**stages: object) -> dict[str, str] | None:
    """Return how each stage ran, for run.json; None where the backend has no programs."""
    how = {name: each.reason if isinstance(each, Unstaged) else PROGRAM for name, each in stages.items()}
    return how if all(how.values()) else None

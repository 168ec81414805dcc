"""What a drafter of another package proposes, checked before the target reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from spsbench.decode.protocols import Drafter
from spsbench.decode.rejection import ROOT, Draft
from spsbench.decode.rows import Rows
from spsbench.drafters.forced import ForcedDrafts, ForcedText, forced_drafts

Returned = TypeVar("Returned")

_TOLERANCE = 1e-3


class DrafterFault(RuntimeError):
    """A drafter broke its contract; the sequence fails, the run goes on."""


class CheckedDrafter:
    """Wraps a drafter; every fault of it is a ``DrafterFault`` that names it.

    Args:
        drafter: whose proposals are checked.
        name: as the user wrote it.
        vocab_size: V.
    """

    def __init__(self, drafter: Drafter, name: str, vocab_size: int) -> None:
        self._drafter = drafter
        self._name = name
        self._vocab_size = vocab_size

    def begin(self, prompt: Sequence[int]) -> None:
        self._called(lambda: self._drafter.begin(prompt))

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        draft = self._called(lambda: self._drafter.draft(tokens, k, u))
        self._require_sound(draft, k)
        return draft

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        self._called(lambda: self._drafter.observe(tokens, accepted))

    def forced(self, text: ForcedText, k: int) -> ForcedDrafts:
        return forced_drafts(self._drafter, text, k, self._name)

    def _called(self, call: Callable[[], Returned]) -> Returned:
        try:
            return call()
        except Exception as error:
            raise raised_by(self._name, error) from error

    def _fault(self, what: str) -> DrafterFault:
        return DrafterFault(f"the drafter {self._name} {what}")

    def _require_sound(self, draft: object, k: int) -> None:
        if not isinstance(draft, Draft):
            raise self._fault(f"answered {type(draft).__name__}, not a Draft")
        tokens, drawn_from = draft.tokens, draft.drawn_from
        if not (isinstance(tokens, Tensor) and tokens.dtype == torch.int64 and tokens.dim() == 1):
            raise self._fault("proposed tokens that are not a tensor [n] of int64")
        if len(tokens) > k:
            raise self._fault(f"proposed {len(tokens)} tokens where {k} are allowed")
        if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < self._vocab_size:
            raise self._fault(f"proposed a token outside the vocabulary of {self._vocab_size}")
        if draft.parents is not None and (
            len(draft.parents) != len(tokens)
            or not all(ROOT <= parent < node for node, parent in enumerate(draft.parents))
        ):
            raise self._fault(f"gave parents that do not come before their {len(tokens)} tokens")
        if drawn_from is not None:
            self._require_sound_rows(tokens, drawn_from)

    def _require_sound_rows(self, tokens: Tensor, rows: object) -> None:
        probs = rows.dense() if isinstance(rows, Rows) else rows
        wanted = (len(tokens), self._vocab_size)
        if not (isinstance(probs, Tensor) and tuple(probs.shape) == wanted and probs.is_floating_point()):
            raise self._fault(f"gave rows that are not a tensor {list(wanted)} of probabilities")
        if not len(tokens):
            return
        if not bool(probs.isfinite().all()) or float(probs.min()) < 0:
            raise self._fault("gave rows with a number that is not a probability")
        if float((probs.double().sum(-1) - 1).abs().max()) > _TOLERANCE:
            raise self._fault("gave rows that do not add up to 1")
        # A tree may keep its rows on the host, with its tokens on the device.
        if float(probs.gather(-1, tokens.unsqueeze(-1).to(probs.device)).min()) <= 0:
            raise self._fault("proposed a token that its own row gives no probability")


def raised_by(name: str, error: Exception) -> DrafterFault:
    """Return the fault of a drafter that raised an unexpected exception."""
    return DrafterFault(f"the drafter {name} raised {type(error).__name__}: {error}")

"""The planted fault of adaptive drafting: the token that ended a draft is taken out of it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from spsbench.decode.rejection import Draft
from spsbench.drafters.model import ModelDrafter


class Withdrawing(ModelDrafter):
    """Withdraws a drawn token that its policy disliked, as if the draft had ended before it."""

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        draft = super().draft(tokens, k, u)
        assert draft.probs is not None
        if len(draft.tokens) == k:  # nothing ended it
            return draft
        self._drafted -= 1
        return Draft(draft.tokens[:-1], draft.probs[:-1])

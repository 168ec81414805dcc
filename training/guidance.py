"""Where a shallow draft has to look in order to copy: three of its heads are shown at first.

Copying a name takes two layers that work together: the first marks each token with the one before it,
the second looks for that mark. Left to itself a draft of this size had not found it after four million
tokens (results/reference/drafts.md); shown, it has after a few hundred updates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

RARE = 4
"""A token is rare in a context that holds it at most this many times so far."""
LEAST = 1e-4


def guidance(attentions: Sequence[torch.Tensor], ids: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
    """How little three heads look where they should, as the mean of -log of what they look there.

    ``attentions`` are the first and the last layer's [rows, heads, n, n], ``ids`` [rows, n + 1] and
    ``answers`` [rows, n] as in a lesson. The first layer's head 0 should look at the token before; the last
    layer's head 0 at what followed the present token earlier, where that comes again; its head 1, in
    answers, at earlier copies of the next token if that is rare.
    """
    first, last = attentions[0], attentions[-1]
    now, following = ids[:, :-1], ids[:, 1:]
    inside = following != 0
    copies = (following[:, :, None] == now[:, None, :]).tril()
    after_same = torch.zeros_like(copies)
    after_same[:, :, 1:] = now[:, :, None] == now[:, None, :-1]
    again = copies & after_same
    count = copies.sum(-1)
    rare = answers & (count > 0) & (count <= RARE)
    before = first[:, 0].diagonal(-1, 1, 2)[inside[:, 1:]]
    repeated = (last[:, 0] * again).sum(-1)[again.any(-1) & inside]
    pointed = (last[:, 1] * copies).sum(-1)[rare]
    looks = [-(mass.float() + LEAST).log().mean() for mass in (before, repeated, pointed) if len(mass)]
    return torch.stack(looks).sum()

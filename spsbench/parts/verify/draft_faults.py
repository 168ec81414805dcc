"""Ways to draft that change the law, each beside one that looks the same and does not.

They differ in what a draft's end reads, and in what becomes of drafted mass: nothing that a look at one text
shows. Each is a ``draft`` of a ``ModelDrafter``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from spsbench.decode import Draft, sampling, warp
from spsbench.drafters import ModelDrafter

Drafts = Callable[[ModelDrafter, Sequence[int], int, Tensor], Draft]

Stop = Callable[[Tensor, Tensor], float]
"""From a draft's row [1, V] and the token [1] drawn from it a probability: a small one ends the draft."""


def of_the_row(row: Tensor, token: Tensor) -> float:
    """Return the row's largest probability, which is known before anything is drawn."""
    return float(row.max())


def of_the_token(row: Tensor, token: Tensor) -> float:
    """Return the probability of the token that was drawn."""
    return float(row[0, token])


def ending(stop: Stop, p_min: float, *, n_min: int = 0, stays: bool = False, certain: bool = False) -> Drafts:
    """Draft until a stop is below ``p_min``.

    Args:
        stop: what is looked at.
        p_min: 0 to 1.
        n_min: a draft of fewer tokens is dropped after it was drawn, as llama.cpp's ``draft-n-min`` does.
        stays: whether the token at which it ends is part of the draft.
        certain: whether each token is the row's most probable one, told as a point mass.
    """

    def draft(self: ModelDrafter, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        pending = torch.tensor(tokens[self.model.length :], device=u.device)
        picks, own_rows = list[Tensor](), list[Tensor]()
        for i in range(k):
            row = warp(self.model.score(pending, last=1), self.sampling)
            pending = row.argmax(-1) if certain else sampling.draw(row, u[i : i + 1])
            ends = stop(row, pending) < p_min
            if ends and not stays:
                break
            picks.append(pending)
            own_rows.append(row)
            if ends:
                break
        if not picks or len(picks) < n_min:
            return Draft(torch.empty(0, dtype=torch.int64, device=u.device), None)
        return Draft(torch.cat(picks), None if certain else torch.cat(own_rows))

    return draft


def merged(*, added: bool) -> Drafts:
    """Draft in a smaller vocabulary: each odd token is written as the even one below it.

    Args:
        added: whether a token's mass is that of all that are written as it, and not of the last one alone.
    """

    def draft(self: ModelDrafter, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        pending = torch.tensor(tokens[self.model.length :], device=u.device)
        picks, own_rows = list[Tensor](), list[Tensor]()
        for i in range(k):
            row = warp(self.model.score(pending, last=1), self.sampling)
            odd = row[:, 1::2]
            both, last = torch.zeros_like(row), torch.zeros_like(row)
            both[:, ::2] = last[:, ::2] = row[:, ::2]
            both[:, : 2 * odd.shape[1] : 2] += odd
            last[:, : 2 * odd.shape[1] : 2] = odd
            pending = sampling.draw(both, u[i : i + 1])
            picks.append(pending)
            own_rows.append(both if added else last)
        return Draft(torch.cat(picks), torch.cat(own_rows))

    return draft


def most_probable(shown: Callable[[Tensor], Tensor] | None) -> Drafts:
    """Draft each row's most probable token.

    Args:
        shown: from the draft's row [1, V] the one that the token is judged by; None for a point mass.
    """

    def draft(self: ModelDrafter, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        pending = torch.tensor(tokens[self.model.length :], device=u.device)
        picks, shown_rows = list[Tensor](), list[Tensor]()
        for _ in range(k):
            row = warp(self.model.score(pending, last=1), self.sampling)
            pending = row.argmax(-1)
            picks.append(pending)
            shown_rows += [] if shown is None else [shown(row)]
        return Draft(torch.cat(picks), None if shown is None else torch.cat(shown_rows))

    return draft


def uniform(row: Tensor) -> Tensor:
    """[1, V] the row of a buffer of logits that nobody wrote."""
    return torch.full_like(row, 1 / row.shape[-1])


def drafter_of(draft: Drafts) -> type[ModelDrafter]:
    """Return a drafter that drafts so."""
    return type("Planted", (ModelDrafter,), {"draft": draft})


POINT_MASS = "most probable, told as a point mass"

RIGHT: dict[str, Drafts] = {
    "stop by the row, before it is drawn from": ending(of_the_row, 0.6),
    "stop by the row, at least one token": ending(of_the_row, 0.6, n_min=1),
    "dropped where it stayed short, of certain tokens": ending(of_the_row, 0.6, n_min=2, certain=True),
    "stop by the drawn token, which stays": ending(of_the_token, 0.4, stays=True),
    "merged vocabulary, mass added": merged(added=True),
    POINT_MASS: most_probable(None),
}
"""Exact ones."""

FAULTS: dict[str, Drafts] = {
    "dropped-short": ending(of_the_row, 0.6, n_min=2),
    "drawn-token-stop": ending(of_the_token, 0.4),
    "overwritten-mass": merged(added=False),
    "argmax-by-uniform": most_probable(uniform),
    "argmax-by-softmax": most_probable(lambda row: row),
}
"""The same with one thing wrong: a short draft is dropped, the drawn token left out, mass overwritten, the
most probable token judged by a row that it was not drawn from."""

GREEDY = (POINT_MASS, "argmax-by-uniform", "argmax-by-softmax")
"""Those whose drafts are each row's most probable token, whatever row judges them."""

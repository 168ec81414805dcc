"""Adaptive verification of two requests, enumerated: results/reference/rulebook.md.

    python -m benchmarks.two_requests [--tables 20]

Each request drafts K = 2 tokens; then a cut that sees both says how many of each are verified. The law of
each request's text given its draft and its cut is that of the production loop; the sum over both drafts is
the joint law of the two texts of K + 1 tokens. Nothing is drawn. The tables are random (synthetic).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, product
from operator import mul
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.rulebook import PLAIN, far
from spsbench.decode.rejection import Draft, accept_draft
from spsbench.law.enumeration import Scene, TableModel, law_of_loop, target_law

Floats = npt.NDArray[np.float64]
Text = tuple[int, ...]

VOCABULARY, K = 3, 2
TEXTS = tuple(product(range(VOCABULARY), repeat=K + 1))
DRAFTS = tuple(product(range(VOCABULARY), repeat=K))


@dataclass(frozen=True)
class Drafted:
    """A request's draft: its tokens, and the draft's row [V] behind each prefix."""

    tokens: Text
    rows: tuple[Sequence[float], ...]

    def survival(self) -> list[float]:
        """[K] the running product of each row's largest probability; it never rises."""
        return list(accumulate((max(row) for row in self.rows), mul))

    def of_tokens(self) -> list[float]:
        """[K] the same of the drawn tokens' probabilities."""
        return list(accumulate((row[x] for row, x in zip(self.rows, self.tokens, strict=True)), mul))


Pair = tuple[Drafted, Drafted]
Cut = Callable[[Pair], tuple[int, int]]
"""How many tokens of each draft are verified, 0 to K."""


def best(scores: Sequence[Sequence[float]], budget: int) -> tuple[int, int]:
    """Count each request's slots among the best of both, equal ones by request and place."""
    slots = sorted((-score, who, place) for who, own in enumerate(scores) for place, score in enumerate(own))
    winners = [who for _, who, _ in slots[:budget]]
    return winners.count(0), winners.count(1)


EVEN, EACH = (1.0, 1.6, 1.6, 1.9, 1.9), (1.0, 1.2, 1.4, 1.6, 1.8)
"""The cost of verifying 0 to 4 slots: of batches that are padded to an even number, and of each slot."""


def _worth(pair: Pair, cost: Sequence[float]) -> tuple[int, int]:
    """As many of the best slots as give the most expected tokens for their cost, by this step's scores."""
    scores = [each.survival() for each in pair]
    falling = np.sort(np.concatenate(scores))[::-1]
    tokens = 2 + np.concatenate([[0.0], falling.cumsum()])
    return best(scores, int((tokens / np.array(cost)).argmax()))


def _by_the_other(pair: Pair) -> tuple[int, int]:
    """Each keeps its draft where the other's second row, behind its drawn token, is unsure."""
    first, second = (K if max(other.rows[1]) < 0.6 else 0 for other in reversed(pair))
    return first, second


def _dropped(pair: Pair) -> tuple[int, int]:
    """The best three slots of both, but a draft that is left with one is dropped."""
    first, second = best([each.survival() for each in pair], 3)
    return first * (first > 1), second * (second > 1)


EXACT_CUTS: dict[str, Cut] = {
    "the best slot by survival": lambda pair: best([each.survival() for each in pair], 1),
    "the best 2 slots by survival": lambda pair: best([each.survival() for each in pair], 2),
    "the best 3 slots by survival": lambda pair: best([each.survival() for each in pair], 3),
    "as many as pay, each slot at its cost": lambda pair: _worth(pair, EACH),
}
WRONG_CUTS: dict[str, Cut] = {
    "survival of the drawn tokens": lambda pair: best([each.of_tokens() for each in pair], 2),
    "each slot's own score, no product": lambda pair: best(
        [[max(row) for row in each.rows] for each in pair], 2
    ),
    "as many as pay, batches padded to 2": lambda pair: _worth(pair, EVEN),
    "dropped where one slot is left": _dropped,
    "by the other's second row": _by_the_other,
}


class Apart(NamedTuple):
    """Total variation: of each request's law from its target's, of the joint law from the product."""

    marginal: float
    joint: float


class Request:
    """A target and a draft, and the law of every text behind each draft and cut."""

    def __init__(self, seed: int) -> None:
        target, self._draft = far(seed, VOCABULARY)
        self._target = TableModel(target, VOCABULARY)
        self.law_given = cache(self._law_given)
        law = target_law(self._scene((), 1), (0,), K + 1)
        self.target = np.array([law[text] for text in TEXTS])

    def drafts(self) -> list[tuple[float, Drafted]]:
        """Each draft with its chance."""
        found = []
        for tokens in DRAFTS:
            rows = tuple(self._draft((0, *tokens[:place])) for place in range(K))
            chance = float(np.prod([row[x] for row, x in zip(rows, tokens, strict=True)]))
            found.append((chance, Drafted(tokens, rows)))
        return found

    def _scene(self, tokens: Text, k: int) -> Scene:
        rows = torch.tensor(
            [self._draft((0, *tokens[:place])) for place in range(len(tokens))], dtype=torch.float64
        )
        draft = Draft(torch.tensor(tokens, dtype=torch.int64), rows if tokens else None)
        return Scene(self._target, lambda: Fixed(draft), accept_draft, (0,), k, PLAIN)

    def _law_given(self, tokens: Text) -> Floats:
        """[V^(K+1)] the law of the text where these tokens were drafted and are verified."""
        law, scene = dict.fromkeys(TEXTS, 0.0), self._scene(tokens, max(len(tokens), 1))
        for emitted, chance in law_of_loop(scene).items():
            rests = target_law(scene, (0, *emitted), K + 1 - len(emitted))
            for rest, probability in rests.items():
                law[emitted + rest] += chance * probability
        return np.array([law[text] for text in TEXTS])


class Fixed:
    """Proposes what was drafted before."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def begin(self, prompt: Sequence[int]) -> None: ...

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        return self._draft

    def observe(self, tokens: Sequence[int], accepted: int) -> None: ...


def joint(requests: tuple[Request, Request], cut: Cut) -> Floats:
    """[V^(K+1), V^(K+1)] the joint law of both texts."""
    law = np.zeros((len(TEXTS), len(TEXTS)))
    for (p, first), (r, second) in product(*(each.drafts() for each in requests)):
        kept = cut((first, second))
        own = [
            request.law_given(draft.tokens[:n])
            for request, draft, n in zip(requests, (first, second), kept, strict=True)
        ]
        law += p * r * np.outer(*own)
    return law


def apart(requests: tuple[Request, Request], cut: Cut) -> Apart:
    """Hold the two laws and the joint one against the targets'."""
    law, (first, second) = joint(requests, cut), (each.target for each in requests)
    marginal = max(np.abs(law.sum(1) - first).sum(), np.abs(law.sum(0) - second).sum()) / 2
    return Apart(float(marginal), float(np.abs(law - np.outer(first, second)).sum()) / 2)


@cache
def pair(seed: int) -> tuple[Request, Request]:
    """Two requests with models of their own."""
    return Request(2 * seed), Request(2 * seed + 1)


def main() -> None:
    """Print for each cut how far the laws are off."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=int, default=20)
    count = parser.parse_args().tables
    print("| cut | a request's law: off, TV | joint law: off, TV |\n| :-- | --: | --: |")
    for name, cut in {**EXACT_CUTS, **WRONG_CUTS}.items():
        found = [apart(pair(seed), cut) for seed in range(count)]
        cells = (f"{sum(x > 1e-12 for x in each)}, {max(each):.2g}" for each in zip(*found, strict=True))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        main()

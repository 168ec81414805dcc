"""economize's tree verifier by enumeration: the law of a loop, continued by the target, against the target's.

Runs in an environment with economize 0.3.2 alone (`pip install economize`), which has torch:

    PYTHON benchmarks/economize_verifier.py --tables 3

Its own code decides; only its coins and its draws are replaced by branches that are all followed. The tree is
two siblings with two children each, drawn independently, without replacement, or the most probable (one-hot).
"""

from __future__ import annotations

import argparse
import importlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch

verifiers: Any = importlib.import_module("economize.decoding.verifiers")
Draft: Any = importlib.import_module("economize.decoding.protocols").Draft
DecodeConfig: Any = importlib.import_module("economize.decoding.config").DecodeConfig

V, DEPTH = 3, 3
PARENTS = (-1, -1, 0, 0, 1, 1)
Text = tuple[int, ...]
Law = dict[Text, float]
Rows = Callable[[Text], torch.Tensor]


class Branches:
    """Follows each branch of a function that asks for choices, with its probability."""

    def __init__(self) -> None:
        self.ahead: list[int] = []
        self.asked: list[list[float]] = []

    def choose(self, odds: list[float]) -> int:
        self.asked.append(odds)
        return self.ahead[len(self.asked) - 1] if len(self.asked) <= len(self.ahead) else self._first(odds)

    def _first(self, odds: list[float]) -> int:
        self.ahead.append(next(n for n, odd in enumerate(odds) if odd > 0))
        return self.ahead[-1]

    def all(self, call: Callable[[], Any]) -> Iterator[tuple[float, Any]]:
        self.ahead = []
        while True:
            self.asked = []
            found, odds = call(), 1.0
            for choice, given in zip(self.ahead, self.asked, strict=True):
                odds *= given[choice]
            yield odds, found
            while self.ahead:
                given, choice = self.asked[len(self.ahead) - 1], self.ahead.pop()
                more = [n for n in range(choice + 1, len(given)) if given[n] > 0]
                if more:
                    self.ahead.append(more[0])
                    break
            else:
                return


class AsTheyAre:
    """A selector whose distribution are the logits themselves."""

    greedy = False

    def distributions(self, logits: torch.Tensor) -> torch.Tensor:
        return logits

    def generator_for(self, device: torch.device) -> None:
        return None


def drafts(p: Rows, way: str) -> Iterator[tuple[float, list[int], torch.Tensor | None]]:
    """Every tree with its probability, and the row that each token was drawn from."""
    if way == "most probable":
        tops = [p(()).topk(2).indices.tolist()]
        tops += [p((token,)).topk(2).indices.tolist() for token in tops[0]]
        yield 1.0, [token for pair in tops for token in pair], None
        return

    def siblings(row: torch.Tensor) -> Iterator[tuple[float, tuple[int, int], torch.Tensor]]:
        for one, two in itertools.product(range(V), repeat=2):
            second = row.clone()
            if way == "without replacement":
                second[one] = 0
                second = second / second.sum()
            yield float(row[one] * second[two]), (one, two), torch.stack([row, second])

    for odds, pair, rows in siblings(p(())):
        for (o1, c1, r1), (o2, c2, r2) in itertools.product(*(list(siblings(p((x,)))) for x in pair)):
            if odds * o1 * o2 > 0:
                yield odds * o1 * o2, [*pair, *c1, *c2], torch.cat([rows, r1, r2])


def law(q: Rows, p: Rows, way: str) -> Law:
    found: Law = defaultdict(float)
    branches = Branches()
    verifiers._accepts = lambda u, row, own, x: bool(
        branches.choose([1 - (odd := min(1.0, float(row[x] / (1.0 if own is None else own[x])))), odd])
    )
    verifiers.torch.multinomial = lambda rows, n, generator=None: torch.tensor(
        [[branches.choose((row / row.sum()).tolist())] for row in rows]
    )
    verifier = verifiers.RejectionVerifier(DecodeConfig(verifier="rejection"))
    for odds, tokens, rows in drafts(p, way):
        contexts = [(), *((t,) if PARENTS[n] < 0 else (tokens[PARENTS[n]], t) for n, t in enumerate(tokens))]
        logits = torch.stack([q(context) for context in contexts])[None]
        draft = Draft(
            torch.tensor([tokens]),
            [len(tokens)],
            torch.tensor([PARENTS]),
            None if rows is None else rows[None],
        )
        decided = partial(verifier.verify_tree, logits, draft, AsTheyAre())
        for chance, ((path,), (last,)) in branches.all(decided):
            text = (*(tokens[node] for node in path), last)
            found[text] += odds * chance
    return found


def worst(found: Law, q: Rows) -> float:
    """The largest difference of any text of ``DEPTH`` tokens."""
    most = 0.0
    for text in itertools.product(range(V), repeat=DEPTH):
        ours = theirs = 1.0
        for n in range(DEPTH):
            ours *= float(q(text[:n])[text[n]])
        theirs = 0.0
        for n in range(1, DEPTH + 1):
            rest = found.get(text[:n], 0.0)
            for m in range(n, DEPTH):
                rest *= float(q(text[:m])[text[m]])
            theirs += rest
        most = max(most, abs(ours - theirs))
    return most


def table(seed: int) -> Rows:
    """A random row for each context."""

    @cache
    def row(context: Text) -> torch.Tensor:
        number = seed + 7919 * sum((token + 1) * (V + 1) ** n for n, token in enumerate(context))
        return torch.randn(V, generator=torch.Generator().manual_seed(number)).softmax(-1)

    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=int, default=3)
    tables = parser.parse_args().tables
    residual = verifiers._residual
    for way in ("independent", "without replacement", "most probable"):
        for control in (False, True):
            verifiers._residual = (lambda p, q, x: p) if control else residual
            differences = []
            for seed in range(tables):
                q, p = table(seed), table(seed + 1000)
                differences.append(worst(law(q, p, way), q))
            name = "residual left out (control)" if control else "as released"
            print(f"{way}, {name}: largest difference {max(differences):.1e} of {tables} tables", flush=True)


if __name__ == "__main__":
    main()

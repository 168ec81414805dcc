"""The law of llama.cpp's drawn drafts on a recurrent target, enumerated, and held against its texts.

    PYTHONPATH=. python results/reference/engines/llama-cpp-recurrent-law.py [TEXTS]

A round that rejects puts the sampler back to where the round began, and goes through what it decided again
without a test. So the numbers that tested, rejected and replaced in it come again in the next round. The
first part counts on random tables of three tokens what that does to the law. The second asks xllamacpp (which
``spsbench get xllamacpp`` installs) for texts of a random LFM2 at K = 1, and of a random Llama, whose cache
is cut, and prints how much likelier they are by that law than by the target's own. All models are synthetic.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.architectures import saved
from spsbench.base import FLOAT32, Ask, Load, Sampling
from spsbench.config import TORCH, ModelRef, PairConfig
from spsbench.law.enumeration import random_rows
from spsbench.models import find_pair, load
from spsbench.parts.external.registry import find_peer

Row = Sequence[float]
Rows = Callable[[tuple[int, ...]], Row]
Interval = tuple[float, float]
"""Of a number that was drawn already: where it must lie, by what it decided."""
Numbers = tuple[Interval, ...]
Round = tuple[tuple[int, ...], float, Numbers]
"""What a round emits, its chance, and the numbers that come again in the next."""

TOKENS, TABLES, DRAFTS, OF_TEXT = 4, 20, 10, 8
PROMPT = "A long day"


def taken(numbers: Numbers) -> tuple[Interval, Numbers]:
    """Return the next number and those after it."""
    return (numbers[0], numbers[1:]) if numbers else ((0.0, 1.0), ())


def cut(number: Interval, low: float, high: float) -> tuple[Interval, float]:
    """Return the part of an interval within bounds, and its chance."""
    inside = max(number[0], low), min(number[1], high)
    return inside, max(0.0, inside[1] - inside[0]) / (number[1] - number[0])


@dataclass(frozen=True)
class Loop:
    """One round behind a text, of which only tokens that are wanted are followed."""

    q: Rows
    p: Rows
    text: tuple[int, ...]
    k: int
    wanted: Callable[[tuple[int, ...]], bool]

    def ways(self, kept: tuple[int, ...], chance: float, used: Numbers, rest: Numbers) -> Iterator[Round]:
        """Yield how it can go on behind the tokens that stand, with numbers that were drawn before."""
        if len(kept) == self.k:
            yield from self._last(kept, chance, rest)
            return
        target, draft = (rows(self.text + kept) for rows in (self.q, self.p))
        for token, its in enumerate(draft):
            if not its:
                continue
            ratio = target[token] / its
            if ratio >= 1:  # no number is drawn
                if self.wanted((*kept, token)):
                    yield from self.ways((*kept, token), chance * its, used, rest)
                continue
            number, left = taken(rest)
            accepted, share = cut(number, 0.0, ratio)
            if share and self.wanted((*kept, token)):
                yield from self.ways((*kept, token), chance * its * share, (*used, accepted), left)
            rejected, share = cut(number, ratio, 1.0)
            if share:
                yield from self._replaced(kept, chance * its * share, (*used, rejected), left)

    def _replaced(
        self, kept: tuple[int, ...], chance: float, used: Numbers, rest: Numbers
    ) -> Iterator[Round]:
        """Yield the replacements; the numbers of the round then come again."""
        target, draft = (rows(self.text + kept) for rows in (self.q, self.p))
        residual = [max(0.0, a - b) for a, b in zip(target, draft, strict=True)]
        mass, begin = sum(residual), 0.0
        number, left = taken(rest)
        for token in sorted(range(len(target)), key=lambda each: -target[each]):  # the engine's order
            end = begin + residual[token] / mass
            drawn, share = cut(number, begin, end)
            begin = end
            if share and self.wanted((*kept, token)):
                yield from self._last((*kept, token), chance * share, (*used, drawn, *left))

    def _last(self, kept: tuple[int, ...], chance: float, again: Numbers) -> Iterator[Round]:
        """Yield the token that the target draws behind them, with a number of its own."""
        for token, its in enumerate(self.q(self.text + kept)):
            if its and self.wanted((*kept, token)):
                yield (*kept, token), chance * its, again


def rounds(
    q: Rows, p: Rows, text: tuple[int, ...], k: int, again: Numbers, wanted: Callable[[tuple[int, ...]], bool]
) -> Iterator[Round]:
    """Yield the ways in which a round can go whose tokens are wanted."""
    return Loop(q, p, text, k, wanted).ways((), 1.0, (), again)


def law(q: Rows, p: Rows, k: int) -> dict[tuple[int, ...], float]:
    """Return the law of the first tokens, the first of which comes without a draft."""
    found: dict[tuple[int, ...], float] = defaultdict(float)
    open_: list[Round] = [((token,), chance, ()) for token, chance in enumerate(q(()))]
    while open_:
        text, chance, again = open_.pop()
        if len(text) >= TOKENS:
            found[text[:TOKENS]] += chance
            continue
        for new, its, come in rounds(q, p, text, k, again, lambda _: True):
            open_.append((text + new, chance * its, come))
    return found


def tables() -> None:
    """Print the total variation of the law on random tables."""
    for k in (1, 2):
        apart = []
        for seed in range(TABLES):
            q, p = (random_rows(3, 2 * seed + one) for one in (0, 1))
            rows = [lambda text, row=row: row((0, *text)) for row in (q, p)]
            by_loop = law(rows[0], rows[1], k)
            right: dict[tuple[int, ...], float] = {(): 1.0}
            for _ in range(TOKENS):
                right = {(*t, x): c * a for t, c in right.items() for x, a in enumerate(rows[0](t))}
            assert abs(sum(by_loop.values()) - 1) < 1e-9
            apart.append(sum(abs(by_loop.get(text, 0.0) - chance) for text, chance in right.items()) / 2)
        off = sum(each > 1e-9 for each in apart)
        print(f"K = {k}, V = 3: off on {off} of {TABLES} tables, {min(apart):.2g} to {max(apart):.2g}")


def beginning(seen: tuple[int, ...]) -> Callable[[tuple[int, ...]], bool]:
    """Return whether tokens begin what was seen, or go on after it."""
    return lambda new: new[: len(seen)] == seen[: len(new)]


def likelier(kind: str, texts: int, folder: Path) -> None:
    """Print by how much an engine's texts are likelier under the law of the fault than under the target's."""
    target, draft, _ = saved(kind, folder, 0.5)
    named = PairConfig(name=kind, target=ModelRef(id=str(target)), draft=ModelRef(id=str(draft)))
    source = find_pair(named, rolls_back=False)
    given = (FLOAT32, torch.device("cpu"), source.vocab_size)
    models = [load(part, *given, "--target", TORCH) for part in (source.target, source.draft)]
    prompt = source.tokenizer.encode(PROMPT, special=True)
    engine = find_peer("xllamacpp:draft_sampling=probabilistic")
    peer = engine.open(
        Load(engine.converted(target), engine.converted(draft), 1, 1, 256), folder / "log", False
    )
    won, never = 0.0, 0
    try:
        for seed in range(texts):
            ids = tuple(
                peer.generate(Ask(list(prompt), 2 * OF_TEXT, [], seed=seed, sampling=Sampling())).output_ids
            )
            rows = [
                model.score_uncached(torch.tensor([*prompt, *ids]), last=len(ids) + 1).double().softmax(-1)
                for model in models
            ]
            best = rows[1].topk(DRAFTS).indices
            ten = torch.zeros_like(rows[1]).scatter(-1, best, rows[1].gather(-1, best))
            rows[1] = ten / ten.sum(-1, keepdim=True)
            q, p = (lambda text, each=each.tolist(): each[len(text)] for each in rows)
            seen = ids[:OF_TEXT]

            open_: list[Round] = [(seen[:1], q(())[seen[0]], ())]
            total = 0.0
            while open_:
                text, chance, again = open_.pop()
                if len(text) >= len(seen):
                    total += chance
                    continue
                for new, its, come in rounds(q, p, text, 1, again, beginning(seen[len(text) :])):
                    open_.append((text + new, chance * its, come))
            right = math.prod(q(seen[:place])[token] for place, token in enumerate(seen))
            never += not total
            won += math.log10(total / right) if total else 0.0
    finally:
        peer.close()
    print(
        f"{kind}: of {texts} texts, the first {OF_TEXT} tokens, {never} are impossible by the law of the "
        f"fault; the others are 10^{won:.1f} times as likely by it"
    )


if __name__ == "__main__":
    with torch.inference_mode():
        tables()
        for kind in ("lfm2", "llama"):
            with tempfile.TemporaryDirectory() as scratch:
                likelier(kind, int(sys.argv[1]) if len(sys.argv) > 1 else 20, Path(scratch))

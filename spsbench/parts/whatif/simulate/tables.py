"""Target and draft as tables, one row of probabilities for each context, and what they do in the long run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from spsbench.base import Floats, Ints, SamplingParams, UsageError, read_file

MOST_CELLS = 4_000_000
"""Contexts times V of a table."""


@dataclass(frozen=True, slots=True)
class Contexts:
    """What the next token depends on: the classes of the last token or of the last two.

    A token's class is its id modulo ``classes``. One class makes one context: the same row everywhere.
    """

    classes: int
    order: int = 1

    @property
    def count(self) -> int:
        """S, how many contexts there are."""
        return int(self.classes**self.order)

    def of(self, tokens: Sequence[int]) -> int:
        """Return the context after some tokens, at least ``order`` of them."""
        context = 0
        for token in tokens[-self.order :]:
            context = context * self.classes + token % self.classes
        return context

    def tokens_of(self, context: int) -> tuple[int, ...]:
        """Return ``order`` tokens that lead to a context: the inverse of ``of``."""
        places = (self.classes**place for place in reversed(range(self.order)))
        return tuple(context // place % self.classes for place in places)

    def successors(self, vocab_size: int) -> Ints:
        """[S, V] the context after each token in each context."""
        known = np.arange(self.count) % self.classes ** (self.order - 1) * self.classes
        return np.asarray(known[:, None] + np.arange(vocab_size) % self.classes)

    def moves(self, weights: Floats) -> Floats:
        """[S, S] sums of weights [S, V] over the tokens that lead from one context to another."""
        mass = np.zeros((self.count, self.count))
        np.add.at(mass, (np.arange(self.count)[:, None], self.successors(weights.shape[1])), weights)
        return mass


@dataclass(frozen=True, slots=True)
class Tables:
    """Both models: [S, V] probabilities, each row of which sums to 1."""

    contexts: Contexts
    target: Floats
    draft: Floats

    @property
    def vocab_size(self) -> int:
        return int(self.target.shape[1])

    def warped(self, sampling: SamplingParams) -> Tables:
        """Return both under temperature, top-k and nucleus, as a loop warps their logits."""
        import torch  # what is refused must not wait for it

        from spsbench.decode import warp

        target, draft = (
            np.asarray(warp(torch.from_numpy(rows).log(), sampling).numpy())
            for rows in (self.target, self.draft)
        )
        return replace(self, target=target, draft=draft)


class Chain:
    """The exact law of texts and loops: no draw and no assumption of independence.

    Target and draft depend on a context, and a context on a token: so texts and loops are Markov chains. In
    context s the token x is drafted and accepted with probability min(target, draft), and drawn after a
    rejection with probability (target - draft)+; both for modified rejection alone.

    Attributes:
        text: [S] share of the positions of a target's text that are after each context.
        overlap: [S] sum of min(target, draft) in each context: the chance that a draft token is accepted.
    """

    def __init__(self, tables: Tables) -> None:
        contexts = tables.contexts
        both = np.minimum(tables.target, tables.draft)
        self.overlap: Floats = both.sum(axis=1)
        self._accepted = contexts.moves(both)
        self._corrected = contexts.moves(np.maximum(tables.target - tables.draft, 0.0))
        self._written = contexts.moves(tables.target)
        self.text: Floats = text_shares(contexts, tables.target)

    @property
    def alpha(self) -> float:
        """Mean of ``overlap`` over the positions of a target's text: ``alpha_leviathan``."""
        return self.mean(self.overlap)

    def mean(self, values: Floats) -> float:
        """Return the mean of values [S], one for each context, over the positions of a target's text."""
        return float(self.text @ values)

    @property
    def deviation(self) -> float:
        """Standard deviation of ``overlap`` over the positions of a target's text."""
        return math.sqrt(self.mean((self.overlap - self.alpha) ** 2))

    def tokens_per_loop(self, k: int) -> float:
        """Tokens per loop of modified rejection; see ``in_the_long_run``."""
        reached = np.eye(len(self.text))
        ends = np.zeros_like(reached)
        lengths = np.ones(len(self.text))
        for _ in range(k):
            ends += reached @ self._corrected
            reached = reached @ self._accepted
            lengths += reached.sum(axis=1)
        return in_the_long_run(self.text, ends + reached @ self._written, lengths)


def in_the_long_run(text: Floats, ends: Floats, lengths: Floats) -> float:
    """Return tokens over loops of endless texts of equal length, which begin as ``text`` says.

    A chain may fall into parts that are never left (``stay=1``). Parts then share the tokens as the
    texts do, not the loops: loops per token are averaged, and the reciprocal is taken last.

    Args:
        text: [S] share of the positions of a target's text after each context.
        ends: [S, S] chance that a loop that begins in one context ends in another.
        lengths: [S] tokens of a loop that begins there.
    """
    limit = limit_matrix(ends)
    return float(1.0 / (text @ limit @ (1.0 / (limit @ lengths))))


def text_shares(contexts: Contexts, target: Floats) -> Floats:
    """[S] share of the positions of a target's endless text after each context; it begins anywhere alike."""
    share = limit_matrix(contexts.moves(target)).mean(axis=0)
    return np.asarray(share / share.sum())


def limit_matrix(moves: Floats) -> Floats:
    """[S, S] the share of time that a chain spends in each state, for each first state.

    By squaring: chains that take turns between states, or never leave some of them, have an answer too.

    Args:
        moves: [S, S] transition probabilities.
    """
    lazy = (moves + np.eye(len(moves))) / 2
    for _ in range(60):
        lazy = lazy / lazy.sum(axis=1, keepdims=True)
        squared = lazy @ lazy
        done = np.abs(squared - lazy).max() < 1e-14
        lazy = squared
        if done:
            break
    return np.asarray(lazy)


SourceName = Literal["dirichlet", "temperature", "ngram", "table"]


@dataclass(frozen=True, slots=True)
class Language:
    """The random target and how its contexts differ.

    Attributes:
        vocabulary: V.
        sharpness: standard deviation of the logits; larger is more peaked.
        stay: probability that the next token leads to a context as easy or as hard as this one.
    """

    vocabulary: int = 32
    classes: int = 32
    sharpness: float = 2.0
    variation: float = 0.9
    stay: float = 0.95
    seed: int = 0

    @property
    def unequal(self) -> float:
        """``variation``; 0 where there is a single context, which is neither easy nor hard."""
        return self.variation if self.classes > 1 else 0.0

    def factors(self, contexts: Contexts) -> Floats:
        """[S, 1] by how much each context's distance is longer or shorter than chosen."""
        hard = np.arange(contexts.count) % contexts.classes % 2
        return np.asarray(1.0 + self.unequal * (2.0 * hard[:, None] - 1.0))

    def rows(self, contexts: Contexts, number: int) -> Floats:
        """[S, V] random rows; those of another number are independent of them."""
        generator = np.random.default_rng([self.seed, number])
        logits = generator.normal(size=(contexts.count, self.vocabulary)) * self.sharpness
        rows = np.exp(logits - logits.max(axis=1, keepdims=True))
        if self.classes > 1:
            rows = self._in_runs(rows, contexts)
        return np.asarray(rows / rows.sum(axis=1, keepdims=True))

    def _in_runs(self, rows: Floats, contexts: Contexts) -> Floats:
        """Give tokens that lead to a context of the same kind the share ``stay`` of each row's mass."""
        own = np.arange(contexts.count) % contexts.classes % 2
        to = np.arange(self.vocabulary) % contexts.classes % 2
        same = own[:, None] == to
        parts = [rows * kind for kind in (same, ~same)]
        kept, left = (part / part.sum(axis=1, keepdims=True) for part in parts)
        return np.asarray(self.stay * kept + (1.0 - self.stay) * left)


Make = Callable[[Language, float], Tables]


@dataclass(frozen=True, slots=True)
class Source:
    """A way to make a draft for a target.

    Attributes:
        farthest: the largest distance, given the language's ``unequal``.
        distance: of a closeness as it is typed; ``closeness`` is its inverse.
    """

    name: SourceName
    summary: str
    option: str
    order: int
    make: Make
    farthest: Callable[[float], float]
    distance: Callable[[float], float]
    closeness: Callable[[float], float]

    def require_possible(self, language: Language, distance: float | None) -> None:
        """Refuse contexts that a target cannot have, tables that are too large, and a draft too far away.

        Args:
            distance: None where it is solved for.
        """
        vocabulary, classes = language.vocabulary, language.classes
        least, largest = (2, 16) if self.order == 2 else (1, 512)
        most = min(largest, vocabulary)
        if not least <= classes <= most:
            remedy = f"Give a number of contexts from {least} to {most}"
            by_vocabulary = f": a vocabulary of {vocabulary} tokens has no more classes"
            raise UsageError(
                f"--source {self.name} takes {least} to {most}, got {classes}.",
                flag="--contexts",
                remedy=f"{remedy}{by_vocabulary if vocabulary < min(classes, largest) else ''}.",
            )
        if classes**self.order * vocabulary > MOST_CELLS:
            raise UsageError(
                f"{classes**self.order} contexts of {vocabulary} tokens make too large a table.",
                flag=f"--source {self.name}:vocabulary",
                remedy=f"Contexts times tokens may be {MOST_CELLS:,}.",
            )
        farthest = self.farthest(language.unequal)
        if distance is not None and distance > farthest:
            raise UsageError(
                f"{self.closeness(distance):g} leaves no room for variation={language.variation:g}.",
                flag=f"--source {self.name}:{self.option}",
                remedy=f"Give at most {self.closeness(farthest):.4g}, or less variation.",
            )


def _dirichlet(language: Language, distance: float) -> Tables:
    """Draw each draft row from a Dirichlet distribution around the target's row.

    A row is Gamma variates, normalised. These come from fixed uniform numbers by the inverse of their
    cumulative distribution, so that the draft moves smoothly with the concentration.
    """
    from scipy.special import gammaincinv, gammaln, logsumexp  # what is refused must not wait for scipy

    contexts = Contexts(language.classes)
    target = language.rows(contexts, 0)
    uniform = np.random.default_rng([language.seed, 1]).random(target.shape)
    shape = np.maximum(target / (distance * language.factors(contexts)), _TINY)
    with np.errstate(divide="ignore"):
        # Where the variate is too small for a float its logarithm is not: P(a, x) is then x^a / Gamma(a + 1).
        variate = np.log(gammaincinv(shape, uniform))
    small = (np.log(uniform) + gammaln(shape + 1.0)) / shape
    logs = np.where(variate > _SMALL_LOG, variate, small)
    draft = np.exp(logs - logsumexp(logs, axis=1, keepdims=True))
    return Tables(contexts, target, draft)


_TINY, _SMALL_LOG = 1e-290, -600.0


def _temperature(language: Language, distance: float) -> Tables:
    """Use the target at another temperature as the draft: below 1, sharper, for distances above 0."""
    from scipy.special import logsumexp

    contexts = Contexts(language.classes)
    target = language.rows(contexts, 0)
    scaled = abs(distance) * language.factors(contexts)
    # Above 1 the temperature itself is as far from 1 as below 1 its inverse is.
    power = 1.0 + scaled if distance >= 0 else 1.0 / (1.0 + scaled)
    logs = np.log(np.maximum(target, _TINY)) * power
    return Tables(contexts, target, np.exp(logs - logsumexp(logs, axis=1, keepdims=True)))


def _temperature_distance(temperature: float) -> float:
    return 1.0 / temperature - 1.0 if temperature <= 1.0 else 1.0 - temperature


def _temperature_closeness(distance: float) -> float:
    return 1.0 / (1.0 + distance) if distance >= 0 else 1.0 - distance


def _ngram(language: Language, distance: float) -> Tables:
    """Let the target look back two tokens; the draft is the best that looks back one, its mean."""
    contexts, last = Contexts(language.classes, order=2), Contexts(language.classes)
    near = np.tile(language.rows(last, 0), (language.classes, 1))
    share = distance * language.factors(contexts)
    target = (1.0 - share) * near + share * language.rows(contexts, 1)
    return Tables(contexts, target, _law_by_last_token(contexts, target))


def _law_by_last_token(contexts: Contexts, target: Floats) -> Floats:
    """[S, V] the law of the next token given the last one only, over the target's endless text."""
    classes = contexts.classes
    text = text_shares(contexts, target)
    joint = (text[:, None] * target).reshape(classes, classes, -1).sum(axis=0)
    return np.tile(joint / joint.sum(axis=1, keepdims=True), (classes, 1))


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "dirichlet",
            "each draft row is drawn around the target's row",
            "concentration",
            1,
            _dirichlet,
            lambda unequal: 1e6,
            lambda given: 1.0 / given,
            lambda distance: 1.0 / distance,
        ),
        Source(
            "temperature",
            "the draft is the target at another temperature",
            "draft_temperature",
            1,
            _temperature,
            lambda unequal: 1e4,
            _temperature_distance,
            _temperature_closeness,
        ),
        Source(
            "ngram",
            "the target looks back two tokens, the draft one",
            "dependence",
            2,
            _ngram,
            lambda unequal: 1.0 / (1.0 + unequal),
            lambda given: given,
            lambda distance: distance,
        ),
    )
}
"""Every source by its name."""


def read_table(path: Path) -> tuple[Source, int, int]:
    """Read a file with the rows of both models; return the source, the number of rows of each, and V.

    One row is that of every context; of V rows each is that after its token.

    Raises:
        UsageError: it cannot be read, or holds no rows of probabilities of one size.
    """
    try:
        content = json.loads(read_file(path).decode("utf-8-sig"))
        target, draft = (np.asarray(content[name], dtype=np.float64) for name in ("target", "draft"))
        count, size = target.shape
        sound = size > 1 and count in (1, size) and target.shape == draft.shape
    except (OSError, KeyError, TypeError, ValueError, RecursionError, OverflowError):
        sound = False
    if not (sound and all((rows >= 0).all() and np.allclose(rows.sum(1), 1) for rows in (target, draft))):
        raise UsageError(
            f"{path} holds no table.",
            flag="--source",
            remedy='Write {"target": [[...]], "draft": [[...]]}: V probabilities, one row or V rows.',
        )
    table = Tables(Contexts(count), *(rows / rows.sum(1, keepdims=True) for rows in (target, draft)))
    same: Callable[[float], float] = lambda value: value  # noqa: E731
    return Source("table", "rows from a file", "table", 1, lambda *_: table, same, same, same), count, size

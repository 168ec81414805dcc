"""Where tables come from: a random target, and a draft at a chosen distance from it.

The target's rows are a softmax of Gaussian logits. Contexts are easy and hard in turns: in an easy one the
draft is nearer to the target by a factor 1 - variation, in a hard one farther by 1 + variation. Both kinds
come in runs, since the next token stays with its kind with probability ``stay``. One context has neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from spsbench.simulate.tables import Contexts, Floats, Tables, text_shares

SourceName = Literal["dirichlet", "temperature", "ngram"]


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
        """``variation``; 0 where there is one context, which is neither easy nor hard."""
        return self.variation if self.classes > 1 else 0.0

    def factors(self, contexts: Contexts) -> Floats:
        """[S, 1] by how much the draft's distance is longer or shorter than chosen."""
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
        """Tokens that lead to a context of the same kind get ``stay`` of each row's mass."""
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


def _dirichlet(language: Language, distance: float) -> Tables:
    """Each draft row is drawn from a Dirichlet distribution around the target's row.

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
    """The draft is the target at another temperature: below 1, sharper, for distances above 0."""
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
    """The target looks back two tokens; the draft is the best that looks back one, its mean."""
    contexts, last = Contexts(language.classes, order=2), Contexts(language.classes)
    near = np.tile(language.rows(last, 0), (language.classes, 1))
    share = distance * language.factors(contexts)
    target = (1.0 - share) * near + share * language.rows(contexts, 1)
    return Tables(contexts, target, _shorter(contexts, target))


def _shorter(contexts: Contexts, target: Floats) -> Floats:
    """[S, V] the law of the next token by the last one alone, over the target's endless text."""
    classes, text = contexts.classes, text_shares(contexts, target)
    joint = (text[:, None] * target).reshape(classes, classes, -1).sum(axis=0)
    return np.tile(joint / joint.sum(axis=1, keepdims=True), (classes, 1))


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            *("dirichlet", "each draft row is drawn around the target's row", "--concentration", 1),
            *(_dirichlet, lambda unequal: 1e6, lambda given: 1.0 / given, lambda distance: 1.0 / distance),
        ),
        Source(
            *("temperature", "the draft is the target at another temperature", "--draft-temperature", 1),
            *(_temperature, lambda unequal: 1e4, _temperature_distance, _temperature_closeness),
        ),
        Source(
            *("ngram", "the target looks back two tokens, the draft one", "--dependence", 2),
            _ngram,
            lambda unequal: 1.0 / (1.0 + unequal),
            lambda given: given,
            lambda distance: distance,
        ),
    )
}
"""Every source by its name."""

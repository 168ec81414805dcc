"""Acceptance length against K from one reading of one set of texts, and what its mean leaves out.

Every K is replayed over the same texts, so that steps from K to K follow from the texts alone and not from
which prompts and draws each K happened to get.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from spsbench.base import Floats, Interval, Ints
from spsbench.law import loops_over, stopped
from spsbench.parts.whatif.quantiles import weighted_quantiles
from spsbench.stats import simultaneous_ratios
from spsbench.store import Counts, Places

LAGS = (1, 2, 4, 8, 16)
"""Tokens apart, for the autocorrelation."""
WITHIN = 0.05
"""Tokens a loop: the precision for which prompts are counted."""
_P = (0.5, 0.9, 0.99)
_FEWEST = 8
"""Prompts: an interval from fewer would not cover what it says."""


@dataclass(frozen=True, slots=True)
class ReadText:
    """A text as a drafter met it: see ``ForcedDrafts``."""

    prompt: str
    category: str
    ratios: Floats
    drafted: Ints


@dataclass(frozen=True, slots=True)
class Tail:
    """Loops that 100 tokens of a text take: P50, P90 and P99 over texts and draws.

    Attributes:
        true: of the texts as they are.
        by_rates: where every loop is drawn alike from the curve's distribution.
        by_mean: where it keeps the mean's whole part, and one draft more with the chance of its fraction.
    """

    true: tuple[float, ...]
    by_rates: tuple[float, ...]
    by_mean: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """One K.

    Attributes:
        length: tokens per loop; its interval holds together with those of the other K.
        rates: [K] the chance that a loop keeps its first draft, the first two, ...: in sum length - 1.
        variance: of the drafts that a loop keeps.
        mean_variance: the same where the mean alone is injected.
    """

    k: int
    length: Interval
    rates: tuple[float, ...]
    variance: float
    mean_variance: float
    tail: Tail


@dataclass(frozen=True, slots=True)
class AcceptanceCurve:
    """Every K of one drafter under one rule, over all texts or those of a category.

    Attributes:
        correlation: between the acceptance of a token and of one so many tokens on, by lag.
        needed: prompts for ``WITHIN`` at every K, were they like these; None where there is no interval.
        heaviest: the largest share of the tokens that one prompt has.
    """

    name: str
    category: str
    prompts: int
    texts: int
    tokens: int
    points: tuple[Point, ...]
    correlation: Mapping[int, float]
    needed: int | None
    heaviest: float


def curve(name: str, texts: Sequence[ReadText], ks: Sequence[int], *, block: bool = False) -> AcceptanceCurve:
    """Return the curve of texts that were read up to the largest K."""
    prompts = list(dict.fromkeys(text.prompt for text in texts))
    place = {prompt: number for number, prompt in enumerate(prompts)}
    tokens, loops = np.zeros(len(prompts)), np.zeros((len(prompts), len(ks)))
    lengths = [len(text.ratios) for text in texts]
    for text, length in zip(texts, lengths, strict=True):
        tokens[place[text.prompt]] += length
    parts: list[tuple[tuple[float, ...], float, float, Tail]] = []
    for column, k in enumerate(ks):
        laws = [loops_over(stopped(text.ratios[:, :k], text.drafted), block=block) for text in texts]
        for text, law in zip(texts, laws, strict=True):
            loops[place[text.prompt], column] += law.loops
        emitted = np.sum([law.emitted() for law in laws], axis=0)
        parts.append(_rates_variances_tail(emitted / emitted.sum(), [law.counts for law in laws], lengths))
    points = [
        Point(k, length, *part)
        for k, length, part in zip(ks, _tokens_per_loop(tokens, loops), parts, strict=True)
    ]
    return _curve_through(name, points, len(texts), tokens, _correlation_by_lag(texts))


def by_category(
    name: str, texts: Sequence[ReadText], ks: Sequence[int], *, block: bool = False
) -> Iterable[AcceptanceCurve]:
    """Return the curve of all texts, and of each category where there are several."""
    yield curve(name, texts, ks, block=block)
    categories = list(dict.fromkeys(text.category for text in texts))
    for category in categories if len(categories) > 1 else ():
        members = [text for text in texts if text.category == category]
        yield replace(curve(name, members, ks, block=block), category=category or "none")


def of_places(places: Sequence[Places], k: int) -> dict[str, list[ReadText]]:
    """Return, by drafter, the texts for which a file says at each place how many drafts a loop would keep."""
    texts: dict[str, list[ReadText]] = {}
    for number, (drafter, ahead) in enumerate(places):
        kept = np.array(ahead, np.int64)
        stands = (np.arange(k) < kept[:, None]).astype(np.float64)
        texts.setdefault(drafter, []).append(ReadText(str(number), "", stands, np.full(len(kept), k)))
    return texts


def of_counts(name: str, requests: Sequence[Counts], k: int) -> AcceptanceCurve:
    """Return the single point of requests whose loops' kept drafts are counted."""
    kept = np.array([[*request.kept, *[0] * (k + 1 - len(request.kept))] for request in requests], np.float64)
    loops = kept.sum(1)
    tokens = kept @ np.arange(1, k + 2)
    lengths = tokens.astype(int).tolist()
    counts = [np.eye(1, n + 1, int(count))[0] for n, count in zip(lengths, loops, strict=True)]
    (length,) = _tokens_per_loop(tokens, loops[:, None])
    point = Point(k, length, *_rates_variances_tail(kept.sum(0) / kept.sum(), counts, lengths))
    return _curve_through(name, [point], len(requests), tokens, {})


def _tokens_per_loop(tokens: Floats, loops: Floats) -> list[Interval]:
    """Of tokens [prompts] and loops [prompts, K], for each K; few prompts give no interval."""
    ratios = simultaneous_ratios(tokens, loops)
    return ratios if len(tokens) >= _FEWEST else [Interval(ratio.estimate, None, None) for ratio in ratios]


def _curve_through(
    name: str, points: Sequence[Point], texts: int, tokens: Floats, correlation: Mapping[int, float]
) -> AcceptanceCurve:
    """Of prompts with ``tokens`` [prompts]."""
    return AcceptanceCurve(
        name,
        "",
        len(tokens),
        texts,
        int(tokens.sum()),
        tuple(points),
        correlation,
        _prompts_needed(points, len(tokens)),
        float(tokens.max() / tokens.sum()),
    )


def _prompts_needed(points: Sequence[Point], prompts: int) -> int | None:
    halves = [
        (point.length.high - point.length.low) / 2
        for point in points
        if point.length.low is not None and point.length.high is not None
    ]
    return math.ceil(prompts * (max(halves) / WITHIN) ** 2) if halves else None


def scheduled(length: float, k: int) -> Floats:
    """[K+1] the law of drafts kept with the least variance, where only a mean is injected."""
    whole = min(int(length - 1), k)
    law = np.zeros(k + 1)
    law[whole] = 1.0 - (length - 1 - whole)
    if whole < k:
        law[whole + 1] = length - 1 - whole
    return law


def _rates_variances_tail(
    shares: Floats, counts: Sequence[Floats], lengths: Sequence[int]
) -> tuple[tuple[float, ...], float, float, Tail]:
    """Of loops that emit 1 to K+1 tokens in these shares."""
    kept = np.arange(len(shares))
    mean = float(shares @ kept)
    injected = scheduled(1 + mean, len(shares) - 1)
    rates = tuple((1.0 - np.cumsum(shares))[:-1].clip(0.0, 1.0).tolist())
    variance, least = (float(law @ (kept - mean) ** 2) for law in (shares, injected))
    tails = (counts, drawn_alike(shares, lengths), drawn_alike(injected, lengths))
    return rates, variance, least, Tail(*(_quantiles_per_100_tokens(tail, lengths) for tail in tails))


def drawn_alike(shares: Floats, lengths: Sequence[int]) -> list[Floats]:
    """Return each text's distribution [n+1] of its number of loops.

    The loops emit 1 to K+1 tokens in these shares.
    """
    longest = max(lengths)
    emitted = np.append(0.0, shares)
    at = np.zeros(longest)
    at[0] = 1.0  # tokens emitted by so many loops, as long as they are too few for the longest text
    short = [np.ones(longest)]
    while short[-1][-1] > 1e-12:
        at = np.convolve(at, emitted)[:longest]
        short.append(np.cumsum(at))  # [longest] the chance that 1, 2, ... tokens are still not reached
    below = np.array([*short, np.zeros(longest)])
    return [np.append(0.0, below[:-1, n - 1] - below[1:, n - 1]) for n in lengths]


def _quantiles_per_100_tokens(counts: Sequence[Floats], lengths: Sequence[int]) -> tuple[float, ...]:
    values = np.concatenate([100 * np.arange(len(each)) / n for each, n in zip(counts, lengths, strict=True)])
    return tuple(weighted_quantiles(values, np.concatenate(counts), _P).tolist())


def _correlation_by_lag(texts: Sequence[ReadText]) -> dict[int, float]:
    """Of whether two first drafts are accepted, each about its own chance."""
    chances = [np.minimum(text.ratios[:, 0], 1.0) * (text.drafted > 0) for text in texts if len(text.ratios)]
    mean = float(np.concatenate(chances).mean())
    by_lag: dict[int, float] = {}
    for lag in LAGS:
        pairs = [(accepted[:-lag], accepted[lag:]) for accepted in chances if len(accepted) > lag]
        if pairs and 0.0 < mean < 1.0:
            first, second = (np.concatenate(side) for side in zip(*pairs, strict=True))
            together = float(((first - mean) * (second - mean)).mean())
            by_lag[lag] = together / (mean * (1.0 - mean))
    return by_lag

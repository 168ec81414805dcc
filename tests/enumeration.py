"""The law of one SpS loop by enumeration: every draft, every accept or reject, every final token.

The loop is the production one. Its uniform numbers are scripted: for each branch a number from the
inside of the interval that leads there, weighted by the interval's length. Acceptance is probed on
both sides of its edge, so that a length that the code does not honour is noticed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import torch
from torch import Tensor

from spsbench import decoding
from spsbench.clock import FakeClock, Stopwatch
from spsbench.core import rejection
from spsbench.core.sampling import warp
from spsbench.drafters.model import ModelDrafter
from spsbench.models.table import TableModel
from spsbench.records import SamplingParams

Law = dict[tuple[int, ...], float]
CPU = torch.device("cpu")
EDGE = 1e-7


def one_loop(
    target: TableModel,
    draft: TableModel,
    prompt: tuple[int, ...],
    k: int,
    sampling: SamplingParams,
    u: Tensor,
) -> decoding.DecodedLoop:
    """The production loop under scripted uniform numbers."""
    drafter = ModelDrafter(draft, sampling, CPU)
    target.rollback(0)
    if prompt[:-1]:
        target.score(torch.tensor(prompt[:-1]), last=1)
    drafter.begin(prompt)
    loops = decoding.sps(target, drafter, prompt, k, sampling, lambda n: u, Stopwatch(FakeClock()))
    return next(loops)


def row(model: TableModel, context: tuple[int, ...], sampling: SamplingParams) -> Tensor:
    """Warped probabilities behind a context, [V]."""
    model.rollback(0)
    return warp(model.score(torch.tensor(context), last=1), sampling)[0]


def choices(weights: Tensor) -> Iterator[tuple[int, float, float]]:
    """(token, probability, a uniform number that draws it) for each token that can be drawn."""
    probs = weights / weights.sum()
    ends = probs.cumsum(0)
    for token in range(len(probs)):
        if probs[token] > 0:
            yield token, float(probs[token]), float(ends[token] - probs[token] / 2)


def loop_law(
    target: TableModel, draft: TableModel, prompt: tuple[int, ...], k: int, sampling: SamplingParams
) -> Law:
    """Probability of each tuple of tokens that one loop can emit."""
    law: Law = defaultdict(float)
    for path, chance, picks in drafts(draft, prompt, k, sampling):
        q = [row(target, prompt + path[:i], sampling) for i in range(k + 1)]
        p = [row(draft, prompt + path[:i], sampling) for i in range(k)]
        accept = [float(rejection.acceptance_probability(q[i][x], p[i][x])) for i, x in enumerate(path)]
        for n in range(k + 1):
            reach = chance * torch.tensor(accept[:n], dtype=torch.float64).prod().item()
            reach *= 1 - accept[n] if n < k else 1.0
            if reach == 0:
                continue
            tests = (
                [a / 2 for a in accept[:n]] + [(1 + a) / 2 for a in accept[n : n + 1]] + [0.5] * (k - n - 1)
            )
            weights = rejection.residual(q[n], p[n]) if n < k else q[k]
            for _, probability, pick in choices(weights):
                u = torch.tensor([*picks, *tests[:k], pick], dtype=torch.float64)
                loop = one_loop(target, draft, prompt, k, sampling, u)
                assert loop.accepted <= k
                law[tuple(loop.tokens)] += reach * probability
    return law


def drafts(
    draft: TableModel, prompt: tuple[int, ...], k: int, sampling: SamplingParams
) -> Iterator[tuple[tuple[int, ...], float, list[float]]]:
    """Each draft of K tokens, its probability and the uniform numbers that pick it."""
    if k == 0:
        yield (), 1.0, []
        return
    for path, chance, picks in drafts(draft, prompt, k - 1, sampling):
        for token, probability, pick in choices(row(draft, prompt + path, sampling)):
            yield (*path, token), chance * probability, [*picks, pick]


def completed(
    law: Law, target: TableModel, prompt: tuple[int, ...], length: int, sampling: SamplingParams
) -> Law:
    """The law with every outcome continued by the target to a fixed length."""
    full: Law = defaultdict(float)
    for tokens, chance in law.items():
        for rest, probability in continuations(target, prompt + tokens, length - len(tokens), sampling):
            full[tokens + rest] += chance * probability
    return full


def continuations(
    target: TableModel, context: tuple[int, ...], length: int, sampling: SamplingParams
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every continuation of a context that the target can write, with its probability."""
    if length == 0:
        yield (), 1.0
        return
    for token, probability, _ in choices(row(target, context, sampling)):
        for rest, chance in continuations(target, (*context, token), length - 1, sampling):
            yield (token, *rest), probability * chance


def law_error(
    target: TableModel, draft: TableModel, prompt: tuple[int, ...], k: int, sampling: SamplingParams
) -> float:
    """Largest difference between the law of SpS and the target's over K+1 tokens."""
    ours = completed(loop_law(target, draft, prompt, k, sampling), target, prompt, k + 1, sampling)
    theirs = dict(continuations(target, prompt, k + 1, sampling))
    return max(abs(ours.get(x, 0.0) - theirs.get(x, 0.0)) for x in ours.keys() | theirs.keys())


def edge_errors(
    target: TableModel, draft: TableModel, prompt: tuple[int, ...], sampling: SamplingParams
) -> Iterator[tuple[int, bool, bool]]:
    """(drafted token, accepted just below its acceptance probability, rejected just above it)."""
    q, p = row(target, prompt, sampling), row(draft, prompt, sampling)
    for token, _, pick in choices(p):
        edge = float(rejection.acceptance_probability(q[token], p[token]))
        below = one_loop(target, draft, prompt, 1, sampling, scripted(pick, edge - EDGE)).accepted == 1
        above = one_loop(target, draft, prompt, 1, sampling, scripted(pick, edge + EDGE)).accepted == 0
        yield token, below or edge == 0.0, above or edge == 1.0


def scripted(*numbers: float) -> Tensor:
    """Uniform numbers of a loop with K = 1: pick, test, and a final draw that does not matter."""
    return torch.tensor([*(min(max(n, 0.0), 1 - 1e-12) for n in numbers), 0.5], dtype=torch.float64)

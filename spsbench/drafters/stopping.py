"""A draft model's rows over a text, read once for every rule that ends a draft by them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spsbench.base.arrays import AnyFloats, Bools, Floats, Ints
from spsbench.base.records import SamplingParams, Spec
from spsbench.decode import rows
from spsbench.decode.protocols import LanguageModel
from spsbench.decode.rows import Rows
from spsbench.drafters.forced import ForcedDrafts, ForcedText, ratios_of
from spsbench.drafters.model import ModelDrafter
from spsbench.drafters.policy import Entropy
from spsbench.drafters.registry import policy_kind
from spsbench.law.text_loops import Rollouts, anchored

STOP_BELOW, ENTROPY = "stop-below", "entropy"


@dataclass(frozen=True, slots=True)
class DraftStopRule:
    """A policy that ends a draft by one row and the token drawn from it, by its threshold.

    Attributes:
        spec: ``stop-below:tau=...`` or ``entropy:h=...``, with its threshold.
    """

    spec: Spec

    @property
    def threshold(self) -> float:
        """tau, or h."""
        name = "tau" if self.spec.name == STOP_BELOW else "h"
        return float(policy_kind(self.spec.name).settled(self.spec)[name])

    @property
    def never(self) -> bool:
        """Whether it ends no draft: no probability is below 0."""
        return self.spec.name == STOP_BELOW and self.threshold <= 0

    def ends(self, probability: AnyFloats, entropy: AnyFloats) -> Bools:
        """[...] whether a draft ends there, by the policy's own margin in the rows' precision.

        Args:
            probability: [...] of the drafted token in its own row.
            entropy: [...] of that row, in nats; NaN if no rule asks.
        """
        if self.spec.name == STOP_BELOW:
            return np.asarray(probability - self.threshold < 0)
        return np.asarray(self.threshold - entropy < 0)


@dataclass(frozen=True, slots=True)
class DraftedText:
    """One text of n tokens, read by a draft model under R rules.

    Attributes:
        accepted: [n] ``min(1, p / q)`` of its tokens.
        stops: [R, n] whether a draft ends after each of them, if it was drafted.
        rejected: [R, n+1] the chance that it ends after the token that was rejected for the text's; the
            last entry is of a token that is drafted after the text.
        rollouts: one for each rule: the same drafts, ended by each.
    """

    accepted: Floats
    stops: Bools
    rejected: Floats
    rollouts: tuple[Rollouts, ...]


class StopReader:
    """Reads texts with a draft model, for every rule at once.

    Args:
        rules: ways to end a draft.
        seed: of the drafts that are sampled on after rejected tokens.
        rollouts: about how many of them a text.

    Attributes:
        texts: in the order in which they were read.
    """

    def __init__(self, rules: Sequence[DraftStopRule], seed: int = 0, rollouts: int = 16) -> None:
        self.rules = tuple(rules)
        self.texts: list[DraftedText] = []
        self._count = rollouts
        self._reads_entropy = any(rule.spec.name == ENTROPY for rule in rules)
        self._random = torch.Generator().manual_seed(seed)

    def forced(self, drafter: ModelDrafter, text: ForcedText, q: Tensor, k: int) -> ForcedDrafts:
        """As ``ModelDrafter.forced``, from the same single forward over the text.

        Args:
            drafter: whose rows are read; its policy is not asked.
            text: of the target.
            q: [n, V] the target's warped rows.
            k: the most that a loop drafts.
        """
        model, sampling = drafter.model, drafter.sampling
        n, ids = len(text.tokens), text.ids
        model.begin(text.prompt)
        p = rows.warped(model.score(ids[-n - 1 :], last=n + 1), sampling)
        probability_of = p.at(ids[-n:])
        ratios = ratios_of(text.log_target, probability_of.tolist())
        accepted = np.minimum(ratios, 1.0)
        entropy = self._entropies(p)
        probability = probability_of.cpu().numpy()
        ends = [rule.ends(probability, entropy[:n]) for rule in self.rules]
        residuals = [_residual(p, q, position, text.device) for position in range(n + 1)]
        rejected = np.array(
            [
                [float(of.share @ rule.ends(of.probability, np.full_like(of.probability, nats)))]
                for of, nats in zip(residuals, entropy, strict=True)
                for rule in self.rules
            ]
        ).reshape(n + 1, len(self.rules))
        rollouts: tuple[Rollouts, ...] = ()
        if k > 1 and self.rules:
            chosen, weights = self._chosen_positions(1 - accepted)
            further = np.zeros((len(self.rules), len(chosen)), np.int64)
            for place in range(len(chosen) - 1, -1, -1):  # from the end: what was read before stays cached
                u = torch.rand(k, generator=self._random, dtype=torch.float64)
                drafts = _drafts_from(model, sampling, text, residuals, p, int(chosen[place]), u)
                further[:, place] = self._lengths_after_rejection(drafts, k)
            rollouts = tuple(Rollouts(chosen, weights, each) for each in further)
        stops = np.array(ends, np.bool_).reshape(-1, n)
        self.texts.append(DraftedText(accepted, stops, rejected.T, rollouts))
        return ForcedDrafts(anchored(ratios, k), np.full(n, k))

    def _entropies(self, p: Rows) -> AnyFloats:
        """[len(p)] in nats, as the policy computes them; NaN if no rule asks."""
        if not self._reads_entropy:
            return np.full(len(p), np.nan)
        nats: AnyFloats = (-Entropy(0.0).margin(p.dense(), torch.empty(0))).cpu().numpy()
        return nats

    def _chosen_positions(self, sizes: Floats) -> tuple[Ints, Floats]:
        """Those after which drafts are sampled on, and their weights.

        A position is likelier to be chosen where a rejection is likelier.
        """
        chances = np.append(_inclusion(sizes, self._count), 1.0)
        offset = float(torch.rand((), generator=self._random, dtype=torch.float64))
        edges = np.floor(np.append(0.0, chances.cumsum()) + offset)
        chosen = np.flatnonzero(np.diff(edges) > 0)
        return chosen, 1 / chances[chosen]

    def _lengths_after_rejection(self, drafts: Iterator[tuple[Rows, Tensor]], k: int) -> Ints:
        """[R] how many tokens are drafted after a rejected one until each rule ends the draft."""
        lengths = np.zeros(len(self.rules), np.int64)
        for drafted, (row, token) in enumerate(drafts, start=1):
            probability = row.at(token).cpu().numpy()
            entropy = self._entropies(row)
            ended = np.array([rule.ends(probability, entropy)[0] for rule in self.rules])
            going_on = ~ended & (lengths == drafted - 1)
            lengths[going_on] += 1
            if drafted == k - 1 or not going_on.any():
                break
        return lengths


class _Residual(NamedTuple):
    """The law of the token that is rejected at a position, over its support.

    Attributes:
        tokens: [m] ids.
        probability: [m] in the draft's row, in its precision.
        share: [m] of the law; adds up to 1.
    """

    tokens: Ints
    probability: AnyFloats
    share: Floats


def _residual(p: Rows, q: Tensor, position: int, device: torch.device) -> _Residual:
    """``max(p - q, 0)`` at a position; p itself after the text and where nothing remains."""
    row = p.pick(torch.tensor(position, device=device)).dense()[0].cpu().numpy()
    over = row.astype(np.float64)
    if position < len(q):
        rest = np.maximum(over - q[position].double().cpu().numpy(), 0.0)
        over = rest if rest.any() else over
    tokens = np.flatnonzero(over)
    return _Residual(tokens, row[tokens], over[tokens] / over.sum())


def _drafts_from(
    model: LanguageModel,
    sampling: SamplingParams,
    text: ForcedText,
    residuals: Sequence[_Residual],
    p: Rows,
    position: int,
    u: Tensor,
) -> Iterator[tuple[Rows, Tensor]]:
    """(row, token [1]) of the rejected token at a position and of those after it, up to K in all.

    Args:
        model: has read the text at least up to the position.
        residuals: [n+1] the law of the token that is drafted and rejected at each position.
        p: [n+1] rows of the draft along the text.
        u: [K] uniform numbers.
    """
    residual = residuals[position]
    reached = np.cumsum(residual.share)
    drawn = min(int(reached.searchsorted(float(u[0]) * reached[-1], side="right")), len(reached) - 1)
    token = torch.tensor([int(residual.tokens[drawn])], device=text.device)
    model.rollback(len(text.prompt) + position)
    yield p.pick(torch.tensor(position, device=text.device)), token
    room = model.room_behind(text.prompt) - position
    for number in range(1, min(len(u), room)):
        row = rows.warped(model.score(token, last=1), sampling)
        token = row.draw(u[number : number + 1].to(text.device))
        yield row, token


def _inclusion(sizes: Floats, count: int) -> Floats:
    """[n] probabilities of being chosen, at most 1, otherwise in proportion to sizes; they add up to
    ``count``.

    Where fewer than ``count`` have a size, all of these are chosen.
    """
    chances = np.zeros_like(sizes)
    while (open_ := (sizes > 0) & (chances < 1)).any():
        left = count - float((chances >= 1).sum())
        chances[open_] = np.minimum(1.0, max(left, 0.0) * sizes[open_] / sizes[open_].sum())
        if (chances[open_] < 1).all():
            break
    return chances

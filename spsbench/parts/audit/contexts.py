"""Many draws at few contexts, chosen before anything is drawn for what withdrawn drafts would change.

An engine may stop drafting where the draft is unsure, and drop a draft that stayed short. Whether it stayed
short is read from the row after a drawn token: tokens with an unsure row after them are then proposed less
often than they were drawn, and after the test of the others the text no longer follows the target. At most
contexts that changes next to nothing, at a few a lot: those where the first row is sure and the second is
so after some first tokens alone.

What follows a context is bet on in two ways, both laws that are known before the token: the withdrawn draft's
at several thresholds, and the frequencies of what followed so far, which need no alternative. Contexts, their
order and the seeds do not depend on what an engine answers.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch

from spsbench.base import Drafting, Floats, SamplingParams
from spsbench.decode import warp
from spsbench.models import CausalLM
from spsbench.parts.audit.bet_table import TINY, cut_to
from spsbench.parts.audit.messages import faults
from spsbench.parts.audit.messages.evidence import TooFewToJudge, WithdrawnDrafts
from spsbench.parts.verify.effort import Finding, skipped

THRESHOLDS: Final = tuple(round(0.1 * n, 1) for n in range(1, 10))
"""Of the draft's best probability, where the engine's own is not known."""

LEAST_WITHDRAWN: Final = 2
"""The least number of tokens that drafts must have, so that one that was drawn decides whether they stand."""

_CUTS: Final = {"the draft's whole row": 0, "its ten best tokens": 10}
"""What a draft is drawn from and its best probability taken of, where it is not known; 0: nothing is cut."""

_NEAR, _LEAST = 20, 120  # of contexts so many times as many as are due are enumerated, and at least
_DRAWN = 12  # tokens of a draft that are looked behind, at each place
_LIKELY = 1e-3  # least probability of a draft that is looked behind
_EXPECTED = 0.5  # least probability of the token that a text is to begin with
_FEWEST, _MOST = 4, 48  # tokens of a context, which is cut out of a prompt
_DEPTH, _STRENGTHS = 3, (2.0, 20.0)
_RULED_OUT: Final = math.log(20)
_ENOUGH = 0.02  # nats a draw of a threshold, beyond which more is worth little
_KNOWABLE = 10.0  # nats that the draws are expected to say of a threshold that is judged


@dataclass(frozen=True, slots=True)
class Fork:
    """What comes after a context: the target's law and, by row and threshold, that of withdrawn drafts."""

    target: Floats  # [V]
    withdrawn: Mapping[tuple[str, float], Floats]  # each [V]

    def by_threshold(self, thresholds: Sequence[float]) -> Floats:
        """[n] nats a draw by which each threshold's alternatives differ from the target's law, on average."""
        nats = [(at, divergence(row, self.target)) for (_, at), row in self.withdrawn.items()]
        return np.array([np.mean([each for other, each in nats if other == at]) for at in thresholds])


@dataclass(frozen=True, slots=True)
class Standing:
    """Of each alternative which drafts stand behind a context.

    Attributes:
        columns: of the tokens that were looked behind; others are taken to stand.
        stays: [laws, columns] the probability that a draft stands which begins with one.
        mass: [laws] the same of any draft.
        least: [laws] the draft's probability of a token, below which its row is cut.
    """

    columns: Mapping[int, int]
    stays: Floats
    mass: Floats
    least: Floats

    def ratios(self, token: int, chance: float) -> Floats:
        """[laws] how much more often a draft that stands than a drawn one begins with such a token.

        ``chance`` is the token's probability; the result is 0 where no draft can stand.
        """
        column = self.columns.get(token)
        stays = np.ones(len(self.mass)) if column is None else self.stays[:, column]
        inside = (chance >= self.least) & (self.mass > 0)
        return np.where(inside, stays / np.where(inside, self.mass, 1.0), 0.0)


def divergence(law: Floats, target: Floats) -> float:
    """Return the divergence of a law [V] from the target's [V]: a draw's mean evidence for the law."""
    there = law > 0
    return float((law[there] * np.log(law[there] / np.maximum(target[there], TINY))).sum())


class Forks:
    """Forks of contexts under one sampling.

    Attributes:
        thresholds: those of the alternatives: the engine's own, if it has one.
        cuts: what a draft is drawn from in the alternatives, by name.
        fewest: tokens that a draft must have to stand in the alternatives: the engine's own, or two, for of
            fewer none is withdrawn.
    """

    def __init__(
        self, models: tuple[CausalLM, CausalLM], sampling: SamplingParams, drafting: Drafting | None = None
    ) -> None:
        self._models, self._sampling = models, sampling
        drafting = drafting or Drafting()
        self.thresholds = (drafting.p_min,) if drafting.p_min else THRESHOLDS
        declared = f"its {drafting.top_k} best tokens"
        top_k = drafting.top_k
        self.cuts = dict(_CUTS) if top_k is None else {declared if top_k else next(iter(_CUTS)): top_k}
        self.fewest = max(LEAST_WITHDRAWN, drafting.n_min)

    def rows(self, ids: Sequence[int], last: int = 1) -> tuple[Floats, Floats]:
        """Return the laws of target and draft, [last, V] each, after each of the last tokens."""
        target, draft = (self._law(model, ids, last) for model in self._models)
        return target, draft

    def _law(self, model: CausalLM, ids: Sequence[int], last: int = 1) -> Floats:
        with torch.inference_mode():
            rows = warp(model.score_uncached(torch.tensor(ids), last=last).float(), self._sampling)
        return np.asarray(rows.double().cpu().numpy())

    def of(self, ids: Sequence[int]) -> Fork:
        (target,), (draft,) = self.rows(ids)
        known: dict[tuple[int, ...], Floats] = {}
        laws = {}
        for how, cut in self.cuts.items():
            drawn = cut_to(draft, cut)
            stays = self._stays(tuple(ids), draft, cut, self.fewest - 1, known)
            for at, those in zip(self.thresholds, stays, strict=True):
                laws[how, at] = withdrawn(target, drawn, those) if drawn.max() >= at else target
        return Fork(target, laws)

    def standing(self, ids: Sequence[int], draft: Floats) -> Standing:
        """Return which drafts after ``ids`` stand, with the draft's row [V] there."""
        known: dict[tuple[int, ...], Floats] = {}
        columns = np.argsort(-draft)[:_DRAWN]
        parts = []
        for cut in self.cuts.values():
            drawn = cut_to(draft, cut)
            stays = self._stays(tuple(ids), draft, cut, self.fewest - 1, known)
            stays *= (drawn > 0) & (drawn.max() >= np.array(self.thresholds))[:, None]
            least = np.full(len(stays), draft[drawn > 0].min())
            parts.append((stays[:, columns], stays @ drawn, least))
        stays, mass, least = (np.concatenate(each) for each in zip(*parts, strict=True))
        return Standing({int(token): n for n, token in enumerate(columns)}, stays, mass, least)

    @property
    def laws(self) -> list[tuple[str, float]]:
        """The alternatives, each by its cut and its threshold."""
        return [(how, at) for how in self.cuts for at in self.thresholds]

    def _stays(
        self,
        ids: tuple[int, ...],
        draft: Floats,
        cut: int,
        more: int,
        known: dict[tuple[int, ...], Floats],
        chance: float = 1.0,
    ) -> Floats:
        """[n, V] by threshold the probability that a draft stands, given its token after ``ids``.

        Args:
            ids: of the context and what was drafted so far.
            draft: [V] the draft's row behind them.
            cut: to how many of its best tokens a row is cut; 0: to none.
            more: how many tokens have to come for the draft to stand.
            known: rows behind contexts, for all cuts.
            chance: of what was drafted so far. What is improbable is taken to stand.
        """
        stays = np.ones((len(self.thresholds), len(draft)))
        for token in map(int, np.argsort(-draft)[:_DRAWN]):
            if chance * draft[token] <= _LIKELY:
                break
            longer = (*ids, token)
            if longer not in known:
                known[longer] = self._law(self._models[1], longer)[0]
            row = cut_to(known[longer], cut)
            sure = row.max() >= np.array(self.thresholds)
            stays[:, token] = sure
            if more > 1 and sure.any():
                rest = self._stays(longer, known[longer], cut, more - 1, known, chance * draft[token])
                stays[:, token] *= rest @ row
        return stays


def withdrawn(target: Floats, drawn: Floats, stays: np.ndarray) -> Floats:
    """[V] the law of the next token where a drafted one is withdrawn but with the probability that it
    ``stays``.

    A withdrawn draft leaves the target's own draw, another is accepted or replaced as it should be.
    """
    tested = drawn * stays
    accepted = np.minimum(drawn, target) * stays
    rest = np.maximum(target - np.minimum(drawn, target), 0.0)
    rejected = (tested - accepted).sum()
    replaced = rest / rest.sum() if rest.sum() > 0 else target
    law = (drawn.sum() - tested.sum()) * target + accepted + rejected * replaced
    return np.asarray(law / law.sum())


def choose(
    forks: Forks, prompts: Sequence[tuple[int, ...]], stop_ids: Collection[int], count: int
) -> list[tuple[int, ...]]:
    """Choose the contexts where withdrawn drafts would change most, each from another part of the prompts.

    An engine's first token may come from its prefill, which no draft precedes. So in turns the fork is
    behind the first token that a text is expected to have, and behind the context itself.
    """
    parts = dict.fromkeys(
        prompt[start : start + _MOST]
        for prompt in prompts
        for start in range(0, max(1, len(prompt) - _FEWEST), _MOST)
    )
    ends = {*stop_ids}
    places = {
        each.ids: each for part in parts for each in _expected_places(forks, part) if each.ids[-1] not in ends
    }
    near = sorted(places.values(), reverse=True)[: max(_LEAST, _NEAR * count)]
    # Laws behind a context take forwards, so that only the most promising are enumerated.
    left = [(forks.of(place.ids).by_threshold(forks.thresholds), place) for place in near]
    chosen: list[tuple[int, ...]] = []
    covered = np.zeros((2, len(forks.thresholds)))  # nats a draw of contexts so far: behind a token or not
    for turn in range(count):
        behind = turn % 2 == 0  # the expected token
        if not left:
            break
        # By the sum of logs: a threshold that no context shows yet is worth more than one more for another.
        summed = [covered[turn % 2] + nats * (place.expected if behind else 1.0) for nats, place in left]
        best = int(np.argmax([np.log1p(each / _ENOUGH).sum() for each in summed]))
        covered[turn % 2] = summed[best]
        ids = left[best][1].ids
        chosen.append(ids[:-1] if behind else ids)
        left = [(nats, place) for nats, place in left if not _begin_or_end_alike(place.ids, ids)]
    return chosen


class _Place(NamedTuple):
    """A context, by how much withdrawn drafts would change behind it.

    Attributes:
        nats: what it promises before it is enumerated: the change if only the draft's best token stood, or
            all others.
        ids: of the context.
        expected: the target's probability of its last token.
    """

    nats: float
    ids: tuple[int, ...]
    expected: float


def _begin_or_end_alike(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    n = min(len(one), len(other))
    return one[:n] == other[:n] or one[-_FEWEST:] == other[-_FEWEST:]


def _expected_places(forks: Forks, part: tuple[int, ...]) -> list[_Place]:
    """Those in a part of a prompt whose last token the target expects."""
    if len(part) <= _FEWEST:
        return []
    target, draft = forks.rows(part, last=len(part) - _FEWEST + 1)
    places = []
    for place in range(_FEWEST, len(part)):
        row = place - _FEWEST  # behind the token before
        expected = float(target[row, part[place]])
        drawn = draft[row + 1]
        starts = sum(drawn.max() >= at for at in forks.thresholds) / len(forks.thresholds)
        if expected < _EXPECTED or not starts:
            continue
        best = np.arange(len(drawn)) == drawn.argmax()
        laws = (withdrawn(target[row + 1], drawn, stays) for stays in (best, ~best))
        promise = max(divergence(law, target[row + 1]) for law in laws)
        places.append(_Place(promise * expected * starts, part[: place + 1], expected))
    return places


class AtContexts:
    """One e-process over what follows a few contexts, in the order in which it was drawn."""

    def __init__(self, forks: Forks) -> None:
        self._forks = forks
        self._known: dict[tuple[int, ...], tuple[int, Fork, Fork]] = {}
        self._counts = defaultdict[tuple[int, ...], Counter[int]](Counter)
        self._own = np.zeros((_DEPTH, len(_STRENGTHS)))
        self._laws = forks.laws
        self._stakes = np.zeros((2, len(self._laws)))  # behind the expected token, and the first
        self._expected = np.zeros((2, len(self._laws)))  # nats, were it so
        self._draws = Counter[int | None]()

    def add(self, prompt: tuple[int, ...], tokens: Sequence[int], q: Floats, free: int | None) -> None:
        """Add a text with the target's rows [n, V]; ``free`` tokens came before the first loop."""
        self._draws[free] += 1
        for depth in range(min(len(tokens), _DEPTH)):
            token, row = tokens[depth], q[depth]
            if row[token] <= 0:
                break  # an alarm by itself, or rounding
            counts = self._counts[prompt + tuple(tokens[:depth])]
            for number, strength in enumerate(_STRENGTHS):
                before = counts.total()
                ratio = (counts[token] / row[token] + strength) / (before + strength)
                self._own[depth, number] += math.log(ratio)
            counts[token] += 1
        if prompt not in self._known:
            first_fork = self._forks.of(prompt)
            first = int(first_fork.target.argmax())
            self._known[prompt] = first, self._forks.of([*prompt, first]), first_fork
        first, behind, first_fork = self._known[prompt]
        if len(tokens) > 1 and tokens[0] == first:
            self._bet(0, behind, tokens[1])
        self._bet(1, first_fork, tokens[0])

    def _bet(self, where: int, fork: Fork, token: int) -> None:
        if fork.target[token] <= 0:
            return
        for number, law in enumerate(self._laws):
            drawn = fork.withdrawn[law]
            self._stakes[where, number] += math.log(max(drawn[token], TINY) / fork.target[token])
            self._expected[where, number] += divergence(fork.target, drawn)

    def _wealth(self) -> tuple[Floats, Floats]:
        target, laws = self._own, self._stakes
        return target - math.log(2 * target.size), laws - math.log(2 * laws.size)

    @property
    def log_e(self) -> float:
        """Log of the e-value after all texts so far."""
        return float(np.logaddexp.reduce([each for part in self._wealth() for each in part.ravel()]))

    def leading(self) -> tuple[str, str | None]:
        """Where the e-value comes from, and what is wrong there if that is a withdrawn draft's law."""
        target, laws = self._wealth()
        if laws.max() >= target.max() - math.log(1e3):  # frequencies fit whatever is drawn
            where, number = np.unravel_index(int(laws.argmax()), laws.shape)
            how, at = self._laws[int(number)]
            place = (faults.AFTER_FIRST, faults.FIRST_TOKEN)[int(where)]
            return place, str(faults.WithdrawnShort(how, at, self._forks.fewest))
        return str(faults.ContextToken(int(target.max(1).argmax()) + 1)), None

    def finding(self, by_drafts: Mapping[float, float] | None = None) -> Finding:
        """Return which thresholds are ruled out: the law without a withdrawn draft is 20 times as probable.

        Where it is not known whether the first token comes before the first loop, both places have to say so.

        Args:
            by_drafts: what reported drafts say of thresholds, see ``ReportedDrafts.by_threshold``; those that
                they rule out need no text. They are of drafts of fewer than two tokens.
        """
        drafts = (by_drafts or {}) if self._forks.fewest == LEAST_WITHDRAWN else {}
        free = self._draws.most_common(1)[0][0] if self._draws else None
        places = (0, 1) if free is None else (1 - free,)
        ruled_out: dict[float, float] = {}  # the largest log e-value by threshold
        remaining: dict[float, float] = {}
        for threshold in self._forks.thresholds:
            judged = {where: self._judged_log_es(where, threshold) for where in places}
            logs = [log_e for those in judged.values() for log_e in those]
            if (log_e := drafts.get(threshold, 0.0)) <= -_RULED_OUT:
                ruled_out[threshold] = log_e
            elif logs:
                is_out = all(judged.values()) and max(logs) <= -_RULED_OUT
                (ruled_out if is_out else remaining)[threshold] = max(logs)
        if not ruled_out and not remaining:
            return skipped("withdrawn", TooFewToJudge(self._draws.total()))
        numbers: dict[str, float | int | str | None] = {
            "texts": self._draws.total(),
            "log10_most": max([*ruled_out.values(), *remaining.values()]) / math.log(10),
            "ruled_out": len(ruled_out),
            "left": len(remaining),
        }
        message = WithdrawnDrafts(self._forks.fewest, ruled_out, remaining)
        return Finding("withdrawn", True, message, "10^-1.3", numbers)

    def _judged_log_es(self, where: int, at: float) -> list[float]:
        """Of a threshold's laws at a place, of those that the draws can judge."""
        rows = zip(self._laws, self._stakes[where], self._expected[where], strict=True)
        return [float(log_e) for (_, threshold), log_e, nats in rows if threshold == at and nats >= _KNOWABLE]

    def is_ruled_out(self, by_drafts: Mapping[float, float] | None = None) -> bool:
        """Whether no withdrawn draft is left that these contexts could show; see ``finding``."""
        numbers = self.finding(by_drafts).numbers
        return bool(numbers.get("ruled_out")) and not numbers.get("left")

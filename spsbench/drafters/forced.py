"""What a drafter would have proposed along a given text, as replay needs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spsbench.base.arrays import Floats, Ints
from spsbench.base.errors import UsageError
from spsbench.base.records import SamplingParams
from spsbench.decode import rows
from spsbench.decode.protocols import Drafter, LanguageModel
from spsbench.law.text_loops import anchored, ratio_by_token
from spsbench.models.causal_lm import LAST, HiddenStates, States

_CPU = torch.device("cpu")


class StatesUpTo:
    """A target's hidden states as they were when it had read less.

    Args:
        states: of a target that has read the whole text.

    Attributes:
        length: how many tokens it is to have read; may be set.
    """

    def __init__(self, states: HiddenStates) -> None:
        self._states = states
        self.length = states.length

    def features(self, start: int, end: int, states: States = LAST) -> Tensor:
        """See ``HiddenStates``."""
        assert end <= self.length, "a state that is not there yet"
        return self._states.features(start, end, states)


@dataclass(frozen=True, slots=True)
class ForcedText:
    """A text of the target.

    Attributes:
        prompt: token ids, at least one.
        tokens: [n] what follows it.
        log_target: [n] log q of each, warped.
        hidden: the target's states over all of it, for drafters that read them.
        device: where the models are.
        target_rows: [n, V] the target's warped rows, for trees of drawn siblings.
    """

    prompt: Sequence[int]
    tokens: Sequence[int]
    log_target: Floats
    hidden: StatesUpTo | None = None
    device: torch.device = _CPU
    target_rows: Tensor | None = None

    @property
    def ids(self) -> Tensor:
        """[p + n] token ids of the prompt and the text after it, on the device."""
        return torch.tensor([*self.prompt, *self.tokens], device=self.device)

    def before(self, t: int) -> list[int]:
        """Return the tokens that are decided before token t."""
        return [*self.prompt, *self.tokens[:t]]


class ForcedDrafts(NamedTuple):
    """The drafts of loops that begin before each token of a text.

    Attributes:
        ratios: [n, K] see ``law.text_loops.loops_over``; with ``min(1, p / q)`` in their place, modified
            rejection alone is predicted, and block verification as if it were the same.
        drafted: [n] how many tokens are proposed there, as long as they are those of the text.
    """

    ratios: Floats
    drafted: Ints

    @property
    def chances(self) -> Floats:
        """[n, K] probabilities of acceptance by modified rejection, given that the earlier drafts stand."""
        return np.minimum(self.ratios, 1.0)


def forced_drafts(drafter: Drafter, text: ForcedText, k: int, name: str) -> ForcedDrafts:
    """Return the drafts of any drafter over a text, by its method ``forced``; what it remembers is then lost.

    Only a drafter whose proposals follow from the decided tokens alone has one.

    Raises:
        UsageError: it has none.
    """
    if not hasattr(drafter, "forced"):
        why = f"{name} cannot be replayed: it does not say what it would have proposed over a given text."
        remedy = "Measure it with spsbench run, or give it a method forced."
        raise UsageError(why, flag="--drafter", remedy=remedy)
    drafts: ForcedDrafts = drafter.forced(text, k)
    return drafts


def by_model(drafter: Any, text: ForcedText, k: int) -> ForcedDrafts:
    """Return a draft model's drafts, by one forward over the whole text."""
    model, sampling = drafter.model, drafter.sampling
    ids, n = text.ids, len(text.tokens)
    model.begin(text.prompt)
    logits = model.score(ids[-n - 1 : -1], last=n)
    return _rows_alone(_ratios(logits, ids[-n:], text.log_target, sampling), k)


def by_single_tokens(drafter: Drafter, text: ForcedText, k: int) -> ForcedDrafts:
    """Return the drafts of a drafter whose rows follow from the earlier tokens alone: one token at a time."""
    drafter.begin(text.prompt)
    p, u = [], torch.zeros(1, device=text.device)
    for t, token in enumerate(text.tokens):
        rows_drawn_from = drafter.draft(text.before(t), 1, u).own_rows
        assert rows_drawn_from is not None, "no rows"
        p.append(rows_drawn_from.probability(0, token))
        drafter.observe(text.before(t + 1), 0)
    return _rows_alone(ratios_of(text.log_target, p), k)


def by_proposals(drafter: Drafter, text: ForcedText, k: int) -> ForcedDrafts:
    """Return the drafts of a drafter whose tokens do not depend on each other.

    They come from its proposal before each token.
    """
    n = len(text.tokens)
    u = torch.zeros(k, device=text.device)
    ratios, drafted = np.zeros((n, k)), np.zeros(n, np.int64)
    drafter.begin(text.prompt)
    for t in range(n):
        before = text.before(t)
        if text.hidden is not None:
            text.hidden.length = len(before) - 1
        draft = drafter.draft(before, k, u)
        drafted[t] = len(draft.tokens)
        own_rows = draft.own_rows
        places = slice(t, t + len(draft.tokens))
        p = [
            float(token == proposed) if own_rows is None else own_rows.probability(j, token)
            for j, (token, proposed) in enumerate(
                zip(text.tokens[places], draft.tokens.tolist(), strict=False)
            )
        ]
        ratios[t, : len(p)] = ratios_of(text.log_target[places], p)
        drafter.observe(text.before(t + 1), 0)
    return ForcedDrafts(ratios, drafted)


def by_chain(drafter: Any, text: ForcedText, k: int) -> ForcedDrafts:
    """Return a head's drafts: a chain from every token on, over the states that it predicts itself."""
    assert text.hidden is not None, "no hidden states"
    model = drafter.model
    n = len(text.tokens)
    ids = text.ids
    ratios = np.zeros((n, k))
    drafted = np.full(n, k)
    text.hidden.length = len(text.prompt) - 1
    drafter.begin(text.prompt)
    for t in range(n):
        decided = len(text.prompt) + t
        text.hidden.length = decided - 1
        if decided < 2:
            drafted[t] = 0
            continue
        for j, logits in enumerate(chain_rows(model, ids, decided, min(k, n - t))):
            token = ids[decided + j : decided + j + 1]
            log_target = text.log_target[t + j : t + j + 1]
            ratios[t, j] = _ratios(logits, token, log_target, drafter.sampling)[0]
            if not ratios[t, j]:
                break  # never accepted, so that nothing after it is reached
    return ForcedDrafts(ratios, drafted)


def chain_rows(model: LanguageModel, ids: Tensor, start: int, count: int) -> Iterator[Tensor]:
    """Yield [1, V] logits before each of ``count`` tokens of a text, of a head whose draft began before
    ids[start].

    The next one may overwrite them.
    """
    model.rollback(start - 1)
    pending = ids[model.length : start]
    for place in range(start, start + count):
        yield model.score(pending, last=1)
        pending = ids[place : place + 1]


def _rows_alone(by_token: Floats, k: int) -> ForcedDrafts:
    return ForcedDrafts(anchored(by_token, k), np.full(len(by_token), k))


def _ratios(logits: Tensor, tokens: Tensor, log_target: Floats, sampling: SamplingParams) -> Floats:
    """[n] p / q of tokens [n], from a draft's logits before each [n, V]."""
    return ratios_of(log_target, rows.warped(logits, sampling).at(tokens).tolist())


def ratios_of(log_target: Floats, p: Sequence[float]) -> Floats:
    """[n] p / q of the first tokens, whose draft probabilities are ``p``."""
    with np.errstate(divide="ignore"):
        return ratio_by_token(log_target[: len(p)], np.log(np.array(p, np.float64)))

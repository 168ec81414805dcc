"""What a drafter would have done over a text that it did not write: what replay asks of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spsbench.decode import rows
from spsbench.decode.protocols import Drafter
from spsbench.decode.replay import Floats, accepted_by_token, anchored
from spsbench.errors import UsageError
from spsbench.models.features import HiddenStates
from spsbench.records import SamplingParams

Integers = npt.NDArray[np.int64]


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

    def features(self, start: int, end: int) -> Tensor:
        """See ``HiddenStates``."""
        assert end <= self.length, "a state that is not there yet"
        return self._states.features(start, end)


@dataclass(frozen=True, slots=True)
class ForcedText:
    """A text of the target.

    Attributes:
        prompt: token ids, at least one.
        tokens: [n] what follows it.
        log_target: [n] log q of each, warped.
        hidden: the target's states over all of it, for drafters that read them.
    """

    prompt: Sequence[int]
    tokens: Sequence[int]
    log_target: Floats
    hidden: StatesUpTo | None = None

    def before(self, t: int) -> list[int]:
        """What is decided before token t."""
        return [*self.prompt, *self.tokens[:t]]


class Forced(NamedTuple):
    """The drafts of loops that begin before each token of a text.

    Attributes:
        chances: [n, K] see ``decode.replay.loops_over``.
        drafted: [n] how many tokens are proposed there, as long as they are those of the text.
    """

    chances: Floats
    drafted: Integers


class Replayable(Protocol):
    """A drafter whose proposals follow from the decided tokens alone, and who can say them for any text."""

    def forced(self, text: ForcedText, k: int) -> Forced:
        """Its drafts over a text; what it remembers of earlier sequences is lost."""
        ...


def forced(drafter: Drafter, text: ForcedText, k: int, name: str) -> Forced:
    """The drafts of any drafter over a text.

    Raises:
        UsageError: it cannot be replayed.
    """
    if not hasattr(drafter, "forced"):
        raise UsageError(
            f"{name} cannot be replayed: it does not say what it would have proposed over a given text.",
            flag="--drafter",
            remedy="Measure it with spsbench run, or give it a method forced.",
        )
    found: Forced = drafter.forced(text, k)
    return found


def by_model(drafter: Any, text: ForcedText, k: int) -> Forced:
    """Of a draft model: one forward over the whole text."""
    model, sampling = drafter.model, drafter.sampling
    n, ids = len(text.tokens), [*text.prompt, *text.tokens]
    model.rollback(0)
    logits = model.score(torch.tensor(ids[:-1]), last=n)
    return _rows_alone(_chances(logits, text.tokens, text.log_target, sampling), k)


def by_single_tokens(drafter: Drafter, text: ForcedText, k: int) -> Forced:
    """Of a drafter whose rows follow from the tokens before them alone: its draft of one token everywhere."""
    drafter.begin(text.prompt)
    log_draft = np.empty(len(text.tokens))
    for t, token in enumerate(text.tokens):
        found = drafter.draft(text.before(t), 1, torch.zeros(1)).own_rows
        assert found is not None, "no rows"
        log_draft[t] = _log(found.probability(0, token))
        drafter.observe(text.before(t + 1), 0)
    return _rows_alone(accepted_by_token(text.log_target, log_draft), k)


def by_proposals(drafter: Drafter, text: ForcedText, k: int) -> Forced:
    """Of a drafter whose tokens do not depend on each other: what it proposes before every token."""
    n = len(text.tokens)
    chances, drafted = np.zeros((n, k)), np.zeros(n, np.int64)
    drafter.begin(text.prompt)
    for t in range(n):
        before = text.before(t)
        if text.hidden is not None:
            text.hidden.length = len(before) - 1
        draft = drafter.draft(before, k, torch.zeros(k))
        drafted[t] = len(draft.tokens)
        told = draft.own_rows
        wanted = text.tokens[t : t + len(draft.tokens)]
        for j, (token, proposed) in enumerate(zip(wanted, draft.tokens.tolist(), strict=False)):
            chance = float(token == proposed) if told is None else told.probability(j, token)
            chances[t, j] = accepted_by_token(text.log_target[t + j : t + j + 1], np.array([_log(chance)]))[0]
        drafter.observe(text.before(t + 1), 0)
    return Forced(chances, drafted)


def by_chain(drafter: Any, text: ForcedText, k: int) -> Forced:
    """Of a head on the target's states: from every token on, behind what it would have predicted."""
    assert text.hidden is not None, "no hidden states"
    model, n = drafter.model, len(text.tokens)
    chances, drafted = np.zeros((n, k)), np.full(n, k)
    text.hidden.length = len(text.prompt) - 1
    drafter.begin(text.prompt)
    for t in range(n):
        before = text.before(t)
        text.hidden.length = len(before) - 1
        if len(before) < 2:
            drafted[t] = 0
            continue
        model.rollback(len(before) - 1)
        pending = torch.tensor(before[model.length :])
        for j in range(min(k, n - t)):
            own = slice(t + j, t + j + 1)
            logits = model.score(pending, last=1)
            chances[t, j] = _chances(logits, text.tokens[own], text.log_target[own], drafter.sampling)[0]
            pending = torch.tensor(text.tokens[own])
    return Forced(chances, drafted)


def _rows_alone(by_token: Floats, k: int) -> Forced:
    return Forced(anchored(by_token, k), np.full(len(by_token), k))


def _chances(logits: Tensor, tokens: Sequence[int], log_target: Floats, sampling: SamplingParams) -> Floats:
    """[n] min(1, p / q) of tokens, from a draft's logits before each [n, V]."""
    p = rows.warped(logits, sampling).at(torch.tensor(tokens)).double()
    return accepted_by_token(log_target, p.log().cpu().numpy())


def _log(chance: float) -> float:
    return float(np.log(chance)) if chance > 0 else -np.inf

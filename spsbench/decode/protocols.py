"""What a loop talks to: a drafter, which proposes, a verifier, which judges, and language models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from spsbench.decode.rejection import Decision, Draft
from spsbench.decode.rows import Rows


class LanguageModel(Protocol):
    """A language model that caches the tokens it has read (batch size 1).

    A sequence is one list of tokens. Of an encoder-decoder it begins with the source, whose tokens are read
    by ``begin`` and have no rows, and goes on with the tokens that the decoder starts with.

    Attributes:
        vocab_size: V, the width of the logits.
    """

    vocab_size: int

    @property
    def length(self) -> int:
        """Number of tokens that have been read."""
        ...

    def begin(self, prompt: Sequence[int]) -> Tensor:
        """Forget the last sequence and read a prompt but its last token, which no algorithm gets for nothing.

        Args:
            prompt: at least one token; of an encoder-decoder the source and what the decoder starts with,
                maybe with tokens after that.

        Returns:
            [1] the pending token, on the model's device: what is to be scored next begins with it.
        """
        ...

    def room_behind(self, prompt: Sequence[int]) -> int:
        """Return how many tokens the window leaves to score after a prompt."""
        ...

    def score(self, tokens: Tensor, last: int) -> Tensor:
        """Append tokens to the cache and return the logits after the last few.

        Args:
            tokens: [n] int64, n >= 1.
            last: number of logit rows to return, 1 to n.

        Returns:
            [last, V] logits; row i predicts the token after token n - last + i. The next ``score`` of
            this model may overwrite them: who needs them longer makes a copy.
        """
        ...

    def rollback(self, length: int) -> None:
        """Keep only the first ``length`` tokens; no effect if fewer are cached."""
        ...


def read_prompt(model: LanguageModel, prompt: Sequence[int], device: torch.device | None = None) -> Tensor:
    """Begin a model to which a prompt is tokens like any others, see ``LanguageModel.begin``.

    Args:
        model: forgets its last sequence.
        prompt: at least one token.
        device: of the model; the CPU if not given.
    """
    model.rollback(0)
    tokens = torch.tensor(prompt, device=device)
    if len(prompt) > 1:
        model.score(tokens[:-1], last=1)
    return tokens[-1:]


class Tokens(list[int]):
    """A sequence on the host, whose last tokens are on the models' device too.

    A loop decides its tokens on the device. Read from the host again they would make it wait for a copy.

    Args:
        tokens: all of it.
        latest: [n] the last ones on the device; None if only the host has them.
    """

    __slots__ = ("_latest",)

    def __init__(self, tokens: Iterable[int], latest: Tensor | None = None) -> None:
        super().__init__(tokens)
        self._latest = latest

    def add(self, new: Sequence[int], latest: Tensor | None) -> None:
        """Append tokens, the last of which are ``latest`` on the device; None if the device has none."""
        self += new
        self._latest = latest

    def on_device(self, count: int) -> Tensor | None:
        """Return [count] the last tokens; None where the device has fewer."""
        count_there = 0 if self._latest is None else len(self._latest)
        return None if self._latest is None or count_there < count else self._latest[count_there - count :]


def sent(values: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Return integers, at least one, as a tensor on a device; on CUDA by pinned memory, without waiting."""
    made = torch.from_numpy(np.array(values))
    if device.type == "cpu":
        return made
    return made.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else made.to(device)


def last_tokens(tokens: Sequence[int], count: int, device: torch.device) -> Tensor:
    """Return [count] the last tokens of a sequence, copied to the device only where they are not on it."""
    on_device = None if device.type == "cpu" or not isinstance(tokens, Tokens) else tokens.on_device(count)
    return sent(tokens[-count:], device) if on_device is None else on_device


class Drafter(Protocol):
    """Proposes tokens after a sequence.

    A loop calls ``draft``, lets the target judge, and reports the result to the drafter through ``observe``.
    """

    def begin(self, prompt: Sequence[int]) -> None:
        """A new sequence: forget the last one, and read what should not be charged to the first loop.

        Args:
            prompt: all of its tokens; the last is pending, as for the target.
        """
        ...

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        """Propose up to k tokens after ``tokens``; fewer, or none, where there is nothing to propose.

        Args:
            tokens: the whole sequence so far, prompt included.
            k: lookahead, at least 1.
            u: [k] uniform numbers in [0, 1), one a token; a drafter that draws nothing leaves them.
        """
        ...

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """End the loop.

        Args:
            tokens: the whole sequence now; whatever was drafted beyond it is to be forgotten.
            accepted: how many of the drafted tokens stand.
        """
        ...


class Verified(NamedTuple):
    """What a verifier makes of a loop.

    Attributes:
        rows: the target's n+1 warped rows, at the n drafted tokens and after them.
        decision: what stands of the draft, and the token after it.
    """

    rows: Rows
    decision: Decision


class Verifier(Protocol):
    """Judges drafts by the target, which has read all tokens but the pending one.

    ``algorithms.TargetVerifier`` is the definition of the law; ``engines.cuda_graph.StagedSequence``, which
    launches graphs, is compared with it token for token.
    """

    def score(self, tokens: Sequence[int], draft: Draft | None) -> None:
        """Have the target read the pending token and the drafted ones, in one pass.

        Args:
            tokens: the whole sequence so far; its last one is pending.
            draft: a chain; None for a step of ArS.
        """
        ...

    def judge(self, draft: Draft | None, u: Tensor) -> Verified:
        """Decide by what was scored, and bring the outcome to the host, in one wait.

        Args:
            draft: what was given to ``score``.
            u: [n+1] uniform numbers: the tests of the n drafted tokens, and the final draw.
        """
        ...

    def keep(self, length: int) -> None:
        """End the loop: of what the target has read only the first ``length`` tokens stand."""
        ...

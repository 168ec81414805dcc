"""Steps on logits that depend on the tokens before: penalties, bias, bans, a minimum length, a grammar.

They come before temperature and cuts in every convention (``sampling.warp`` has these), so that a row is
``warp(with_history(logits, ...))``. Of a drafted token's row the tokens before include those drafted before
it: that a row after a draft is processed as one without a draft is what keeps speculation lossless.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from spsbench.base.errors import UsageError
from spsbench.base.plugins import require_grammars
from spsbench.base.records import Processing, SamplingParams
from spsbench.decode.sampling import ORDERS

CONVENTIONS = tuple(ORDERS)

LAST_N = 64
"""How many tokens llama.cpp looks back for its three penalties, ``penalty_last_n``."""

Mask = Callable[[Sequence[int]], Tensor | None]
"""[V] which tokens may follow an output; None where the output has left the grammar."""


@dataclass(frozen=True, slots=True)
class Bound(Processing):
    """Processing for one model.

    Attributes:
        stop_ids: tokens that end the output.
        mask: of the grammar.
    """

    stop_ids: tuple[int, ...] = ()
    mask: Mask | None = field(default=None, compare=False)


class Ends(Protocol):
    """A tokenizer, of which only a grammar needs more than the tokens that end an output."""

    eos_ids: frozenset[int]


def bound(
    sampling: SamplingParams, tokenizer: Ends, stop_ids: frozenset[int] = frozenset()
) -> SamplingParams:
    """Return the same sampling with what its processing needs of a tokenizer; itself where that is nothing.

    ``stop_ids`` end the output beside the tokenizer's own.
    """
    process = sampling.history
    if process is None or isinstance(process, Bound):
        return sampling
    if getattr(tokenizer, "border", None) is not None:
        plain = Processing(min_p=process.min_p, typical_p=process.typical_p).record()
        record = process.record()
        name = next(name for name, value in record.items() if value != plain[name])
        why = "for an encoder-decoder it is not defined what comes before the output."
        raise UsageError(why, flag=f"--process {name}", remedy="Leave it out, or choose a decoder.")
    stops = tuple(sorted(tokenizer.eos_ids | stop_ids))
    mask = None
    if process.grammar is not None:
        # Only llguidance forces tokens, and only xgrammar (vLLM) lets every stop token end a grammar.
        ends = stops if process.convention == "vllm" else tuple(sorted(tokenizer.eos_ids))
        mask = _grammar(process.grammar, cast("Any", tokenizer), ends, process.convention == "transformers")
    values = {each.name: getattr(process, each.name) for each in fields(Processing)}
    return replace(sampling, process=Bound(**values, stop_ids=stops, mask=mask))


def with_history(logits: Tensor, process: Processing | None, tokens: Sequence[int], prompt: int) -> Tensor:
    """Return logits after the steps that look at the tokens before.

    Args:
        logits: [n, V]; row i follows all but the last n - 1 - i tokens.
        process: ``SamplingParams.history``; bound to a model if it has a minimum length or a grammar.
        tokens: prompt, output and what was drafted, as far as the last row sees.
        prompt: how many of them are the prompt.
    """
    if process is None:
        return logits
    logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits.clone()
    first = len(tokens) - len(logits) + 1
    for row, end in zip(logits, range(first, len(tokens) + 1), strict=True):
        _process_row(row, process, list(tokens[:end]), prompt)
    return logits


def _process_row(row: Tensor, process: Processing, before: list[int], prompt: int) -> None:
    """Process one row [V] in place."""
    for token, bias in process.logit_bias:
        row[token] += bias
    output = before[prompt:]
    window = before[-LAST_N:] if process.convention == "llama-cpp" else None
    penalty = process.repetition_penalty
    if penalty != 1.0:
        seen = torch.tensor(sorted(set(before if window is None else window)), device=row.device)
        seen_logits = row[seen]
        row[seen] = torch.where(seen_logits < 0, seen_logits * penalty, seen_logits / penalty)
    counted = output if window is None else window
    if counted and (process.presence_penalty or process.frequency_penalty):
        times = Counter(counted)
        counts = torch.tensor(list(times.values()), device=row.device, dtype=row.dtype)
        row[list(times)] -= process.presence_penalty + process.frequency_penalty * counts
    past = before if process.convention == "transformers" else output
    for *start, last in process.bad_words:
        if not start or past[-len(start) :] == start:
            row[last] = -torch.inf
    if process.min_new_tokens or process.grammar is not None:
        _exclude_forbidden(row, process, output)


def _exclude_forbidden(row: Tensor, process: Processing, output: list[int]) -> None:
    """Exclude the tokens that a grammar or the minimum length forbids after an output."""
    if not isinstance(process, Bound):
        raise ValueError(f"{process.described} is not bound to a model: see ``processors.bound``")
    allowed = None if process.mask is None else process.mask(output)
    if allowed is not None:
        # A model may have more logits than the tokenizer has tokens, and the mask whole words of bits.
        allowed_here = torch.zeros(len(row), dtype=torch.bool)
        allowed_here[: len(allowed)] = allowed[: len(row)]
        row[~allowed_here.to(row.device)] = -torch.inf
    if len(output) < process.min_new_tokens:
        ends = torch.tensor(process.stop_ids, dtype=torch.long, device=row.device)
        longer = row.index_fill(0, ends, -torch.inf)
        if not longer.isneginf().all():  # else the grammar ends here, and its end comes first
            row.copy_(longer)


class Matcher(Protocol):
    """A grammar after some tokens, as llguidance has it."""

    def deep_copy(self) -> Matcher: ...

    def consume_token(self, token: int) -> bool: ...

    def compute_bitmask(self) -> bytes: ...


_MOST_STATES = 4096


class Grammar:
    """The mask of a JSON schema, by llguidance.

    States of the grammar are kept by the output that led to them, so that a draft which is rejected costs
    nothing to take back.

    Args:
        schema: JSON.
        tokenizer: a ``models.tokenizer.Tokenizer``.
        ends: tokens that end an output which the schema allows to.
        forced: where the schema leaves one text, only the tokens that the tokenizer cuts it into are
            possible (llguidance's own way); else all that spell it.
        start: the grammar before any token; made of the others unless given.
    """

    def __init__(
        self, schema: str, tokenizer: Any, ends: tuple[int, ...], forced: bool, start: Matcher | None = None
    ) -> None:
        self._states: dict[tuple[int, ...], Matcher | None] = {}
        self._start = _matcher(schema, tokenizer, ends, forced) if start is None else start
        self._states[()] = self._start

    def __call__(self, output: Sequence[int]) -> Tensor | None:
        """See ``Mask``."""
        state = self._matcher_after(tuple(output))
        if state is None:
            return None
        bits = torch.frombuffer(bytearray(state.compute_bitmask()), dtype=torch.uint8)
        return (bits.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8) & 1).flatten().bool()

    def _matcher_after(self, output: tuple[int, ...]) -> Matcher | None:
        known = next(n for n in range(len(output), -1, -1) if output[:n] in self._states)
        state = self._states[output[:known]]
        for end in range(known + 1, len(output) + 1):
            if state is not None:
                state = state.deep_copy()
                state = state if state.consume_token(output[end - 1]) else None
            if len(self._states) >= _MOST_STATES:
                self._states = {(): self._start}
            self._states[output[:end]] = state
        return state


_grammar = lru_cache(maxsize=8)(cast("Callable[[str, Any, tuple[int, ...], bool], Grammar]", Grammar))
"""What is slow to make; of a tokenizer that is known by identity."""


def _matcher(schema: str, tokenizer: Any, ends: tuple[int, ...], forced: bool) -> Matcher:
    require_grammars()
    from llguidance import LLMatcher
    from llguidance.hf import from_tokenizer

    known = from_tokenizer(tokenizer.hugging_face, eos_token=[*ends])
    free = f'%llguidance {{"no_forcing": true}}\nstart: %json {schema}'
    grammar = LLMatcher.grammar_from_json_schema(schema) if forced else LLMatcher.grammar_from_lark(free)
    compiled = LLMatcher(known, grammar, log_level=0)
    if compiled.is_error():
        raise UsageError(f"it cannot be followed: {compiled.get_error()}.", flag="--process grammar")
    matcher: Matcher = compiled
    return matcher

"""What every loaded causal language model can do, whatever computes it; whether its cache rolls back."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from spsbench.base.errors import RanksFault, UsageError, first_line
from spsbench.decode.protocols import read_prompt
from spsbench.models.choices import Choices
from spsbench.models.faults import refuse_fault
from spsbench.models.layers import windows
from spsbench.models.location import limit_of
from spsbench.models.text_part import text_class
from spsbench.models.tokenizer import Border
from spsbench.models.witness import ReadBlock


def built(config: Any, dtype: torch.dtype | None) -> Any:
    """Build a configuration's model, with its architecture's initial weights, on torch's default device."""
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    dtype = dtype or getattr(config, "dtype", None) or torch.float32
    alone = text_class(config)
    if alone is not None:
        return alone._from_config(config, dtype=dtype)
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    return kind.from_config(config, dtype=dtype)


def skeleton(config: Any, dtype: torch.dtype | None = None) -> Any:
    """Build a model as ``built`` does, on the device ``meta``: nothing is allocated."""
    with torch.device("meta"):
        return built(config, dtype)


class VocabularyRows:
    """Puts logits of m tokens, whose ids [m] ascend, into rows of V, minus infinity elsewhere."""

    def __init__(self, ids: Tensor, vocab_size: int) -> None:
        self.ids, self.vocab_size = ids, vocab_size
        self._rows = torch.empty(0, vocab_size, device=ids.device)

    def __call__(self, logits: Tensor) -> Tensor:
        """Spread logits [n, m] over the vocabulary, [n, V]; the next call overwrites them."""
        if len(self.ids) == self.vocab_size:
            return logits
        n = len(logits)
        if n > len(self._rows) or logits.dtype != self._rows.dtype:
            with torch.inference_mode(
                False
            ):  # tensors made in inference mode cannot be written to outside of it
                self._rows = logits.new_full((n, self.vocab_size), float("-inf"))
        rows = self._rows.narrow(0, 0, n)
        return rows.index_copy_(1, self.ids, logits)


States = tuple[int, ...]
"""Which of a token's hidden states: k for the residual stream after k layers, 0 for the embedding as the
first layer gets it, n for what the final norm gets, ``NORMED`` for what that norm hands to the head."""

NORMED = -1
LAST: States = (NORMED,)


class HiddenStates(Protocol):
    """Who keeps the states of the tokens that it has cached."""

    @property
    def length(self) -> int: ...

    def features(self, start: int, end: int, states: States = LAST) -> Tensor:
        """[end - start, states x hidden] beside each other, of the cached tokens from ``start`` on; a view
        where it can be."""
        ...


def columns_of(kept: States, states: States, rows: Tensor) -> Tensor:
    """[n, states x hidden] of rows [n, kept x hidden]; a view where they are all of them, or one."""
    if states == kept:
        return rows
    width = rows.shape[1] // len(kept)
    parts = [rows.narrow(1, kept.index(state) * width, width) for state in states]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def roomy(held: int, wanted: int) -> int:
    """Return how many tokens to make room for: whole blocks, and an eighth more than are held.

    Matrix products go over all of it, so that much more would be paid for in every forward.
    """
    return -(-max(wanted, held + held // 8) // 256) * 256


class FeatureRows:
    """Rows by position, in a buffer with room to grow; like a cache, it is rolled back by writing earlier.

    Attributes:
        states: which hidden states of a token a row has, beside each other.
    """

    def __init__(self, states: States = LAST) -> None:
        assert states, "no states"
        self.states = states
        self._rows = torch.empty(0, 0)

    def write(self, start: int, parts: Sequence[Tensor]) -> None:
        """Put a part [n, hidden] for each of the states at ``start`` and after it."""
        n, width = parts[0].shape
        end = start + n
        if end > len(self._rows):
            grown = parts[0].new_empty(roomy(start, end), width * len(self.states))
            if start:
                grown[:start] = self._rows[:start]
            self._rows = grown
        for place, part in enumerate(parts):
            self._rows.narrow(0, start, n).narrow(1, place * width, width).copy_(part)

    def move(self, start: int, columns: Tensor) -> None:
        if not len(columns):
            return
        self._rows.narrow(0, start, len(columns)).copy_(self._rows.index_select(0, columns))

    def read(self, start: int, end: int, states: States) -> Tensor:
        return columns_of(self.states, states, self._rows.narrow(0, start, end - start))


class CausalLM(ABC):
    """A loaded model with its own KV cache; batch size 1.

    Attributes:
        vocab_size: number of logits used; the rest pads the embedding.
        vocabulary: [m] the token ids that it can propose, ascending, on its device; other logits are minus
            infinity. None for all.
    """

    backend: str
    layers: int
    parameters: int  # number of weights
    kv_bytes_per_token: int | None  # keys and values, which a forward reads of each cached token, if known
    vocabulary: Tensor | None = None
    border: Border | None = None
    rolled_back_by = "length"
    """How its cache is rolled back: ``length`` by forgetting rows, else see ``models.recurrent``."""
    state_bytes = 0
    """Of the running states of a sequence, which have no row for each token."""

    def __init__(self, config: Any, vocab_size: int, device: torch.device, dtype: torch.dtype) -> None:
        self.config = config
        self.vocab_size = vocab_size
        self.context_window = context_window(config)
        self.device = device
        self.dtype = dtype
        self._features: FeatureRows | None = None
        self.attached: dict[Hashable, Any] = {}

    @property
    @abstractmethod
    def weights(self) -> str:
        """How its matrices are stored: a dtype, or ``int8`` or ``int4`` for rounded ones."""

    @property
    @abstractmethod
    def length(self) -> int:
        """See ``LanguageModel.length``."""

    def begin(self, prompt: Sequence[int]) -> Tensor:
        return read_prompt(self, prompt, self.device)

    @abstractmethod
    def score(self, tokens: Tensor, last: int) -> Tensor:
        """See ``LanguageModel.score``."""

    @abstractmethod
    def rollback(self, length: int) -> None:
        """See ``LanguageModel.rollback``."""

    @abstractmethod
    def restore(self, length: int) -> None:
        """Undo rollbacks: count ``length`` tokens as read again.

        The cache still holds them as long as nothing else was scored after a rollback: the same tokens, at
        the same places, may have been.
        """

    @abstractmethod
    def score_uncached(self, tokens: Tensor, last: int = 0) -> Tensor:
        """Logits [n, V] of all n tokens in one forward that knows nothing of the cache.

        Args:
            tokens: [n]; of an encoder-decoder from the source on, whose tokens have no rows.
            last: return the last rows only, [last, V]; 0 for all.
        """

    def score_uncached_parts(self, tokens: Tensor, last: int, rows: int) -> Iterator[Tensor]:
        """The last rows of ``score_uncached``, at most so many [rows, V] at a time.

        Where the head can be computed apart from the body, the rows of one part are in memory alone.
        """
        yield from torch.split(self.score_uncached(tokens, last), rows)

    def score_in_blocks(
        self, tokens: Tensor, first: int, blocks: Sequence[ReadBlock], choices: Choices | None = None
    ) -> Iterator[Tensor] | None:
        """Logits [kept, V] of the tokens from ``first`` on, block by block.

        By transformers' own cache, behind one forward of all tokens before: it shows how far rounding alone
        moves a row, and shares nothing with the cache that is rolled back.

        Args:
            tokens: [n]; of an encoder-decoder from the source on.
            first: where blocks begin.
            blocks: as many kept tokens as there are, or fewer.
            choices: remembers the experts and keys that were chosen for all tokens but the dropped ones.

        Returns:
            None where there is no such cache.
        """
        return None

    def room_behind(self, prompt: Sequence[int]) -> int:
        return self.context_window - len(prompt)

    def as_prompt(self, tokens: Tensor) -> Tensor:
        """Return tokens [n], at least one, as a prompt of this model; for an encoder-decoder as a source."""
        return tokens

    @abstractmethod
    def twin(self) -> CausalLM:
        """The same model with its own KV cache; weights are shared."""

    @abstractmethod
    def with_features(self, flag: str, states: States = LAST) -> CausalLM:
        """Return the same model, with its own KV cache, that also keeps hidden states of every token.

        Raises:
            UsageError: its forward does not show them, or there is no such state.
        """

    def features(self, start: int, end: int, states: States = LAST) -> Tensor:
        """See ``HiddenStates.features``; only for a model made by ``with_features`` with these states."""
        assert self._features is not None, "made by with_features"
        return self._features.read(start, end, states)

    @property
    def keeps_features(self) -> bool:
        return self._features is not None

    @property
    def kept_states(self) -> States:
        """Which states ``features`` can give; empty where none are kept."""
        return () if self._features is None else self._features.states

    @abstractmethod
    def embedding_fingerprint(self) -> str:
        """Return a name of its embedding table, see ``trained.embedding_fingerprint``."""

    @property
    @abstractmethod
    def embedding_shape(self) -> tuple[int, int]:
        """Rows and width of its embedding table."""

    @abstractmethod
    def forward_bytes(self, rows: int = 1) -> int:
        """Bytes of weights that a forward of a few tokens reads."""

    @abstractmethod
    def reference(self) -> Any:
        """Return the ``TorchLM`` with transformers' own forward: itself, or loaded for the purpose."""

    @abstractmethod
    def truncated(self, layers: int, flag: str) -> CausalLM:
        """The first layers under the model's own final norm and head, with its own KV cache."""

    def _require_kept(self, states: States, flag: str) -> None:
        """Refuse states that are none of this model's."""
        beyond = [state for state in states if not NORMED <= state <= self.layers]
        if beyond:
            why = f"there is no state after {beyond[0]} layers in a target of {self.layers}."
            raise UsageError(why, flag=flag, remedy="Choose the target that the head was made for.")

    def _require_layers(self, layers: int, flag: str) -> None:
        if not 1 <= layers <= self.layers:
            remedy = f"Give layers=1 to {self.layers}."
            raise UsageError(f"{layers} layers cannot be taken of {self.layers}.", flag=flag, remedy=remedy)


class OverTarget(ABC):
    """A model that drafts over the states of its target, as a language model of batch size 1.

    Args:
        target: the caller has rolled it back to what was decided.
        hidden: its states, and how many tokens it has read.
    """

    def __init__(self, target: CausalLM, hidden: HiddenStates) -> None:
        self.vocab_size, self.context_window = target.vocab_size, target.context_window
        self.device = target.device
        self._hidden = hidden

    @property
    @abstractmethod
    def length(self) -> int: ...

    def begin(self, prompt: Sequence[int]) -> Tensor:
        return read_prompt(self, prompt, self.device)

    def room_behind(self, prompt: Sequence[int]) -> int:
        return self.context_window - len(prompt)

    @abstractmethod
    def score(self, tokens: Tensor, last: int) -> Tensor:
        """See ``LanguageModel.score``; ``last`` is 1."""

    @abstractmethod
    def rollback(self, length: int) -> None: ...

    @abstractmethod
    def forward_bytes(self) -> int:
        """Bytes of weights that a forward reads."""


def text_config(config: Any) -> Any:
    """Return the language model's part of a configuration; for a text-only model the configuration itself."""
    return config if config.is_encoder_decoder else config.get_text_config()


def decoder_layers(config: Any) -> int:
    """Return the number of layers that a token passes; in an encoder-decoder those of the decoder."""
    names = ("num_decoder_layers", "decoder_layers") if config.is_encoder_decoder else ()
    own = (getattr(config, name, None) for name in names)
    return int(next((value for value in own if value), text_config(config).num_hidden_layers))


def context_window(config: Any) -> int:
    """Return the longest sequence the model supports, in tokens; 2^30 if its configuration states no limit.

    LongRoPE switches all positions to other frequencies once a sequence exceeds its original length.
    Cached keys would keep the old frequencies, and a block that crosses the limit would be scored
    differently from its tokens one by one. So the window ends there.
    """
    text = text_config(config)
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope" and rope.get("original_max_position_embeddings"):
        return int(rope["original_max_position_embeddings"])
    return limit_of(lambda name: getattr(text, name, None)) or 1 << 30


def attention_window(config: Any) -> int | None:
    """Return the narrowest sliding or chunked layer's window in tokens; None if all attention is full."""
    text = text_config(config)
    if getattr(text, "use_sliding_window", True) is False:
        return None
    return min(windows(text), default=None)


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Largest absolute differences of logits between cached and uncached forwards."""

    cached: float
    rolled_back: float
    scale: float  # largest absolute logit, for comparison
    prompt_tokens: int
    bits: str  # hash of the cached logits, bit for bit: whether two processes compute alike

    @property
    def worst(self) -> float:
        """The larger difference, relative to the logits' scale; NaN where one is."""
        larger = torch.tensor([self.cached, self.rolled_back], dtype=torch.float64).max()
        return float(larger) / max(self.scale, 1e-9)


_PROMPT, _BLOCK, _KEPT = 24, 5, 2

# Wider attention windows are not crossed, since the forwards would take long. They need no test: the
# cache stores every token whatever the window, so that rollback is the same operation.
_WIDEST_WINDOW = 256


@torch.inference_mode()
def self_test(model: CausalLM, seed: int = 0) -> SelfTest:
    """Score a prompt and a block, roll back into the block, continue; compare with uncached forwards.

    It catches caches that cannot be rolled back, windows cut too early, wrong positions and masks. The
    prompt is long enough to exceed a small attention window, and short enough that the block fits.
    """
    window = attention_window(model.config) or 0
    wanted = _PROMPT + (window if window <= _WIDEST_WINDOW else 0)
    length = min(wanted, model.context_window - _BLOCK - 2)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(model.vocab_size, (length + _BLOCK + 1,), generator=generator).to(model.device)
    prompt = model.as_prompt(drawn[:length])
    block = drawn[length:-1]
    other = drawn[-1:]
    pending = model.begin(prompt.tolist())
    cached = model.score(torch.cat([pending, block]), last=_BLOCK).clone()
    kept = len(prompt) + _KEPT
    model.rollback(kept)
    continued = model.score(other, last=1)
    model.rollback(0)
    tokens = torch.cat([prompt, block])
    full = model.score_uncached(tokens)
    branch = model.score_uncached(torch.cat([tokens[:kept], other]))
    loops = 0.0 if model.rolled_back_by == "length" else _worst_of_loops(model, generator)
    digest = hashlib.sha256()
    for rows in (cached, continued):
        digest.update(rows.float().cpu().numpy().tobytes())
    cached, continued, full, branch = (proposable(model, rows) for rows in (cached, continued, full, branch))
    return SelfTest(
        cached=float((cached.double() - full[-_BLOCK:].double()).abs().max()),
        rolled_back=max(float((continued.double() - branch[-1:].double()).abs().max()), loops),
        scale=float(full.abs().max()),
        prompt_tokens=length,
        bits=digest.hexdigest()[:16],
    )


_K, _ACCEPTED = 4, (2, 0, 4, 1, 3, 0)


def _worst_of_loops(model: CausalLM, generator: torch.Generator) -> float:
    """Largest difference of logits between loops with rejections and an uncached forward.

    A running state is rolled back, read on and rolled back again, by blocks as a target's and token by token
    as a draft's; a second sequence of the same weights takes turns, so that neither may touch the other's.
    """
    both = [_LoopsOf(each, generator) for each in (model, model.twin())]
    for number, accepted in enumerate(_ACCEPTED):
        for one in both:
            one.loop(accepted, in_block=number % 3 != 2)
    worst = max(one.difference() for one in both)
    model.rollback(0)
    return worst


class _LoopsOf:
    """A sequence that was decided beforehand, and loops that reject what differs from it."""

    def __init__(self, model: CausalLM, generator: torch.Generator) -> None:
        self._model, size = model, model.vocab_size
        length = _PROMPT + sum(_ACCEPTED) + len(_ACCEPTED) + 1
        self._tokens = torch.randint(size, (length,), generator=generator).to(model.device)
        self._wrong = (self._tokens + 1) % size
        self._rows: list[Tensor] = []
        model.begin(self._tokens[:_PROMPT].tolist())

    def loop(self, accepted: int, *, in_block: bool) -> None:
        """Read the pending token and K drafted ones, of which some are right; go back to those."""
        start = self._model.length
        block = self._tokens[start : start + _K + 1].clone()
        block[accepted + 1 :] = self._wrong[start + accepted + 1 : start + _K + 1]
        parts = (block,) if in_block else torch.split(block, 1)
        rows = torch.cat([self._model.score(part, last=len(part)).clone() for part in parts])
        self._rows.append(rows[: accepted + 1])
        self._model.rollback(start + accepted + 1)

    def difference(self) -> float:
        rows = torch.cat(self._rows)
        tokens = self._tokens[: _PROMPT - 1 + len(rows)]
        full = self._model.score_uncached(tokens, last=len(rows))
        rows, full = (proposable(self._model, each).double() for each in (rows, full))
        return float((rows - full).abs().max())


def proposable(model: CausalLM, logits: Tensor) -> Tensor:
    """[n, m] the logits of the tokens that a model can propose; an error where other tokens are possible."""
    if model.vocabulary is None:
        return logits
    others = logits.index_fill(1, model.vocabulary, float("-inf"))
    if not bool((others == float("-inf")).all()):
        raise ValueError("it proposes tokens outside of its vocabulary")
    return logits[:, model.vocabulary]


def require_exact_rollback(model: CausalLM, name: str) -> SelfTest:
    """Run ``self_test`` and refuse a model that fails it.

    A faulty cache fails with any tokens. Rounding that makes a router choose another expert does not,
    so a failed test is repeated with other tokens, twice.
    """
    why, cause = "", None
    for seed in range(3):
        try:
            result = self_test(model, seed)
        except RanksFault:
            raise
        except Exception as error:
            refuse_fault(error, f" while {name} was tested")
            why = first_line(error, kind=True)
            cause = error
            break
        if result.worst <= tolerance(model.dtype):
            return result
        why = (
            f"logits differ by {result.worst:.2g} of their scale (cached block {result.cached:.3g}, "
            f"after rollback {result.rolled_back:.3g})"
        )
    _require_causal(model, name, cause)
    why = f"the cache of {name} cannot be rolled back exactly: {why}."
    raise UsageError(why, remedy="Its architecture is not supported for speculative sampling.") from cause


@torch.inference_mode()
def _require_causal(model: CausalLM, name: str, cause: Exception | None) -> None:
    """Refuse a model that failed its self-test and whose rollback would mean nothing.

    A model that is not causal has other rows for a token once later ones are there.
    """
    remedy = "Choose a causal language model, such as Llama or T5."
    tokens = torch.randint(model.vocab_size, (16,), generator=torch.Generator().manual_seed(0)).to(
        model.device
    )
    tokens = model.as_prompt(tokens)
    try:
        model.score_uncached(tokens, last=1)
    except Exception as error:
        dtype = str(model.dtype).removeprefix("torch.")
        why = f"{name} has no forward in {dtype}, with or without a cache ({first_line(error, kind=True)})."
        raise UsageError(why, remedy=remedy) from cause
    other = tokens.clone()
    other[-2:] = (other[-2:] + 1) % model.vocab_size
    is_causal = is_cached = True
    with suppress(Exception):  # what failed was said
        if model.border is None:
            one, two = (model.score_uncached(each)[:-2].double() for each in (tokens, other))
            most = 10 * tolerance(model.dtype) * float(one.abs().max())
            is_causal = not float((one - two).abs().max()) > most
        pending = model.begin(tokens.tolist())
        model.score(pending, last=1)
        held = model.length
        model.rollback(0)
        is_cached = bool(held or getattr(getattr(model, "cache", None), "layers", None))
    if not is_causal:
        why = f"{name} is not causal: each of its tokens sees the ones after it."
        raise UsageError(why, remedy=remedy) from cause
    if not is_cached:
        why = f"{name} uses no cache: transformers computes all tokens again for each one."
        raise UsageError(why, remedy=remedy) from cause


def tolerance(dtype: torch.dtype) -> float:
    """Return how much the logits of two forwards may differ, relative to the largest."""
    return {torch.float64: 1e-9, torch.float32: 2e-3}.get(dtype, 6e-2)

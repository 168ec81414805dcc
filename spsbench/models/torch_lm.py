"""Any Hugging Face causal language model over torch: the reference, and the path of GPUs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from spsbench.base.errors import UsageError
from spsbench.config.models import INDUCTOR, TORCH
from spsbench.models.attention import group_queries
from spsbench.models.body import body_of, final_norm_in, head_of
from spsbench.models.causal_lm import LAST, NORMED, CausalLM, FeatureRows, States, text_config
from spsbench.models.choices import Choices, watching
from spsbench.models.compiler import Compiled
from spsbench.models.memory import forward_bytes, kv_bytes_per_token
from spsbench.models.quantised import quantised_of
from spsbench.models.recurrent import REPLAY, StateCache, cache_of
from spsbench.models.trained import table_fingerprint
from spsbench.models.witness import ReadBlock, fresh_cache, read_in_blocks


def truncated(model: nn.Module, layers: int, flag: str) -> nn.Module:
    """Return the first layers of a model under its own final norm and head; every tensor is shared."""
    path, layer_list = _layer_list(model, text_config(model.config).num_hidden_layers, flag)
    known: dict[int, nn.Module] = {id(layer_list): nn.ModuleList(list(layer_list)[:layers])}

    def rebuilt(part: nn.Module) -> nn.Module:
        if id(part) not in known:
            twin = copy.copy(part)
            twin.__dict__["_modules"] = {
                name: None if child is None else rebuilt(child) for name, child in part._modules.items()
            }
            known[id(part)] = twin
        return known[id(part)]

    inner = rebuilt(model)
    _shorten_configs(inner, path, layers)
    return inner


def _layer_list(model: nn.Module, layers: int, flag: str) -> tuple[str, nn.ModuleList]:
    """(path, list) of the decoder layers: the one outermost list of the configured length."""
    lists = [
        (path, part)
        for path, part in model.named_modules()
        if isinstance(part, nn.ModuleList) and len(part) == layers
    ]
    outer = [item for item in lists if not any(item[0].startswith(f"{path}.") for path, _ in lists)]
    if len(outer) == 1:
        return outer[0]
    why = f"{type(model).__name__} keeps its {layers} layers in {len(outer)} lists, not in one."
    raise UsageError(why, flag=flag, remedy="Choose another drafter.")


def _shorten_configs(model: nn.Module, path: str, layers: int) -> None:
    """Set the number of layers in the modules above them; the layers keep the configuration they have."""
    names = path.split(".")
    for depth in range(len(names)):
        part = model.get_submodule(".".join(names[:depth]))
        if "config" in part.__dict__:
            config = copy.deepcopy(part.__dict__["config"])
            text = text_config(config)
            if getattr(text, "layer_types", None):
                text.layer_types = text.layer_types[:layers]
            text.num_hidden_layers = layers
            part.__dict__["config"] = config


class TorchLM(CausalLM):
    """Owns a model and its KV cache; batch size 1.

    Only ids, cache and ``logits_to_keep`` are passed to the model: masks and positions follow from
    the cache's length, and models silently ignore arguments that they do not support.
    """

    compiled: Compiled | None = None
    """Where its layers were to be compiled: which are."""

    def __init__(self, model: Any, vocab_size: int | None = None) -> None:
        size = vocab_size or text_config(model.config).vocab_size
        super().__init__(model.config, size, model.device, model.dtype)
        self.model = model
        group_queries(model)
        self.layers = text_config(model.config).num_hidden_layers
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.kv_bytes_per_token = kv_bytes_per_token(model)
        self.cache = cache_of(model)
        # Of the files that it was loaded from, whose numbers the weights may be rounded from.
        self.checkpoint_embedding: Callable[[], str | None] | None = None
        self.files: Path | None = None  # that it was loaded from; they may hold more than is loaded

    @property
    def backend(self) -> str:  # type: ignore[override]
        return INDUCTOR if self.compiled and self.compiled.layers else TORCH

    @property
    def weights(self) -> str:
        quantised = quantised_of(self.model)
        return str(self.dtype).removeprefix("torch.") if quantised is None else quantised.bits

    @property
    def length(self) -> int:
        return self.cache.length

    @property
    def rolled_back_by(self) -> str:  # type: ignore[override]
        return self.cache.mechanism

    @property
    def state_bytes(self) -> int:  # type: ignore[override]
        return self.cache.state_bytes

    def keep_no_planes(self) -> None:
        """Roll back by reading again: the state after each token of a block is not kept."""
        self.cache.mechanism = REPLAY

    def score(self, tokens: Tensor, last: int) -> Tensor:
        return self._with_states(lambda: self._scored(tokens, last))

    def score_tree(self, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """[n, V] logits of tokens [n] that are appended to the cache as branches of a tree.

        Args:
            positions: [n] of them.
            mask: [1, 1, n, m] that is added to the scores of attention, over all columns.
        """
        return self._with_states(
            lambda: self.model(
                input_ids=tokens.unsqueeze(0),
                position_ids=positions.unsqueeze(0),
                attention_mask=mask,
                past_key_values=self.cache,
                use_cache=True,
            ).logits[0, :, : self.vocab_size]
        )

    def _with_states(self, forward: Callable[[], Tensor]) -> Tensor:
        """Run a forward, and keep its states where they are wanted."""
        if self._features is None:
            return forward()
        start, states = self.length, self._features.states
        with _states_heard(self.model, states) as heard:
            logits = forward()
        # One forward, or one for each token.
        self._features.write(start, [torch.cat(heard[state], 1)[0] for state in states])
        return logits

    def keep(self, start: int, columns: Tensor) -> None:
        """Move cached tokens to ``start`` and after it, and forget all that comes after."""
        self.cache.move(start, columns)
        if self._features is not None:
            self._features.move(start, columns)

    def _scored(self, tokens: Tensor, last: int) -> Tensor:
        if self.cache.one_by_one and self.length and len(tokens) > 1:
            return torch.cat([self._scored(token, 1) for token in torch.split(tokens, 1)][-last:])
        # Gemma 4 computes its last layers for the wanted rows alone, and states are kept of all tokens.
        shares = bool(getattr(text_config(self.config), "num_kv_shared_layers", 0))
        rows = 0 if shares and self._features is not None else last
        with self.cache.reading(tokens) as given:
            output = self.model(input_ids=tokens.unsqueeze(0), use_cache=True, logits_to_keep=rows, **given)
        # Some models ignore logits_to_keep and return a row for every token.
        logits: Tensor = output.logits[0, -last:, : self.vocab_size]
        return logits

    def rollback(self, length: int) -> None:
        self._read_again(self.cache.rollback(length))

    def restore(self, length: int) -> None:
        self._read_again(self.cache.restore(length))

    def _read_again(self, tokens: Tensor | None) -> None:
        """Read tokens that the cache forgot with its state; their rows are known."""
        if tokens is not None:
            self._scored(tokens, 1)

    def score_uncached(self, tokens: Tensor, last: int = 0) -> Tensor:
        output = self.model(input_ids=tokens.unsqueeze(0), use_cache=False, logits_to_keep=last)
        logits: Tensor = output.logits[0, -last:, : self.vocab_size]
        return logits

    def score_uncached_parts(self, tokens: Tensor, last: int, rows: int) -> Iterator[Tensor]:
        return self._logits_by_part(
            tokens, last, rows, lambda ids, _: self.model(input_ids=ids, use_cache=False)
        )

    def _logits_by_part(
        self, tokens: Tensor, last: int, rows: int, forward: Callable[[Tensor, Tensor | None], Any]
    ) -> Iterator[Tensor]:
        """See ``score_uncached_parts``.

        ``forward`` takes ids [1, m] and, after its first call, an encoder's states.
        """
        n, body = len(tokens), BodyOnce(self.model)
        ids, encoded = tokens.unsqueeze(0), None
        for start in range(n - last, n, rows):
            part = slice(start, min(start + rows, n))
            with body.giving(part):
                output = forward(ids[:, part] if body.was_run else ids, encoded)
            if not body.was_run:  # the head cannot be computed without the body: all rows are there
                yield from torch.split(output.logits[0, -last:, : self.vocab_size], rows)
                return
            encoded = getattr(output, "encoder_last_hidden_state", None)
            logits = [output.logits]
            del output
            # Popped, so that only the caller keeps these logits alive.
            yield logits.pop()[0, :, : self.vocab_size]

    def score_in_blocks(
        self, tokens: Tensor, first: int, blocks: Sequence[ReadBlock], choices: Choices | None = None
    ) -> Iterator[Tensor] | None:
        if isinstance(self.cache, StateCache):
            return self._states_in_blocks(tokens, first, blocks, choices)

        def forward(ids: Tensor, cache: Cache) -> Tensor:
            logits: Tensor = self.model(input_ids=ids, past_key_values=cache, use_cache=True).logits[0]
            return logits[:, : self.vocab_size]

        cache = fresh_cache(self.model.config)
        if first:
            # No head over rows that are not wanted.
            with BodyOnce(self.model).giving(slice(first - 1, first)), watching(choices):
                forward(tokens[:first].unsqueeze(0), cache)
            if choices is not None:
                choices.forward_ended(first)
        return read_in_blocks(forward, cache, tokens, first, blocks, choices)

    def _states_in_blocks(
        self, tokens: Tensor, first: int, blocks: Sequence[ReadBlock], choices: Choices | None
    ) -> Iterator[Tensor]:
        """Read the kept tokens of each block behind states of their own, which are never rolled back.

        transformers' own caches of such models are no witness: some forwards leave them aside, and some
        empty them before several tokens.
        """
        reader = self.twin()
        if first:
            with watching(choices):
                reader.score(tokens[:first], last=1)
            if choices is not None:
                choices.forward_ended(first)
        for kept, _ in blocks:
            with watching(choices):
                logits = reader.score(tokens[first : first + kept], last=kept)
            if choices is not None:
                choices.forward_ended(kept)
            first += kept
            yield logits

    def twin(self) -> Self:
        other = copy.copy(self)
        other.cache = cache_of(self.model)
        if self.rolled_back_by == REPLAY:  # also where planes would not fit
            other.keep_no_planes()
        other._features = None
        return other

    def with_features(self, flag: str, states: States = LAST) -> Self:
        self._require_kept(states, flag)
        other = self.twin()
        other._features = FeatureRows(states)
        _require_states(self.model, states, flag)
        return other

    def embedding_fingerprint(self) -> str:
        kept = None if self.checkpoint_embedding is None else self.checkpoint_embedding()
        return kept or table_fingerprint(self.model.get_input_embeddings().weight)

    @property
    def embedding_shape(self) -> tuple[int, int]:
        rows, width = self.model.get_input_embeddings().weight.shape
        return rows, width

    def forward_bytes(self, rows: int = 1) -> int:
        return forward_bytes(self.model, rows)

    def reference(self) -> TorchLM:
        return self

    def truncated(self, layers: int, flag: str) -> TorchLM:
        self._require_layers(layers, flag)
        return type(self)(truncated(self.model, layers, flag), self.vocab_size)


class BodyOnce:
    """Has a model's head computed over some rows at a time, of what its body gave once for all tokens.

    The model's own forward runs for every part, with the body's rows in place of the body: whatever it does
    between body and logits, a scale or a cap, is done as always.
    """

    def __init__(self, model: Any) -> None:
        self._body = body_of(model)
        self._is_apart = self._body is not model
        self._output: Any = None

    @property
    def was_run(self) -> bool:
        return self._output is not None

    @contextmanager
    def giving(self, part: slice) -> Iterator[None]:
        """Have the body return these rows alone while the block lasts; it computes at the first call."""
        if not self._is_apart:
            yield
            return
        replaced = self._body.__dict__.get("forward")
        usual = self._body.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._output is None:
                self._output = usual(*args, **kwargs)
            return _rows_of(self._output, part)

        self._body.forward = forward
        try:
            yield
        finally:
            if replaced is None:
                del self._body.forward
            else:  # a forward that accelerate put there
                self._body.forward = replaced


def _rows_of(output: Any, part: slice) -> Any:
    """A body's output with some rows of its last hidden states [1, n, hidden]."""
    if isinstance(output, tuple):
        return (output[0][:, part], *output[1:])
    some = copy.copy(output)
    some["last_hidden_state"] = output["last_hidden_state"][:, part]
    return some


@contextmanager
def _states_heard(model: Any, states: States) -> Iterator[dict[int, list[Tensor]]]:
    """By their ids, [1, n, hidden] of each forward that runs while the block lasts.

    All n tokens' states: the head itself sees the rows of ``logits_to_keep`` alone. What the body hands over
    is state ``NORMED``; state k > 0 is the output of the k-th layer, state 0 what the first one gets.
    """
    heard: dict[int, list[Tensor]] = {}
    hooks = []
    if NORMED in states:
        hooks.append(body_of(model).register_forward_hook(_hearing(heard, NORMED)))
    raw = [state for state in states if state != NORMED]
    layers = body_of(model).layers if raw else nn.ModuleList()
    for state in raw:
        if state:
            hooks.append(layers[state - 1].register_forward_hook(_hearing(heard, state)))
        else:
            hooks.append(layers[0].register_forward_pre_hook(_entering(heard), with_kwargs=True))
    try:
        yield heard
    finally:
        for hook in hooks:
            hook.remove()


def _hearing(heard: dict[int, list[Tensor]], state: int) -> Callable[[Any, Any, Any], None]:
    def hear(part: Any, args: Any, output: Any) -> None:
        heard.setdefault(state, []).append(output if isinstance(output, Tensor) else output[0])

    return hear


def _entering(heard: dict[int, list[Tensor]]) -> Callable[[Any, Any, Any], None]:
    def hear(part: Any, args: Any, named: Any) -> None:
        heard.setdefault(0, []).append(args[0] if args else named["hidden_states"])

    return hear


def _require_states(model: Any, states: States, flag: str) -> None:
    """Refuse a model whose body does not hand over what its head multiplies, or its layers' states.

    Layers' states are held against those that transformers itself gives for ``output_hidden_states``.
    """
    head = head_of(model)
    seen = list[Tensor]()
    rows = len(model.get_input_embeddings().weight)
    ids = (torch.arange(3, device=model.device) % rows).unsqueeze(0)
    raw = [state for state in states if state != NORMED]
    if head is not None and body_of(model) is not model:
        hook = head.register_forward_pre_hook(lambda part, args: seen.append(args[0]))
        try:
            with torch.inference_mode(), _states_heard(model, (NORMED,)) as heard:
                model(input_ids=ids, use_cache=False)
        finally:
            hook.remove()
        if len(seen) == len(heard.get(NORMED, ())) == 1 and torch.equal(seen[0], heard[NORMED][0]):
            if not raw or _shows_layers(model, raw, ids):
                return
            why = f"the states between the layers of {type(model).__name__} are not accessible."
            raise UsageError(why, flag=flag, remedy="Choose another drafter.")
    why = f"the input of the head of {type(model).__name__} is not accessible."
    raise UsageError(why, flag=flag, remedy="Choose another drafter.")


def _shows_layers(model: Any, states: Sequence[int], ids: Tensor) -> bool:
    """Whether what is heard of the layers is what transformers calls their hidden states."""
    count = text_config(model.config).num_hidden_layers
    layers = getattr(body_of(model), "layers", None)
    if not isinstance(layers, nn.ModuleList) or len(layers) != count:
        return False
    with torch.inference_mode(), _states_heard(model, (*states, NORMED)) as heard:
        told = model(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
    if told is None or len(told) != count + 1 or set(heard) != {*states, NORMED}:
        return False
    # DeepSeek V4 has several streams between its layers, [1, n, streams, hidden].
    if any(len(forwards) != 1 or forwards[0].dim() != 3 for forwards in heard.values()):
        return False
    # transformers' last one is normed already: the norm says whether ours is what it got.
    norm = getattr(body_of(model), final_norm_in(body_of(model)) or "norm", None)
    for state in states:
        if state < count:
            same = torch.equal(heard[state][0], told[state])
        else:
            with torch.inference_mode():
                same = norm is not None and torch.equal(norm(heard[state][0]), heard[NORMED][0])
        if not same:
            return False
    return True

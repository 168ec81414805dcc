"""A target and its draft, checked against each other and loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from spsbench.base.errors import UsageError
from spsbench.config import PairConfig
from spsbench.config.models import INDUCTOR, ONNXRUNTIME, Precision
from spsbench.models.causal_lm import (
    CausalLM,
    attention_window,
    context_window,
    require_exact_rollback,
    text_config,
)
from spsbench.models.compiler import require_compilable
from spsbench.models.kernels import kernels_of
from spsbench.models.loading import choose_backend, fetch_weights, load, load_placed, model_not_covered
from spsbench.models.memory import (
    Weights,
    available_bytes,
    experts_of,
    suitable_threads,
    weight_bytes,
    weights_of,
)
from spsbench.models.messages import PlanesLeftOut
from spsbench.models.placement import PlacedLM, Placement
from spsbench.models.quantised import quantised_of, require_quantisable, require_readable
from spsbench.models.recurrent import MOST_MARKS, PLANES
from spsbench.models.source import ModelSource, find, require_rollback, unconverted_tokenizers
from spsbench.models.tensor_parallel import Order, Ranks, load_split
from spsbench.models.tokenizer import Tokenizer, check_same
from spsbench.models.torch_lm import TorchLM


@dataclass(frozen=True, slots=True)
class PairSource:
    """A compatible pair, before any weights are loaded.

    Attributes:
        vocab_size: how many logits both have: real pairs pad their embeddings differently.
        attention_windows: of the target and of the draft; None where all attention is full.
    """

    config: PairConfig
    target: ModelSource
    draft: ModelSource
    vocab_size: int
    context_window: int
    attention_windows: tuple[int | None, int | None]

    @property
    def tokenizer(self) -> Tokenizer:
        return self.target.tokenizer

    def with_template_args(self, variables: Mapping[str, Any]) -> PairSource:
        """Return the pair whose prompts are rendered with these variables of the chat template."""
        if not variables:
            return self
        tokenizer = self.tokenizer.with_template_args(variables)
        return replace(self, target=replace(self.target, tokenizer=tokenizer))

    def window_for(self, output: int) -> int:
        """Return the longest sequence that leaves ``output`` tokens after the prompt."""
        border = self.tokenizer.border
        if border is None:
            return self.context_window
        room = self.context_window - len(border.start)
        if output > room:
            raise UsageError(
                f"an output of {output} tokens, the last draft included, exceeds the decoder's window of "
                f"{self.context_window}.",
                flag="--max-new-tokens",
                remedy="Choose fewer new tokens.",
            )
        return self.context_window + len(border.start) + output

    def is_one(self, dtypes: tuple[str, str]) -> bool:
        """Return whether the target is its own draft, so that weights are loaded once."""
        one, other = ((part.location, part.fingerprint) for part in (self.target, self.draft))
        return one == other and dtypes[0] == dtypes[1]

    def identity(self) -> dict[str, Any]:
        """Return what must match for results to be comparable: names, content and vocabulary."""
        return {
            "target": self.target.identity(),
            "draft": self.draft.identity(),
            "vocab_size": self.vocab_size,
            "bos": self.tokenizer.bos,
        }


@dataclass(frozen=True, slots=True)
class Pair:
    target: CausalLM
    draft: CausalLM
    tokenizer: Tokenizer
    device: torch.device
    info: dict[str, Any]
    is_one: bool = False


def find_pair(config: PairConfig, *, rolls_back: bool = True) -> PairSource:
    """Find both models and check that they are compatible.

    Who scores finished texts ``rolls_back`` nothing: then a model with any forward will do.
    """
    if config.target != config.draft:  # refused before minutes and gigabytes are spent on a conversion
        roles = (config.target, "--target"), (config.draft, "--draft")
        if both := unconverted_tokenizers([(model.id, model.revision, flag) for model, flag in roles]):
            check_same(*both)
    target = find(config.target.id, config.target.revision, "--target")
    draft = find(config.draft.id, config.draft.revision, "--draft", target)
    for part, flag in ((target, "--target"), (draft, "--draft")) if rolls_back else ():
        require_rollback(part, flag)
    if draft.sharing is None:
        check_same(target.tokenizer, draft.tokenizer)
    sizes = [text_config(source.config).vocab_size for source in (target, draft)]
    shared = min(sizes)
    if target.tokenizer.size > shared:
        raise UsageError(
            f"the tokenizer has {target.tokenizer.size} tokens, but the models share only {shared} logits "
            f"({sizes[0]} and {sizes[1]}).",
            flag="--draft",
            remedy="Choose a draft whose embedding covers the whole tokenizer.",
        )
    window = min(context_window(source.config) for source in (target, draft))
    attention = attention_window(target.config), attention_window(draft.config)
    return PairSource(config, target, draft, shared, window, attention)


def pair_backend(
    choice: str, source: PairSource, dtypes: tuple[str, str], device: torch.device, *, loads: bool = True
) -> tuple[str, str | None]:
    """See ``choose_backend``; the choice must also be able to quantise or read the weights.

    Where nothing ``loads`` the models here, nothing has to.
    """
    parts = zip((source.target, source.draft), dtypes, ("--target", "--draft"), strict=True)
    reasons = [(part.name, model_not_covered(part, dtype, device, flag)) for part, dtype, flag in parts]
    backend, fallback = choose_backend(choice, reasons, device)
    if backend != ONNXRUNTIME and loads:
        roles = ("--target", "--draft")
        for part, dtype, role in zip((source.target, source.draft), dtypes, roles, strict=True):
            precision = Precision(dtype)
            require_quantisable(part.config, part.quantization, precision, device, part.name)
            require_readable(part.config, part.quantization, device, part.name, role)
            if backend == INDUCTOR:
                require_compilable(part.config, part.quantization or precision.quantise, part.name)
    return backend, fallback


def load_pair(
    source: PairSource,
    dtypes: tuple[str, str],
    device: torch.device,
    backend: str,
    threads: int | None = None,
    beside: Pair | None = None,
    placement: Placement | None = None,
    ranks: Ranks | None = None,
) -> Pair:
    split = 1 if ranks is None else ranks.size
    fitting_weights(source, dtypes, device, backend, placement, split=split)
    fetch_weights({"--target": source.target, "--draft": source.draft})
    target_info = None
    if beside is not None and beside.target.vocab_size == source.vocab_size:
        target = beside.target
        target_info = beside.info["target"]
    else:
        target = _target(source, dtypes, device, backend, threads, placement, ranks)
    if device.type == "cpu":
        threads = threads or suitable_threads(target.parameters)  # the draft runs on the target's
        # Over ONNX Runtime torch has only small work, and its threads would wait for the runtime's.
        torch.set_num_threads(1 if backend == ONNXRUNTIME else threads)
    if source.is_one(dtypes) and ranks is None:
        draft = target.twin()
    else:
        draft = load(source.draft, dtypes[1], device, source.vocab_size, "--draft", backend, threads, target)
    info: dict[str, Any] = {
        "target": target_info or _tested_info(target, source.target),
        "draft": _tested_info(draft, source.draft),
    }
    info["threads"] = threads or torch.get_num_threads()
    return Pair(target, draft, source.tokenizer, device, info, source.is_one(dtypes))


def fitting_weights(
    source: PairSource,
    dtypes: tuple[str, str],
    device: torch.device,
    backend: str,
    placement: Placement | None,
    stock: Sequence[ModelSource] = (),
    split: int = 1,
) -> Weights:
    """Count the weights of a pair, which fit where they go: on the device, or as a device map says.

    Args:
        stock: the models that are loaded over torch, too.
        split: over how many processes the target is split.
    """
    draft = None if source.is_one(dtypes) and split == 1 else source.draft
    weights = weights_of(source.target, draft, dtypes, device, backend)
    if placement is None:
        names = source.target.name if draft is None else f"{source.target.name} and {draft.name}"
        weights.require(names, device, backend, stock, split)
    else:
        placement.require_room(weights, source.target.config, dtypes[0], device)
    return weights


def _target(
    source: PairSource,
    dtypes: tuple[str, str],
    device: torch.device,
    backend: str,
    threads: int | None,
    placement: Placement | None,
    ranks: Ranks | None,
) -> CausalLM:
    """Load the target: on one device, over several, or this process's slices."""
    dtype = dtypes[0]
    vocab_size = source.vocab_size
    if ranks is not None:
        ranks.tell(Order.LOAD, threads or 0)
        ranks.share((source.config, dtypes))
        return load_split(source.target, dtype, vocab_size, ranks)
    if placement is not None:
        alone = source.is_one(dtypes)
        reserved = 0 if alone else weight_bytes(source.draft, dtypes[1], "--draft", device) or 0
        return load_placed(source.target, dtype, device, vocab_size, placement, reserved)
    return load(source.target, dtype, device, vocab_size, "--target", backend, threads)


def _rollback_facts(model: CausalLM) -> dict[str, Any]:
    """Of a running state; without planes where they do not fit beside all else."""
    if model.rolled_back_by == "length":
        return {}
    facts: dict[str, Any] = {}
    free, needed = available_bytes(model.device), MOST_MARKS * model.state_bytes
    if isinstance(model, TorchLM) and model.rolled_back_by == PLANES and free is not None and needed > free:
        model.keep_no_planes()
        facts["planes_left_out"] = str(PlanesLeftOut(MOST_MARKS, needed, free))
    return {"rollback": model.rolled_back_by, "state_bytes": model.state_bytes} | facts


def _tested_info(model: CausalLM, part: ModelSource) -> dict[str, Any]:
    test = require_exact_rollback(model, part.name)
    built = model.model if isinstance(model, TorchLM) else None
    experts = None if built is None else experts_of(built)
    quantised = None if built is None else quantised_of(built)
    kernels = {} if built is None else kernels_of(built)
    compiled = model.compiled if isinstance(model, TorchLM) else None
    return {
        **part.identity(),
        "model_type": part.config.model_type,
        "quantization": part.quantization,
        **({} if part.dequantised is None else {"dequantised": part.dequantised}),
        "dtype": model.weights,
        "backend": model.backend,
        "parameters": model.parameters,
        "forward_bytes": model.forward_bytes(),
        "kv_bytes_per_token": model.kv_bytes_per_token,
        **({"kernels": kernels} if kernels else {}),
        **({} if compiled is None else {"compiled": asdict(compiled)}),
        **({} if experts is None else {"experts": asdict(experts)}),
        **({} if quantised is None else {"quantised": asdict(quantised)}),
        **({"device_map": dict(model.placed)} if isinstance(model, PlacedLM) else {}),
        **_rollback_facts(model),
        **({} if model.vocabulary is None else {"vocabulary": len(model.vocabulary)}),
        "self_test": asdict(test),
    }

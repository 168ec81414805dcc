"""Load a model's weights: complete, in the requested dtype, on the requested device."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from spsbench.config.models import ONNXRUNTIME, Precision
from spsbench.errors import UnavailableError
from spsbench.models.causal_lm import CausalLM
from spsbench.models.checkpoint import Checkpoint
from spsbench.models.hf_errors import typed_errors
from spsbench.models.memory import suitable_threads
from spsbench.models.onnx_lm import OnnxLM
from spsbench.models.onnx_seq2seq_lm import OnnxSeq2SeqLM
from spsbench.models.placement import Placement, offload_folder, placed_lm
from spsbench.models.quantised import loading_settings, mark, quantise_built
from spsbench.models.seq2seq_lm import Seq2SeqLM
from spsbench.models.shared_lm import onnx_under, torch_under
from spsbench.models.source import ModelSource, Sharing, embedding_of
from spsbench.models.torch_lm import TorchLM
from spsbench.models.weights import DTYPES

_SHOWN = 3


def load(
    source: ModelSource,
    dtype: str,
    device: torch.device,
    vocab_size: int,
    flag: str,
    backend: str,
    threads: int | None = None,
    target: CausalLM | None = None,
) -> CausalLM:
    """Load a model over a backend of ``choose_backend``.

    Args:
        vocab_size: number of logits that target and draft share.
    """
    if source.sharing is not None:
        assert target is not None, "a trained draft is loaded after its target"
        return _load_sharing(source, source.sharing, dtype, vocab_size, flag, target)
    if backend == ONNXRUNTIME:
        return _load_onnx(source, dtype, vocab_size, flag, threads)
    return load_torch(source, dtype, device, vocab_size, flag)


def load_torch(source: ModelSource, dtype: str, device: torch.device, vocab_size: int, flag: str) -> TorchLM:
    """Load a model over transformers' own forward; a quantised checkpoint as its configuration says."""
    # Quantised weights cannot be moved after loading: transformers places them, by means of accelerate.
    placed = source.quantization is not None and device.type != "cpu"
    model = _from_pretrained(source, dtype, device, flag, {"device_map": {"": device}} if placed else {})
    packed = source.quantization or Precision.read(dtype).quantise
    with typed_errors(source.name, flag):
        model = model if packed else model.to(device)
    if (border := source.tokenizer.border) is not None:
        return Seq2SeqLM(model.eval(), border, vocab_size)
    return TorchLM(model.eval(), vocab_size)


def load_placed(
    source: ModelSource,
    dtype: str,
    device: torch.device,
    vocab_size: int,
    placement: Placement,
    reserved_bytes: int,
) -> TorchLM:
    """Load a target over several devices.

    Args:
        device: of ids and logits.
        reserved_bytes: that a strategy leaves free on ``device``, for the draft.
    """
    with offload_folder() as folder:
        settings = placement.settings(source, dtype, reserved_bytes, device, folder)
        model = _from_pretrained(source, dtype, device, "--target", settings)
        return placed_lm(model.eval(), source, vocab_size, device, folder)


def _from_pretrained(
    source: ModelSource, dtype: str, device: torch.device, flag: str, placed: dict[str, Any]
) -> Any:
    """The model, complete and, where it is asked for, quantised; ``placed`` says where it goes."""
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    kind = AutoModelForSeq2SeqLM if source.is_encoder_decoder else AutoModelForCausalLM
    asked = Precision.read(dtype)
    with typed_errors(source.name, flag):
        quantised = {} if asked.quantise is None else loading_settings(source.config, asked, device)
        model, report = kind.from_pretrained(
            source.location,
            revision=source.commit,
            dtype=DTYPES.get(asked.dtype, "auto"),
            trust_remote_code=False,
            output_loading_info=True,
            **quantised | placed,
        )
        require_complete(sorted(report["missing_keys"]), source.name, flag)
        if asked.quantise is not None:
            mark(model, asked.quantise)
    return model


def _load_sharing(
    source: ModelSource, sharing: Sharing, dtype: str, vocab_size: int, flag: str, target: CausalLM
) -> CausalLM:
    asked = Precision.read(dtype)
    count, hidden = target.embedding_shape
    embedding = embedding_of(sharing.target, "--target") or target.embedding_fingerprint()
    sharing.draft.require_target(hidden, count, embedding, flag)
    with typed_errors(source.name, flag):
        try:
            if isinstance(target, OnnxLM):
                return onnx_under(target, sharing.draft, source.config, vocab_size, asked.bits)
            assert isinstance(target, TorchLM)
            draft = torch_under(
                target, sharing.draft, source.config, vocab_size, DTYPES.get(asked.dtype), flag
            )
            if asked.quantise is not None:
                quantise_built(draft.model, asked, draft.device)
            return draft
        except KeyError as missing:
            require_complete([str(missing.args[0])], source.name, flag)
            raise


def _load_onnx(
    source: ModelSource, dtype: str, vocab_size: int, flag: str, threads: int | None
) -> OnnxLM | OnnxSeq2SeqLM:
    cpu = torch.device("cpu")
    # Once: a draft that shares its tensors asks for it, too.
    reference = cache(partial(load_torch, source, "float32", cpu, vocab_size, flag))
    with typed_errors(source.name, flag):
        stored = Checkpoint(weights_folder(source))
        size, bits = threads or suitable_threads(stored.parameters), Precision.read(dtype).bits
        try:
            if (border := source.tokenizer.border) is not None:
                return OnnxSeq2SeqLM(source.config, border, stored, vocab_size, size, reference, bits)
            return OnnxLM(source.config, stored, vocab_size, size, reference, bits=bits)
        except KeyError as missing:
            require_complete([str(missing.args[0])], source.name, flag)
            raise


def weights_folder(source: ModelSource) -> Path:
    """The folder of a model's safetensors files, fetched from the hub if need be."""
    if source.is_local:
        return Path(source.location)
    from huggingface_hub import snapshot_download

    wanted = ["*.safetensors", "*.safetensors.index.json"]
    return Path(snapshot_download(source.location, revision=source.commit, allow_patterns=wanted))


def require_complete(missing: list[str], name: str, flag: str) -> None:
    """Refuse a checkpoint with missing weights: transformers would initialise them at random."""
    if missing:
        shown = ", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
        raise UnavailableError(
            f"{name} is incomplete: {len(missing)} of its weights are missing ({shown}).",
            flag=flag,
            remedy="Download the model again, or choose a checkpoint with a language-model head.",
        )

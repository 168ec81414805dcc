"""Load a model's weights: complete, in the requested dtype, on the requested device."""

from __future__ import annotations

import copy
import os
import shutil
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from spsbench.base.errors import UsageError
from spsbench.config.models import AUTO, INDUCTOR, ONNXRUNTIME, TORCH, Precision
from spsbench.models.blueprint import FAMILIES, NotCovered, blueprint_of, t5_plan
from spsbench.models.body import head_of
from spsbench.models.causal_lm import CausalLM, built, skeleton
from spsbench.models.checkpoint import EMBEDDING, Checkpoint, LoadedWeights, StoredWeights
from spsbench.models.compiler import require_compilable, require_compiler
from spsbench.models.downloads import (
    MODELOPT,
    configuration,
    fetch,
    has_weights,
    packed_by_modelopt,
    remote_weights,
)
from spsbench.models.hf_errors import quiet_libraries, typed_errors
from spsbench.models.memory import DTYPES, require_free, suitable_threads
from spsbench.models.onnx_lm import OnnxLM, OnnxModel
from spsbench.models.packed import pack_layers, stored_weight
from spsbench.models.placement import PlacedLM, Placement
from spsbench.models.quantised import loading_settings, mark, quantise_built, require_readable
from spsbench.models.same_logits import require_same_logits
from spsbench.models.seq2seq_lm import SHARED, OnnxSeq2SeqLM, Seq2SeqLM
from spsbench.models.source import (
    ModelSource,
    Sharing,
    decoder_start,
    embedding_of,
    files_of,
    require_generative,
)
from spsbench.models.text_part import is_of_tower, text_class
from spsbench.models.tokenizer import Border
from spsbench.models.torch_lm import TorchLM
from spsbench.models.trained import SharedWeights, TrainedDraft
from spsbench.models.weights import note_unread, require_complete, require_head, require_one_head, say_unread


def choose_backend(
    choice: str, reasons: Iterable[tuple[str, str | None]], device: torch.device
) -> tuple[str, str | None]:
    """Return (backend of all models, why it is torch on a CPU although nobody asked for torch).

    All or none: the thread pools of two backends would wait for each other.
    """
    first = next((f"{name}: {reason}" for name, reason in reasons if reason), None)
    if choice == INDUCTOR:
        require_compiler(device)
        return INDUCTOR, None
    if choice == TORCH:
        return TORCH, None
    if first is None:
        return ONNXRUNTIME, None
    if choice == ONNXRUNTIME:
        covered = f"{', '.join(FAMILIES)} and t5 in float32, int8 or int4 on a CPU"
        remedy = f"onnxruntime computes {covered}. For anything else use --backend torch."
        raise UsageError(f"{first}.", flag="--backend", remedy=remedy)
    return TORCH, first if device.type == "cpu" else None


def model_not_covered(source: ModelSource, dtype: str, device: torch.device, flag: str) -> str | None:
    """Return why ONNX Runtime cannot compute a model; None if it can."""
    try:
        if source.quantization is not None:
            raise NotCovered(f"its weights are quantised by {source.quantization}")
        _require_covered(source.config, dtype, device)
        _require_safetensors(source, flag)
    except NotCovered as reason:
        return str(reason)
    return None


def config_not_covered(config: Any, dtype: str, device: torch.device) -> str | None:
    """Answer as ``model_not_covered`` does, for a configuration without weights."""
    try:
        _require_covered(config, dtype, device)
    except NotCovered as reason:
        return str(reason)
    return None


def _require_covered(config: Any, dtype: str, device: torch.device) -> None:
    precision = Precision(dtype)
    # What is quantised without its own dtype is computed in float32 there, whatever the checkpoint's.
    named = torch.float32 if precision.quantise is not None else getattr(config, "dtype", None)
    computed = named if precision.dtype == AUTO else DTYPES.get(precision.dtype, torch.float32)
    if device.type != "cpu":
        raise NotCovered(f"the device is {device.type}")
    if find_spec("onnxruntime") is None or find_spec("onnx") is None:
        raise NotCovered("the packages onnxruntime and onnx are not installed")
    # First what no other --dtype would change.
    t5_plan(config) if config.is_encoder_decoder else blueprint_of(config)
    if computed not in (torch.float32, None):
        name = str(computed).removeprefix("torch.")
        raise NotCovered(f"it computes in {name} (--dtype float32 runs over ONNX Runtime)")


def _require_safetensors(source: ModelSource, flag: str) -> None:
    """Of a local model; a hub model's files are fetched first."""
    if not source.is_local or source.sharing is not None:
        return  # a trained draft's were checked when it was read
    with typed_errors(source.name, flag):
        stored = Checkpoint(Path(source.location))
    embedding = SHARED if source.is_encoder_decoder else EMBEDDING
    if not (stored.is_plain and embedding in stored):
        raise NotCovered("its weights are in no safetensors file")


def onnx_under(target: OnnxLM, draft: TrainedDraft, config: Any, vocab_size: int, bits: int | None) -> OnnxLM:
    """Build the model over ONNX Runtime, on its target's threads; ``config`` has its target's vocabulary."""
    ids = draft.ids_below(config.vocab_size if draft.vocabulary is None else vocab_size)
    return OnnxLM(
        config,
        SharedWeights(draft, target.stored, ids),
        vocab_size,
        target.threads,
        cache(lambda: torch_under(target.reference(), draft, config, vocab_size, torch.float32, "--draft")),
        bits=bits,
        vocabulary=None if draft.vocabulary is None else torch.from_numpy(ids),
    )


def torch_under(
    target: TorchLM, draft: TrainedDraft, config: Any, vocab_size: int, dtype: torch.dtype | None, flag: str
) -> TorchLM:
    """Build the model over transformers' own forward; in the target's dtype the two share tensors."""
    if draft.vocabulary is not None and getattr(config, "final_logit_softcapping", None):
        why = f"{config.model_type} caps its logits, so that a draft of it proposes every token."
        raise UsageError(why, flag=flag, remedy="Train one without a separate vocabulary.")
    dtype = dtype or target.dtype
    model = _load_layers(draft, config, dtype).to(target.device)
    model.set_input_embeddings(_in_dtype(target.model.get_input_embeddings(), dtype))
    head = head_of(target.model)
    if draft.vocabulary is not None:
        ids = torch.from_numpy(draft.ids_below(vocab_size)).to(target.device)
        head = SomeTokens(head, ids)
    model.set_output_embeddings(_in_dtype(head, dtype))
    model.config.vocab_size = config.vocab_size
    pack_layers(model.eval())
    return SharingTorchLM(model, vocab_size)


class SomeTokens(nn.Module):
    """Some rows [m], ascending, of an output head [V, hidden]; logits of others are minus infinity."""

    def __init__(self, head: Any, ids: Tensor) -> None:
        super().__init__()
        self._size = len(head.weight)
        self.ids: Tensor
        self.register_buffer("ids", ids, persistent=False)
        self.weight = nn.Parameter(stored_weight(head)[ids], requires_grad=False)
        bias = getattr(head, "bias", None)
        self.bias = None if bias is None else nn.Parameter(bias.detach()[ids], requires_grad=False)

    def forward(self, states: Tensor) -> Tensor:
        """[..., V] of [..., hidden]; a new tensor each time, as a captured graph needs it."""
        some = linear(states, self.weight, self.bias)
        rows = some.new_full((*some.shape[:-1], self._size), float("-inf"))
        return rows.index_copy_(-1, self.ids, some)


class SharingTorchLM(TorchLM):
    """A model whose embedding table is another one's, and whose head may have rows for some tokens only.

    Its parameters are those of its layers and of its rows of the head; the table is its target's.
    """

    def __init__(self, model: Any, vocab_size: int | None = None) -> None:
        super().__init__(model, vocab_size)
        head = model.get_output_embeddings()
        self.vocabulary = head.ids if isinstance(head, SomeTokens) else None
        table = model.get_input_embeddings().weight
        self.parameters -= 0 if table is head.weight else table.numel()


def _load_layers(draft: TrainedDraft, config: Any, dtype: torch.dtype) -> Any:
    """Build the layers and the final norm as stored.

    They stand between an embedding and a head of one row that are to be replaced.
    """
    from transformers import AutoModelForCausalLM

    layers_config = copy.deepcopy(config)
    layers_config.vocab_size, layers_config.tie_word_embeddings = 1, False
    model = AutoModelForCausalLM.from_config(layers_config, dtype=dtype)
    ends = {id(end.weight) for end in (model.get_input_embeddings(), model.get_output_embeddings())}
    names = [name for name, part in model.named_parameters() if id(part) not in ends]
    state = {name: torch.from_numpy(draft.stored.read(name).copy()) for name in names}
    model.load_state_dict(state, strict=False)
    return model


def _in_dtype(part: Any, dtype: torch.dtype) -> Any:
    """The module itself if it has it."""
    return part if part.weight.dtype == dtype else copy.deepcopy(part).to(dtype)


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
    """Load a model over a backend of ``choose_backend``; target and draft share ``vocab_size`` logits."""
    model: CausalLM
    if source.sharing is not None:
        assert target is not None, "a trained draft is loaded after its target"
        model = _load_sharing(source, source.sharing, dtype, vocab_size, flag, target)
    elif backend == ONNXRUNTIME:
        model = _load_onnx(source, dtype, vocab_size, flag, threads)
    else:
        model = load_torch(source, dtype, device, vocab_size, flag)
    if source.sharing is None:
        say_unread(source)
    if backend == INDUCTOR:
        _compile(model)
    return model


def _compile(model: CausalLM) -> None:
    from spsbench.models.compiled import compile_layers

    assert isinstance(model, TorchLM), "its backend is none of torch's"
    compile_layers(model)


def load_torch(source: ModelSource, dtype: str, device: torch.device, vocab_size: int, flag: str) -> TorchLM:
    """Load a model over transformers' own forward; a quantised checkpoint as its configuration says.

    Onto a device each tensor goes as it is read: the host never holds the model.
    """
    # Quantised weights cannot be moved after loading, and need accelerate to be placed.
    packed = source.quantization is not None or Precision(dtype).quantise is not None
    onto = (
        {"device_map": {"": device}}
        if device.type != "cpu" and (packed or _loads_tensor_by_tensor(device))
        else {}
    )
    with _one_by_one() if onto and not packed else nullcontext():
        model = from_pretrained(source, dtype, device, flag, onto)
    with typed_errors(source.name, flag):
        model = model if packed else model.to(device)
    loaded = _over_torch(model, source.tokenizer.border, vocab_size)
    if type(loaded) is TorchLM and not packed:
        pack_layers(model)
    loaded.checkpoint_embedding = partial(embedding_of, source, flag)
    loaded.files = files_of(source.location, source.commit)
    return loaded


_LEAST_BYTES = 5 << 28  # transformers asks the device for its memory less 1.2 GiB before it loads


def _loads_tensor_by_tensor(device: torch.device) -> bool:
    return device.type != "cuda" or torch.cuda.get_device_properties(device).total_memory > _LEAST_BYTES


@contextmanager
def _one_by_one() -> Iterator[None]:
    """Have transformers load onto one device without accelerate, one tensor after the other.

    It wants accelerate before it reads where tensors are to go, and for a single device does not use it. Its
    threads would bring experts to the device before the ones before them are merged: twice their memory.
    """
    from transformers.integrations import accelerate as placing

    usual, sequential = placing.is_accelerate_available, "HF_DEACTIVATE_ASYNC_LOAD"
    before = os.environ.get(sequential)
    placing.is_accelerate_available = lambda *given, **named: True
    os.environ[sequential] = "1"
    try:
        yield
    finally:
        placing.is_accelerate_available = usual
        os.environ.pop(sequential)
        if before is not None:
            os.environ[sequential] = before


def _over_torch(model: Any, border: Border | None, vocab_size: int) -> TorchLM:
    model.eval()
    return TorchLM(model, vocab_size) if border is None else Seq2SeqLM(model, border, vocab_size)


def load_placed(
    source: ModelSource,
    dtype: str,
    device: torch.device,
    vocab_size: int,
    placement: Placement,
    reserved_bytes: int,
) -> TorchLM:
    """Load a target over several devices, with ids and logits on ``device``; see ``Placement.settings``."""
    folder = mkdtemp(prefix="spsbench-offload-")  # for weights on disk
    try:
        settings = placement.settings(source, dtype, reserved_bytes, device, folder)
        model = from_pretrained(source, dtype, device, "--target", settings).eval()
        say_unread(source)
        weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)
        return PlacedLM(model, vocab_size, device, source)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def from_pretrained(
    source: ModelSource, dtype: str, device: torch.device, flag: str, placed: dict[str, Any]
) -> Any:
    """Load the model with transformers, complete and quantised if asked for, where ``placed`` says."""
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    kind: Any = AutoModelForSeq2SeqLM if source.is_encoder_decoder else AutoModelForCausalLM
    alone = text_class(source.config)
    if alone is not None:
        kind, placed = alone, {"config": copy.deepcopy(source.config)} | placed
    precision = Precision(dtype)
    require_readable(source.config, source.quantization, device, source.name, flag)
    with typed_errors(source.name, flag):
        folder = weights_folder(source, flag)
        require_one_head(source, Checkpoint(folder), flag)
        quantised = {} if precision.quantise is None else loading_settings(source.config, precision, device)
        model, report = kind.from_pretrained(
            folder,
            dtype=DTYPES.get(precision.dtype, "auto"),
            trust_remote_code=False,
            output_loading_info=True,
            **quantised | placed,
        )
        require_complete(sorted(report["missing_keys"]), source.name, flag)
        left_out = getattr(model, "left_out", ())
        unread = [key for key in report["unexpected_keys"] if not is_of_tower(key, left_out)]
        note_unread(source, sorted(unread))
        if precision.quantise is not None:
            mark(model, precision.quantise)
    return model


def _load_sharing(
    source: ModelSource, sharing: Sharing, dtype: str, vocab_size: int, flag: str, target: CausalLM
) -> CausalLM:
    precision = Precision(dtype)
    count, hidden = target.embedding_shape
    embedding = embedding_of(sharing.target, "--target") or target.embedding_fingerprint()
    sharing.draft.require_target(hidden, count, embedding, flag)
    with typed_errors(source.name, flag), _all_weights_required(source.name, flag):
        if isinstance(target, OnnxLM):
            return onnx_under(target, sharing.draft, source.config, vocab_size, precision.bits)
        assert isinstance(target, TorchLM)
        draft = torch_under(
            target, sharing.draft, source.config, vocab_size, DTYPES.get(precision.dtype), flag
        )
        if precision.quantise is not None:
            quantise_built(draft.model, precision, draft.device)
        return draft


def _load_onnx(source: ModelSource, dtype: str, vocab_size: int, flag: str, threads: int | None) -> OnnxModel:
    cpu = torch.device("cpu")
    # Cached, since a draft that shares its tensors asks for it too.
    reference = cache(partial(load_torch, source, "float32", cpu, vocab_size, flag))
    with typed_errors(source.name, flag):
        stored = Checkpoint(weights_folder(source, flag))
        border = source.tokenizer.border
        with _all_weights_required(source.name, flag):
            require_head(source, stored, flag)
            require_one_head(source, stored, flag)
            over_onnx = partial(_over_onnx, source.config, border, stored, vocab_size, threads, reference)
            model = over_onnx(dtype)
            # For rounded weights the original weights are compared.
            whole = model if model.bits is None else over_onnx("float32")
        require_same_logits(whole, source, lambda: load_torch(source, "float32", cpu, vocab_size, flag), flag)
        return model


@contextmanager
def _all_weights_required(name: str, flag: str) -> Iterator[None]:
    """Refuse a checkpoint that lacks a weight which the block reads."""
    try:
        yield
    except KeyError as missing:
        require_complete([str(missing.args[0])], name, flag)
        raise


def _over_onnx(
    config: Any,
    border: Border | None,
    stored: StoredWeights,
    vocab_size: int,
    threads: int | None,
    reference: Callable[[], TorchLM],
    dtype: str,
) -> OnnxModel:
    size = threads or suitable_threads(stored.parameters)
    bits = Precision(dtype).bits
    if border is not None:
        return OnnxSeq2SeqLM(config, border, stored, vocab_size, size, reference, bits)
    return OnnxLM(config, stored, vocab_size, size, reference, bits=bits)


def weights_folder(source: ModelSource, flag: str = "--target") -> Path:
    fetch_weights({flag: source})
    folder = files_of(source.location, source.commit)
    assert folder is not None, "a model that was found has its configuration here"
    if (folder / MODELOPT).is_file():
        raise packed_by_modelopt(source.name, flag)
    return folder


def fetch_weights(sources: Mapping[str, ModelSource]) -> None:
    """Fetch the missing weights of hub models, by flag.

    A target that is its own draft is fetched once. An error names the first flag of those that are fetched.
    """
    flags: list[str] = []
    wanted = {}
    for flag, source in sources.items():
        place = source.location, source.commit
        folder = files_of(source.location, source.commit)
        here = source.is_local or (folder is not None and has_weights(folder))
        if here or source.sharing is not None or place in wanted:
            continue
        with typed_errors(source.name, flag):
            wanted[place] = remote_weights(source.location, str(source.commit), flag)
        flags.append(flag)
    if wanted:
        with typed_errors(" and ".join(there.name for there, _ in wanted.values()), flags[0]):
            fetch([*wanted.values()], flags[0])


def read_config(name: str, flag: str) -> Any:
    """Return the configuration of a model, see ``configuration`` for what it may be named by."""
    from transformers import AutoConfig

    quiet_libraries()
    path = configuration(name, flag)
    with typed_errors(name, flag):
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    require_generative(config, name, flag)
    return config


def weights_bytes(config: Any, dtype: str) -> int:
    """Return the size in bytes of the weights of a configuration; nothing is allocated."""
    return sum(parameter.nbytes for parameter in skeleton(config, _weights_dtype(dtype)).parameters())


def require_weights_fit(models: dict[str, Any], dtype: str, device: torch.device) -> None:
    needed = sum(weights_bytes(config, dtype) for config in models.values())
    remedy = "Choose smaller models, --dtype bfloat16, or another --device."
    require_free(needed, device, "the weights", next(iter(models)), remedy)


def random_model(
    config: Any,
    dtype: str,
    device: torch.device,
    vocab_size: int,
    backend: str,
    threads: int | None = None,
    seed: int = 0,
) -> CausalLM:
    precision = Precision(dtype)
    if backend == INDUCTOR:
        require_compilable(config, precision.quantise, config.model_type)
    with torch.random.fork_rng(devices=[]), device:
        torch.manual_seed(seed)
        model = built(config, _weights_dtype(dtype))
    if backend != ONNXRUNTIME and precision.quantise is not None:
        quantise_built(model, precision, device)
    border = None
    if config.is_encoder_decoder:
        end = config.eos_token_id
        start = decoder_start(config, None, config.model_type, "--target")
        border = Border((end if isinstance(end, int) else end[0],), start)
    over_torch = _over_torch(model, border, vocab_size)
    if backend == INDUCTOR:
        _compile(over_torch)
    if backend != ONNXRUNTIME:
        return over_torch
    return _over_onnx(config, border, LoadedWeights(model), vocab_size, threads, lambda: over_torch, dtype)


def _weights_dtype(dtype: str) -> torch.dtype | None:
    """That weights are made in; for quantised weights float32 unless one is named."""
    precision = Precision(dtype)
    return DTYPES.get(precision.dtype) or (torch.float32 if precision.quantise is not None else None)

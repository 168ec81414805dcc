"""The multi-token prediction modules that a target's own checkpoint holds: found by tensors, built, run.

Module j reads the embedding of a token and what was predicted for the token before it, at first the
target's last state, through two norms and one product; one decoder layer of the target's own kind follows,
with keys and values of its own, and the target's output head (DeepSeek-V3, section 2.2). transformers drops
these tensors when it loads a model, and ``num_nextn_predict_layers`` may promise what the files lack: the
names of tensors say what there is.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spsbench.models.body import body_of, final_norm_in, head_of
from spsbench.models.causal_lm import (
    LAST,
    CausalLM,
    FeatureRows,
    HiddenStates,
    OverTarget,
    skeleton,
    text_config,
)
from spsbench.models.checkpoint import Checkpoint
from spsbench.models.heads import CachedChain
from spsbench.models.kinds import POST
from spsbench.models.onednn import Product
from spsbench.models.packed import fitted, stored_weight
from spsbench.models.recurrent import cache_of
from spsbench.models.rewind import RewindCache
from spsbench.models.torch_lm import TorchLM


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """Where one module's tensors are in the files.

    Attributes:
        embedding_norm, hidden_norm, projection, final_norm: their names.
        layer: from the layers' tensors, as a model's first layers have them, to their names.
        layers: how many: one, but in Nemotron-H, whose layers have a mixer each.
        head: its own output head; empty where it has none.
        embedding: its own embedding table; empty where it has none.
    """

    embedding_norm: str
    hidden_norm: str
    projection: str
    final_norm: str
    layer: Mapping[str, str]
    layers: int = 1
    head: str = ""
    embedding: str = ""


@dataclass(frozen=True, slots=True)
class MtpLayout:
    """The modules of a checkpoint.

    Attributes:
        modules: in the order in which they are run.
        hidden_first: whether the product reads the state before the embedding.
    """

    modules: tuple[ModuleNames, ...]
    hidden_first: bool = False


_PARTS = {
    "embedding_norm": ("enorm", "token_layernorm", "embed_norm", "pre_fc_norm_embedding", "enorm.m"),
    "hidden_norm": ("hnorm", "hidden_layernorm", "hidden_norm", "pre_fc_norm_hidden", "hnorm.m"),
    "projection": ("eh_proj", "input_proj", "fc"),
    "final_norm": ("shared_head.norm", "final_layernorm", "norm", "chain_norm"),
}
"""What each writer calls a part; ``.weight`` follows."""

_ERNIE = r"((?:model\.)?)mtp_block\.(\d+)\.$"
_OF_ERNIE = {
    "embedding_norm": "mtp_emb_norm.{}.",
    "hidden_norm": "mtp_hidden_norm.{}.",
    "projection": "mtp_linear_proj.{}.",
    "final_norm": "norm.",
}
"""Ernie 4.5's parts beside ``mtp_block``, numbers behind their names. The final norm is the target's own."""

_HEADS = ("shared_head.head.weight", "shared_head.output.weight")
PROMISES = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")

_NUMBERED = (
    r"(?:model\.)?mtp_layers\.",
    r"model\.mtp\.layers\.",
    r"(?:language_model\.)?mtp\.layers\.",
    r"(?:model\.)?mtp_block\.",
)
"""What stands before a module's number where it is not one behind the model's own layers."""

_STATE_FIRST = ("mimo", "inkling")

LONGCAT = "longcat_flash"
_OF_ATTENTION = (
    *("hidden_size", "num_attention_heads", "num_key_value_heads", "q_lora_rank", "kv_lora_rank"),
    *("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "attention_bias", "rope_parameters"),
    *("hidden_act", "rms_norm_eps", "max_position_embeddings"),
)
_RANKS = {"q_a_layernorm.weight": "q_lora_rank", "kv_a_layernorm.weight": "kv_lora_rank"}
"""The norms of latents, and how wide each is."""


class NoModules(Exception):
    """The files have no such module, or not all of one; the text says which tensor."""


def find_modules(stored: Checkpoint, config: Any) -> MtpLayout:
    """Find the modules of a checkpoint.

    Raises:
        NoModules: there is none, or one lacks a tensor.
    """
    text = text_config(config)
    groups = _prefixes_behind_layers(stored, text.num_hidden_layers) or _numbered_prefixes(stored)
    modules = [_names_of_module(stored, prefixes) for prefixes in groups]
    if not modules:
        promised = next((f"{name} {value}" for name, value in _promised(text)), "")
        why = f"its config promises {promised}, and its files" if promised else "its files"
        if (other := next((name for name in sorted(stored.tensors) if "mtp" in name), None)) is not None:
            raise NoModules(f"{why} name a module's tensors in a way that is not read here, as in {other}")
        raise NoModules(f"{why} have no tensors of a multi-token prediction module")
    first = str(text.model_type).startswith(_STATE_FIRST)
    return MtpLayout(tuple(modules), hidden_first=bool(getattr(text, "mtp_hidden_states_first", first)))


def _promised(text: Any) -> Iterator[tuple[str, int]]:
    for name in PROMISES:
        value = getattr(text, name, None)
        if isinstance(value, int) and value > 0:
            yield name, value


def _prefixes_behind_layers(stored: Checkpoint, layers: int) -> list[list[str]]:
    """Of each module, if they stand as further layers behind the model's."""
    found: dict[int, str] = {}
    for name in stored.tensors:
        match = re.match(r"(.*?\blayers\.)(\d+)\.(?:transformer\.)?(?:enorm|hnorm|eh_proj)\.", name)
        if match is not None and int(match[2]) >= layers and "mtp" not in match[1]:
            found[int(match[2])] = f"{match[1]}{match[2]}."
    return [[found[number]] for number in sorted(found)]


def _numbered_prefixes(stored: Checkpoint) -> list[list[str]]:
    """Of each module's layers: it ends where the next one has a product."""
    for pattern in _NUMBERED:
        matches = (re.match(rf"({pattern})(\d+)\.", name) for name in stored.tensors)
        found = {int(match[2]): f"{match[1]}{match[2]}." for match in matches if match is not None}
        if found:
            prefixes = [found[number] for number in sorted(found)]
            begins = [_name_of_part(stored, "projection", prefix) is not None for prefix in prefixes]
            if not begins[0]:  # the one product of all stands above
                return [[prefix] for prefix in prefixes]
            places = [place for place, begin in enumerate(begins) if begin]
            return [prefixes[place:end] for place, end in pairwise((*places, len(prefixes)))]
    return []


def _name_of_part(stored: Checkpoint, part: str, prefix: str) -> str | None:
    """Of the module, or of the layer of one, that ``prefix`` begins."""
    nearby = (f"{prefix}{inner}{choice}.weight" for choice in _PARTS[part] for inner in ("", "transformer."))
    return next((name for name in nearby if name in stored), None)


def _norms_and_product(stored: Checkpoint, prefixes: Sequence[str], above: str) -> dict[str, str]:
    """By part; what Qwen's and Mellum's modules share stands ``above``."""
    first, last = prefixes[0], prefixes[-1]
    parts = {}
    for part, choices in _PARTS.items():
        prefix = last if part == "final_norm" else first
        shared = (f"{above}{choice}.weight" for choice in choices)
        name = _name_of_part(stored, part, prefix) or next((name for name in shared if name in stored), None)
        if name is None:
            lacking = f"{prefix}{choices[0]}.weight"
            raise NoModules(f"its files have no {lacking}, which its module {first.rstrip('.')} needs")
        parts[part] = name
    return parts


def _parts_of_ernie(stored: Checkpoint, before: str, number: str) -> dict[str, str]:
    parts = {}
    for part, name in _OF_ERNIE.items():
        prefix = f"{before}{name.format(number)}"
        parts[part] = f"{prefix}weight"
        if parts[part] not in stored:
            raise NoModules(
                f"its files have no {parts[part]}, which its module {before}mtp_block.{number} needs"
            )
        own = (other for other in sorted(stored.tensors) if other.startswith(prefix))
        if (other := next((other for other in own if other != parts[part]), None)) is not None:
            raise NoModules(f"{other} is not read here")
    return parts


def _names_of_module(stored: Checkpoint, prefixes: Sequence[str]) -> ModuleNames:
    first = prefixes[0]
    above = re.sub(r"layers\.\d+\.$", "", first) if "mtp" in first else first
    if (ernie := re.match(_ERNIE, first)) is not None:
        parts = _parts_of_ernie(stored, ernie[1], ernie[2])
    else:
        parts = _norms_and_product(stored, prefixes, above)
    names = [{name for name in stored.tensors if name.startswith(prefix)} for prefix in prefixes]
    head = next((name for name in sorted(names[-1]) if name.endswith(_HEADS)), "")
    tables = (f"{prefix}embed_tokens.weight" for prefix in (first, above))
    embedding = next((name for name in tables if name in stored), "")
    layer = {}
    for number, (prefix, own) in enumerate(zip(prefixes, names, strict=True)):
        for name in sorted(own - {*parts.values(), head, embedding}):
            inner = re.sub(r"^(?:transformer|transformer_block|transformer_layer)\.", "", name[len(prefix) :])
            layer[f"model.layers.{number}.{inner}"] = name
    return ModuleNames(**parts, layer=layer, layers=len(prefixes), head=head, embedding=embedding)


class MtpModule(nn.Module):
    """One module with its weights; keys and values are the caller's.

    Args:
        stored: the target's files.
        names: the module's tensors in them.
        number: the module's.
        hidden_first: see ``MtpLayout``.
        target: its embedding, output head and architecture.

    Raises:
        NoModules: a tensor is missing, or has another shape than the architecture's.
    """

    def __init__(
        self, stored: Checkpoint, names: ModuleNames, number: int, hidden_first: bool, target: TorchLM
    ) -> None:
        super().__init__()
        self._hidden_first = hidden_first
        config = _layer_config(target.config, names, number)
        self.body = _body(stored, names, config, target)
        name = final_norm_in(self.body)
        self.final_norm = getattr(self.body, name)
        setattr(self.body, name, nn.Identity())
        width = text_config(target.config).hidden_size
        self.embedding_norm = _norm(stored, names.embedding_norm, self.final_norm)
        self.hidden_norm = _norm(stored, names.hidden_norm, self.final_norm)
        self.projection = Product(_stored(stored, names.projection, (width, 2 * width), target))
        table = target.model.get_input_embeddings()
        head = head_of(target.model)
        self._embed = table if not names.embedding else _table_or_head(stored, names.embedding, table)
        self._head = head if not names.head else _table_or_head(stored, names.head, head)
        self._scale, self._softcap = _logit_scale_and_cap(text_config(target.config))
        self._vocab_size = target.vocab_size
        self.to(target.device).eval().requires_grad_(False)
        fitted(self.body, width)

    def run(self, tokens: Tensor, states: Tensor, cache: RewindCache, **placed: Tensor) -> Tensor:
        """Append entries of tokens [n] after states [n, hidden]; return [n, hidden] before the final norm."""
        embedded = self.embedding_norm(self._embed(tokens))
        states = self.hidden_norm(states)
        both = (states, embedded) if self._hidden_first else (embedded, states)
        joined = self.projection(torch.cat(both, -1)).unsqueeze(0)
        out = self.body(inputs_embeds=joined, past_key_values=cache, use_cache=True, **placed)
        last: Tensor = out.last_hidden_state[0]
        return last

    def logits(self, normed: Tensor) -> Tensor:
        """[n, V] of states [n, hidden] after the final norm."""
        logits = self._head(normed)[:, : self._vocab_size]
        if self._scale != 1.0:
            logits = logits * self._scale
        if self._softcap:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits  # type: ignore[no-any-return]

    @property
    def forward_bytes(self) -> int:
        """Bytes of weights that a forward of one token reads, all experts counted."""
        own = sum(part.nbytes for name, part in self.body.named_parameters() if "embed" not in name)
        return int(own + self.projection.nbytes + self._head.weight.nbytes)


def _logit_scale_and_cap(text: Any) -> tuple[float, float]:
    """What a head's products are multiplied by, and the bound of logits, 0 for none."""
    divisor = getattr(text, "logits_scaling", None) or getattr(text, "logits_mup_width_multiplier", None)
    cap = getattr(text, "final_logit_softcapping", None)
    return 1.0 / float(divisor or 1.0), float(cap or 0.0)


def _stored(stored: Checkpoint, name: str, shape: tuple[int, ...], target: TorchLM) -> Tensor:
    if not stored.reads(name):
        raise NoModules(f"{name} is stored as {stored.tensors[name].kind}, which is not read here")
    if stored.shape(name) != shape:
        raise NoModules(f"{name} has the shape {stored.shape(name)}, not {shape}")
    return torch.from_numpy(stored.read(name).copy()).to(target.device, target.dtype)


def _table_or_head(stored: Checkpoint, name: str, shared: Any) -> Any:
    """A module's own; the target's, where it holds the same numbers."""
    weight = _shaped(stored, name, shared).to(shared.weight.device, shared.weight.dtype)
    if torch.equal(weight, stored_weight(shared)):
        return shared
    own = copy.copy(shared)
    own.__dict__ = own.__dict__ | {"_parameters": own._parameters | {"weight": nn.Parameter(weight)}}
    return own


def _shaped(stored: Checkpoint, name: str, like: Any) -> Tensor:
    """Read a weight; NoModules if it has another shape than that of ``like``."""
    if (there := stored.shape(name)) != tuple(like.weight.shape):
        raise NoModules(f"{name} has the shape {there}, not {tuple(like.weight.shape)}")
    return torch.from_numpy(_read(stored, name))


def _norm(stored: Checkpoint, name: str, like: Any) -> Any:
    norm = copy.deepcopy(like)
    weight = _shaped(stored, name, norm)
    with torch.no_grad():
        norm.weight.copy_(weight)
    return norm


def _layer_config(config: Any, names: ModuleNames, number: int) -> Any:
    """Of a model of the module's layers alone, whose vocabulary is one token.

    Raises:
        NoModules: the configuration tells of other layers than the files hold.
    """
    text = text_config(config)
    if text.model_type == LONGCAT:
        told = _config_of_longcat(text)
    else:
        told = text.get_mtp_config() if getattr(text, "num_mtp_layers", None) else copy.deepcopy(text)
    sparse = any(".experts." in name for name in names.layer)
    types = getattr(told, "layer_types", None)
    if (pattern := getattr(told, "mtp_layers_block_type", None)) is not None:
        if len(pattern) != names.layers:
            kinds = ", ".join(pattern)
            raise NoModules(f"its config gives a module the layers {kinds}, its files hold {names.layers}")
        told.layer_types = list(pattern)
    elif types is not None:
        own = types if told.num_hidden_layers == len(types) < text.num_hidden_layers else ()
        told.layer_types = [own[number] if number < len(own) else _kind_of_attention(types)]
    if getattr(told, "mlp_layer_types", None) is not None:
        told.mlp_layer_types = ["sparse" if sparse else "dense"]
    if hasattr(told, "first_k_dense_replace"):
        told.first_k_dense_replace = int(not sparse)
    if hasattr(told, "moe_layer_start_index"):
        told.moe_layer_start_index, told.moe_layer_end_index, told.moe_layer_interval = int(not sparse), 0, 1
    if hasattr(told, "mlp_only_layers"):
        told.mlp_only_layers = [] if sparse else [0]
    if hasattr(told, "decoder_sparse_step"):
        told.decoder_sparse_step = 1
    told.num_hidden_layers = names.layers
    told.vocab_size, told.pad_token_id, told.bos_token_id, told.eos_token_id = 1, None, None, None
    told.tie_word_embeddings = False
    return told


def _config_of_longcat(text: Any) -> Any:
    """Of its module.

    A layer of that target is two attentions, two products and experts. Its module is one attention and one
    product, as DeepSeek-V3's dense layers are, but for ``_latent_gains``.
    """
    from transformers import DeepseekV3Config

    return DeepseekV3Config(
        intermediate_size=text.ffn_hidden_size, **{name: getattr(text, name) for name in _OF_ATTENTION}
    )


def _latent_gains(text: Any, name: str, gains: Any) -> Any:
    """Of a norm; of LongCat-Flash's latents with the factor that the target puts behind it."""
    rank = next((rank for norm, rank in _RANKS.items() if name.endswith(f".{norm}")), None)
    if rank is None or text.model_type != LONGCAT:
        return gains
    return gains * np.float32((text.hidden_size / getattr(text, rank)) ** 0.5)


def _kind_of_attention(types: list[str]) -> str:
    """Of a module's layer where no configuration says it: full attention, if there is any."""
    return "full_attention" if "full_attention" in types else types[-1]


def _body(stored: Checkpoint, names: ModuleNames, config: Any, target: TorchLM) -> Any:
    """Build the layer and its final norm, by transformers' own reading of the architecture's files."""
    text = text_config(target.config)
    state = {
        inner: torch.from_numpy(_latent_gains(text, name, _read(stored, name)))
        for inner, name in names.layer.items()
    }
    empty = skeleton(config)
    kind, body = type(empty), body_of(empty)
    named = {id(part): name for name, part in empty.named_parameters()}
    state[named[id(getattr(body, final_norm_in(body)).weight)]] = torch.from_numpy(
        _read(stored, names.final_norm)
    )
    for table in (empty.get_input_embeddings(), head_of(empty)):
        state[named[id(table.weight)]] = torch.zeros(1, text.hidden_size)
    with _unreported():
        built, told = kind.from_pretrained(
            None, config=config, state_dict=state, dtype=target.dtype, output_loading_info=True
        )
    lacking = sorted(told["missing_keys"]) + [str(key) for key in told["mismatched_keys"]]
    if lacking:
        prefix = names.projection.rpartition(".")[0].rpartition(".")[0]
        raise NoModules(f"of its module {prefix} the files lack {lacking[0]}, or it has another shape")
    if told["unexpected_keys"]:
        extra = names.layer.get(min(told["unexpected_keys"]), min(told["unexpected_keys"]))
        raise NoModules(f"{extra} is no part of a layer of {text.model_type}")
    if not isinstance(cache_of(built), RewindCache):
        raise NoModules(f"layers of {text.model_type} keep more than keys and values")
    return built.get_decoder()


def _read(stored: Checkpoint, name: str) -> Any:
    if not stored.reads(name):
        raise NoModules(f"{name} is stored as {stored.tensors[name].kind}, which is not read here")
    return stored.read(name).copy()


@contextmanager
def _unreported() -> Iterator[None]:
    """Keep transformers from printing a bar and a table of this small load."""
    from transformers.utils import logging

    was = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(was)


class MtpChain(CachedChain):
    """One module that is run again on its own prediction, for as many tokens as are wanted.

    Args:
        recycle: what its next entry reads of its last one, ``POST`` or ``PRE`` its final norm.
    """

    def __init__(self, module: MtpModule, recycle: str, target: TorchLM) -> None:
        self._module, self._recycle, self._target = module, recycle, target
        self._clear_cache()

    def _appended(self, tokens: Tensor, features: Tensor, **placed: Tensor) -> Tensor:
        return self._module.run(tokens, features, self._cache, **placed)

    def _read_of(self, states: Tensor) -> tuple[Tensor, Tensor]:
        normed = self._module.final_norm(states)
        return self._module.logits(normed), normed if self._recycle == POST else states

    def forward_bytes(self) -> int:
        return self._module.forward_bytes


class MtpModel(OverTarget):
    """Several modules over their target, as a language model that drafts: the j-th predicts the j-th token.

    Entry i of module j reads the embedding of token i + 1 + j and what module j - 1 made of its entry i; the
    first one reads the target's state i. An entry stays while all that it read was decided. Beyond the last
    module the first one goes on, with the state that was predicted last.

    Args:
        modules: at least two.
        recycle: what a module reads of the one before it, ``POST`` or ``PRE`` its final norm.
    """

    def __init__(
        self, modules: Sequence[MtpModule], recycle: str, target: CausalLM, hidden: HiddenStates
    ) -> None:
        super().__init__(target, hidden)
        self._modules, self._recycle = modules, recycle
        self._caches = [RewindCache() for _ in modules]
        self._made = [FeatureRows() for _ in modules]
        self._ids = torch.empty(0, dtype=torch.int64, device=self.device)
        self._decided = 0
        self._last = torch.empty(0)

    @property
    def length(self) -> int:
        return len(self._ids)

    def score(self, tokens: Tensor, last: int) -> Tensor:
        """The first token's row is all zeros."""
        assert last == 1
        self._ids = torch.cat([self._ids, tokens])
        if self.length < 2:
            return torch.zeros(1, self.vocab_size, device=self.device)
        if self._hidden.length >= self.length - 1:
            self._decided = self.length
        step = self.length - self._decided
        module = self._modules[step % len(self._modules)]
        out = self._entries(step) if step < len(self._modules) else self._once_more(step)
        normed = module.final_norm(out)
        self._last = normed if self._recycle == POST else out
        return module.logits(normed[-1:])

    def _entries(self, step: int) -> Tensor:
        """Run a module over all entries that it lacks, up to the one that predicts the wanted token."""
        cache, end = self._caches[step], self._decided - 1
        start = cache.length
        tokens = self._ids[start + 1 + step : end + 1 + step]
        states = (
            self._hidden.features(start, end) if not step else self._made[step - 1].read(start, end, LAST)
        )
        out = self._modules[step].run(tokens, states, cache)
        made = self._modules[step].final_norm(out) if self._recycle == POST else out
        self._made[step].write(start, [made])
        return out

    def _once_more(self, step: int) -> Tensor:
        """Run a module once more, on the state that was predicted last."""
        place = step % len(self._modules)
        position = torch.tensor([[self._decided - 2 + step - place]], device=self.device)
        return self._modules[place].run(
            self._ids[-1:], self._last[-1:], self._caches[place], position_ids=position
        )

    def rollback(self, length: int) -> None:
        """Keep at most the first ``length`` tokens, and the entries that read nothing else."""
        self._ids = self._ids[:length]
        self._decided = min(self._decided, self.length)
        for number, cache in enumerate(self._caches):
            cache.rollback(max(0, self._decided - 1 - number))

    def forward_bytes(self) -> int:
        """Bytes of weights that a forward of one module reads."""
        return max(module.forward_bytes for module in self._modules)

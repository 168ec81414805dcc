"""Where a model comes from, and whether its architecture supports rollback of its cache.

Only the check of architectures uses private names of transformers. If a release drops them, the
self-test at load still catches a model that cannot be rolled back.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spsbench.base.environment import little_memory
from spsbench.base.errors import UnavailableError, UsageError
from spsbench.base.files import open_file, read_file
from spsbench.models.causal_lm import text_config
from spsbench.models.checkpoint import EMBEDDING, Checkpoint
from spsbench.models.converted import folder_of, read_origin, settings_of_unconverted
from spsbench.models.downloads import pinned
from spsbench.models.hf_errors import quiet_libraries, typed_errors
from spsbench.models.kinds import CONFIG, MODEL, is_trained
from spsbench.models.location import local_folder
from spsbench.models.messages import OTHER_MODEL
from spsbench.models.plausible import require_bounded_config, require_ordinary_files, too_much
from spsbench.models.text_part import class_of, has_towers, reads_both_ways, require_text_alone, what_else
from spsbench.models.tokenizer import Tokenizer
from spsbench.models.trained import TrainedDraft, embedding_fingerprint, layer_config, read_trained

_MOST_GROWTH = 4_096
"""Characters that a tokenizer's rules may make of one, and tokens that it may add to a text."""


def require_bounded_tokenizer(file: Path, name: str, flag: str) -> None:
    """Refuse a tokenizer.json whose rules make a long text of a short one."""
    try:
        content = json.loads(read_file(file))
        parts = {part: content.get(part) for part in ("normalizer", "pre_tokenizer", "decoder")}
        grown = {part: _most_characters_of_one(rules) for part, rules in parts.items()}
        grown["post_processor"] = _most_added_tokens(content.get("post_processor"))
        padding = content.get("padding") or {}
        fixed = padding.get("strategy")
        grown["padding"] = max(
            int(fixed.get("Fixed", 0)) if isinstance(fixed, Mapping) else 0,
            int(padding.get("pad_to_multiple_of") or 0),
        )
    except (ValueError, TypeError, AttributeError, RecursionError):
        return  # damaged: what reads it says how
    for part, factor in grown.items():
        if factor > _MOST_GROWTH:
            raise too_much(name, flag, f"the {part} of its {file.name} makes {factor:,} of one", _MOST_GROWTH)


def _most_characters_of_one(rules: Any) -> int:
    if isinstance(rules, list):
        product = 1
        for rule in rules:
            product *= min(_most_characters_of_one(rule), 10 * _MOST_GROWTH)
            if product > _MOST_GROWTH:
                break
        return product
    if not isinstance(rules, Mapping):
        return 1
    if rules.get("type") == "Replace":
        pattern = rules.get("pattern") or {}
        added = len(str(rules.get("content", "")))
        literal = pattern.get("String") if isinstance(pattern, Mapping) else None
        # A regular expression may match between any two characters.
        return -(-added // len(literal)) or 1 if literal else 1 + added
    if rules.get("type") == "Prepend":
        return 1 + len(str(rules.get("prepend", "")))
    return _most_characters_of_one([value for value in rules.values() if isinstance(value, (list, Mapping))])


def _most_added_tokens(rules: Any) -> int:
    if isinstance(rules, list):
        return sum(map(_most_added_tokens, rules))
    if not isinstance(rules, Mapping):
        return 0
    known = rules.get("special_tokens")
    sizes = (
        {key: len(each.get("ids", ())) for key, each in known.items()} if isinstance(known, Mapping) else {}
    )
    written = [
        piece.get("SpecialToken") or {} for key in ("single", "pair") for piece in rules.get(key) or ()
    ]
    return sum(sizes.get(piece.get("id"), 1) for piece in written) + _most_added_tokens(
        rules.get("processors")
    )


def require_generative(config: Any, name: str, flag: str) -> None:
    """Refuse a model that writes no text token by token."""
    kind = f"{name} ({config.model_type})"
    model_class = class_of(config)
    if model_class is None:
        raise UsageError(f"{kind} {what_else(config)}.", flag=flag, remedy=OTHER_MODEL)
    if "Diffusion" in model_class.__name__:
        why = f"{kind} writes blocks of tokens by diffusion, not token by token."
        raise UsageError(why, flag=flag, remedy=OTHER_MODEL)
    if reads_both_ways(config):
        why = f"{kind} is not causal: each token sees those after it; its config.json lacks is_decoder: true."
        raise UsageError(why, flag=flag, remedy=OTHER_MODEL)
    require_text_alone(config, kind, flag)
    sizes = (getattr(config, size, None) for size in ("vocab_size", "num_hidden_layers"))
    if config.is_encoder_decoder and not all(isinstance(size, int) for size in sizes):
        why = f"{name} ({config.model_type}) keeps encoder and decoder in their own configurations."
        raise UsageError(why, flag=flag, remedy="Choose a model like T5 or BART.")
    if not isinstance(getattr(text_config(config), "num_hidden_layers", None), int):
        why = f"{kind} has no num_hidden_layers, without which transformers makes no cache for it."
        raise UsageError(why, flag=flag, remedy=OTHER_MODEL)


def require_rollback(source: ModelSource, flag: str) -> None:
    """Refuse a model whose state cannot be put back after a rejected draft token.

    Who scores texts alone rolls nothing back, and takes every model with a forward.
    """
    from spsbench.models.recurrent import OWN_STATE, NotCopyable, RowsByToken, layers_of, parts_of

    config = source.config
    if config.is_encoder_decoder or text_config(config).model_type in OWN_STATE:
        return
    stateful = is_stateful(config)  # its modelling code is read by that, where some have their own layers
    layers = layers_of(config)
    if layers is None:  # an unusual configuration: the self-test will decide
        return
    why = "keeps its running state outside of its cache"
    try:
        parts = parts_of(layers)
        if not stateful or not all(isinstance(part, RowsByToken) for part in parts):
            return
    except NotCopyable as reason:
        why = f"keeps a state that cannot be copied ({reason})"
    raise UsageError(
        f"{source.name} ({config.model_type}) {why}: it could not be restored after "
        "a rejected draft token, and speculative sampling with it would be silently wrong.",
        flag=flag,
        remedy="Choose another model.",
    )


def is_stateful(config: Any) -> bool:
    """Return whether transformers says so of the model, whose assisted generation it then refuses."""
    from transformers import AutoModelForCausalLM

    mapping = getattr(AutoModelForCausalLM, "_model_mapping", None)
    found = None if mapping is None else mapping.get(type(config), None)
    classes = found if isinstance(found, (list, tuple)) else (found,)
    return any(getattr(each, "_is_stateful", False) for each in classes)


_PROBE_BYTES = 1 << 16
_UNKNOWN = "unknown"
_FINGERPRINTED = frozenset({".json", ".jinja", ".safetensors", ".bin"})


@dataclass(frozen=True, slots=True)
class Sharing:
    """A trained draft and the target whose embedding table and output head it takes."""

    draft: TrainedDraft
    target: ModelSource


@dataclass(frozen=True, slots=True)
class ModelSource:
    name: str
    location: str  # a folder or a hub id, as ``from_pretrained`` takes it
    revision: str | None
    fingerprint: str
    config: Any
    tokenizer: Tokenizer
    dequantised: str | None = None  # how weights were quantised before they became float32, e.g. ``Q4_1``
    file: str | None = None  # that it was converted from
    sharing: Sharing | None = None
    generation: Mapping[str, Any] | None = None  # what its generation_config.json says; None without one

    @property
    def title(self) -> str:
        """The model as a title names it: ``Qwen3-8B``, ``text of Qwen3-VL-8B``; a converted file's name."""
        if self.file is not None:
            return (
                Path(self.file).stem.removesuffix(f".{self.dequantised}").removesuffix(f"-{self.dequantised}")
            )
        name = self.name.rstrip("/").rpartition("/")[2]
        return f"text of {name}" if has_towers(self.config) else name

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether an encoder reads the prompt, and a decoder begins after it."""
        return bool(self.config.is_encoder_decoder)

    @property
    def is_local(self) -> bool:
        return Path(self.location).is_dir()

    @property
    def commit(self) -> str | None:
        """The revision to load weights from: the commit of the configuration and tokenizer."""
        return self.revision if self.is_local or self.fingerprint == _UNKNOWN else self.fingerprint

    @property
    def quantization(self) -> str | None:
        """How the checkpoint's weights are quantised, e.g. ``gptq``; None if they are not."""
        settings = getattr(self.config, "quantization_config", None)
        if settings is None:
            return None
        fields = settings if isinstance(settings, dict) else vars(settings)
        method = fields.get("quant_method")
        if method is None:  # as bitsandbytes wrote it once
            in_bits = fields.get("load_in_4bit") or fields.get("load_in_8bit")
            return "bitsandbytes" if in_bits else "a method without a name"
        return str(getattr(method, "value", method))

    def key(self, *more: str) -> str:
        """Return a name of its content, its configuration and all else that a cached answer depends on."""
        parts = (self.location, self.fingerprint, self.config.to_json_string(), *more)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]

    def identity(self) -> dict[str, Any]:
        """Return what must match for results of this model to be comparable."""
        return {"name": self.name, "revision": self.revision, "fingerprint": self.fingerprint}


def find(name: str, revision: str | None, flag: str, target: ModelSource | None = None) -> ModelSource:
    """Read configuration and tokenizer of a model; no weights are loaded."""
    quiet_libraries()
    location = _location(name, flag)
    read = revision
    if not Path(location).is_dir():
        # For a commit the hub's cache knows its files, so that nothing is asked twice.
        read = pinned(location, revision, flag) or revision
    with typed_errors(name, flag):  # after it, since a hub that has just failed is left alone
        if is_trained(Path(location)):
            return _find_trained(name, location, flag, target)
        return _find_whole(name, location, revision, read, flag)


def _find_whole(name: str, location: str, revision: str | None, read: str | None, flag: str) -> ModelSource:
    """Read a model with its own embedding and tokenizer, as it is at the commit ``read``."""
    from transformers import AutoConfig

    _require_bounded(location, read, name, flag)
    # False, not None: with None transformers asks on the terminal.
    config = AutoConfig.from_pretrained(location, revision=read, trust_remote_code=False)
    require_generative(config, name, flag)
    generation = _read_generation(location, read)
    tokenizer = _read_tokenizer(location, read, name, flag, config, generation)
    origin = read_origin(Path(location))
    if origin is None:
        content = fingerprint(location, read)
        return ModelSource(name, location, revision, content, config, tokenizer, generation=generation)
    # The converted files may differ from one version of transformers to the next; the model does not.
    content = f"gguf:{origin.sha256[:16]}"
    return ModelSource(name, location, revision, content, config, tokenizer, origin.dequantised, origin.file)


def unconverted_tokenizers(models: Sequence[tuple[str, str | None, str]]) -> list[Tokenizer]:
    """Read the tokenizers of models, each (name, revision, flag), without converting any.

    None at all where nothing would be converted, or one is a trained draft, which has its target's.
    """
    if any(is_trained(Path(name).expanduser()) for name, *_ in models):
        return []
    with ExitStack() as opened:
        folders = [opened.enter_context(settings_of_unconverted(name, flag)) for name, _, flag in models]
        if not any(folders):
            return []
        return [
            find(*model).tokenizer if folder is None else find(str(folder), None, model[2]).tokenizer
            for model, folder in zip(models, folders, strict=True)
        ]


def _require_bounded(location: str, revision: str | None, name: str, flag: str) -> None:
    """Refuse a model whose settings alone would take all memory or an hour to build."""
    from transformers import PretrainedConfig
    from transformers.utils.hub import cached_file

    require_ordinary_files(Path(location), name, flag)
    content, _ = PretrainedConfig.get_config_dict(location, revision=revision)
    require_bounded_config(content, name, flag)
    cached = cached_file(
        location, "tokenizer.json", revision=revision, _raise_exceptions_for_missing_entries=False
    )
    if cached is not None:
        require_bounded_tokenizer(Path(cached), name, flag)


def _location(name: str, flag: str) -> str:
    """Resolve a name to a folder or a hub id; what has to be converted is."""
    folder = folder_of(name, flag) or local_folder(name, flag)
    return name if folder is None else str(folder)


def _find_trained(name: str, location: str, flag: str, target: ModelSource | None) -> ModelSource:
    """Read a trained draft's folder, with its target's embedding, head and tokenizer."""
    if target is None:
        why = f"{name} is a trained draft: embedding and output head are its target's."
        remedy = "Give it as --draft, and the model that it was made for as --target."
        raise UsageError(why, flag=flag, remedy=remedy)
    draft = read_trained(Path(location), flag)
    if draft.kind != MODEL:
        remedy = f"Use --drafter heads:from={name}."
        raise UsageError(f"{name} is a head of the kind {draft.kind}, not a model.", flag=flag, remedy=remedy)
    over = text_config(target.config)
    require_made_for(draft, target, flag)
    require_bounded_config(draft.config, name, flag)
    config = layer_config(draft)
    if config.hidden_size != draft.target.hidden:
        raise ValueError(f"its layers are {config.hidden_size} wide, its target {draft.target.hidden}")
    if config.model_type != over.model_type:
        why = f"{name} has layers of {config.model_type}, its target is a {over.model_type}."
        raise UsageError(why, flag=flag, remedy="Train a draft for this target.")
    config.vocab_size, config.pad_token_id = over.vocab_size, None
    config.dtype = getattr(target.config, "dtype", None)
    require_generative(config, name, flag)
    sharing = Sharing(draft, target)
    return ModelSource(name, location, None, fingerprint(location), config, target.tokenizer, sharing=sharing)


def require_made_for(draft: TrainedDraft, target: ModelSource, flag: str) -> None:
    """By the target's configuration; its embedding is compared at loading where its files are not here."""
    config = text_config(target.config)
    embedding = embedding_of(target, "--target") or draft.target.embedding
    draft.require_target(config.hidden_size, config.vocab_size, embedding, flag)


def embedding_of(source: ModelSource, flag: str) -> str | None:
    """Return ``embedding_fingerprint`` of a model's files; None if they are absent or store it otherwise."""
    folder = files_of(source.location, source.commit)
    if folder is None:
        return None
    with typed_errors(source.name, flag):
        stored = Checkpoint(folder)
        return embedding_fingerprint(stored) if stored.reads(EMBEDDING) else None


def _read_generation(location: str, revision: str | None) -> Mapping[str, Any] | None:
    from transformers import GenerationConfig

    try:
        config = GenerationConfig.from_pretrained(location, revision=revision)
    except OSError:  # the file is optional
        return None
    return {key: value for key, value in vars(config).items() if value is not None}


def _read_tokenizer(
    location: str,
    revision: str | None,
    name: str,
    flag: str,
    config: Any,
    generation: Mapping[str, Any] | None,
) -> Tokenizer:
    """Read a model's tokenizer, its end tokens and, for an encoder-decoder, what the decoder starts with."""
    from transformers import AutoTokenizer

    folder = Path(location)
    if folder.is_dir() and not any(folder.glob("*token*")) and not (folder / "vocab.json").is_file():
        why = f"{name} has no tokenizer: tokenizer.json or a similar file is missing next to config.json."
        raise UnavailableError(why, flag=flag, remedy="Save the tokenizer into the same folder.")
    with little_memory():
        tokenizer = AutoTokenizer.from_pretrained(location, revision=revision, trust_remote_code=False)
        # Instruct models list their end-of-turn token only in generation_config.json.
        eos = None if generation is None else generation.get("eos_token_id")
        listed = (*(eos if isinstance(eos, list) else [eos]), tokenizer.eos_token_id)
        start = decoder_start(config, generation, name, flag) if config.is_encoder_decoder else ()
        return Tokenizer(tokenizer, frozenset(i for i in listed if i is not None), start)


def decoder_start(config: Any, settings: Mapping[str, Any] | None, name: str, flag: str) -> tuple[int, ...]:
    """Return a decoder's start token, and every output's first token where that is forced (BART's BOS)."""

    def setting(key: str) -> Any:
        generation_value = None if settings is None else settings.get(key)
        return getattr(config, key, None) if generation_value is None else generation_value

    start, forced = setting("decoder_start_token_id"), setting("forced_bos_token_id")
    # Their target language is the first token of the output, which a call of generate() chooses.
    if config.model_type in ("m2m_100", "mbart", "nllb-moe") and forced is None:
        why = f"{name} ({config.model_type}) writes many languages, and does not say which."
        remedy = "Write the language's token as forced_bos_token_id into its generation_config.json."
        raise UsageError(why, flag=flag, remedy=remedy)
    if not isinstance(start, int):
        why = f"{name} does not say which token its decoder starts with."
        raise UnavailableError(why, flag=flag, remedy="Add decoder_start_token_id to its config.json.")
    return (start,) if forced is None else (start, int(forced))


def files_of(location: str, revision: str | None) -> Path | None:
    """Find a model's files: local, or its snapshot in the hub cache; None if not downloaded."""
    if Path(location).is_dir():
        return Path(location)
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(location, CONFIG, revision=revision)
    return Path(cached).parent if isinstance(cached, str) else None


def fingerprint(location: str, revision: str | None = None) -> str:
    """Return a hub model's commit; of a folder, a hash of its files' names, sizes, beginnings and ends."""
    folder = files_of(location, revision)
    if folder is None or not Path(location).is_dir():
        return _UNKNOWN if folder is None else folder.name  # the cache names snapshots by commit
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.suffix in _FINGERPRINTED):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with open_file(path) as file:
            digest.update(file.read(_PROBE_BYTES))
            file.seek(max(size - _PROBE_BYTES, 0))
            digest.update(file.read())
    return f"sha256:{digest.hexdigest()[:16]}"

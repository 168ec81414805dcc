"""Where a model comes from, and what can be known of it before a weight is loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spsbench.errors import SpsbenchError, UnavailableError, UsageError
from spsbench.models.tokenizer import Tokenizer
from spsbench.paths import mini_dir

_EMBEDDED = "embedded:mini/"
_PROBE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that was found, with its configuration and tokenizer read.

    Attributes:
        name: as the user wrote it.
        location: a folder or a hub id, as `from_pretrained` takes it.
        revision: what was asked for; None for the default.
        fingerprint: commit of a hub model, or a cheap hash of a folder's content.
        config: the Hugging Face configuration.
        tokenizer: its tokenizer.
    """

    name: str
    location: str
    revision: str | None
    fingerprint: str
    config: Any
    tokenizer: Tokenizer


def find(name: str, revision: str | None, flag: str) -> ModelSource:
    """Read configuration and tokenizer of a model; nothing large is loaded.

    Args:
        name: a hub id, a folder, or ``embedded:mini/target`` and ``embedded:mini/draft``.
        revision: branch, tag or commit on the hub.
        flag: the command-line flag that named it, for messages.

    Raises:
        UnavailableError: it cannot be had: missing, offline, gated, unreadable.
        UsageError: it is there, but no causal language model that SpS can use.
    """
    from transformers import AutoConfig

    location = _location(name, flag)
    with _explained(name, flag):
        config = AutoConfig.from_pretrained(location, revision=revision)
        tokenizer = _read_tokenizer(location, revision)
    _require_causal(config, name, flag)
    return ModelSource(name, location, revision, _fingerprint(location, config), config, tokenizer)


def _location(name: str, flag: str) -> str:
    """Folder or hub id behind a name."""
    if name.startswith(_EMBEDDED):
        return str(mini_dir() / name.removeprefix(_EMBEDDED))
    path = Path(name).expanduser()
    looks_local = name.startswith((".", "/", "~")) or name.count("/") > 1
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UnavailableError(
                f"{name} is no model: it has no config.json.",
                flag=flag,
                remedy="Give a folder written by save_pretrained, or a hub id.",
            )
        return str(path)
    if looks_local or path.exists():
        raise UnavailableError(
            f"{name} is no folder of a model.",
            flag=flag,
            remedy="Check the path, or give a hub id like org/name.",
        )
    return name


def _read_tokenizer(location: str, revision: str | None) -> Tokenizer:
    from transformers import AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(location, revision=revision)
    try:
        eos = GenerationConfig.from_pretrained(location, revision=revision).eos_token_id
    except OSError:  # a model need not ship one
        eos = None
    listed = eos if isinstance(eos, list) else [eos]
    return Tokenizer(tokenizer, frozenset(i for i in (*listed, tokenizer.eos_token_id) if i is not None))


def _require_causal(config: Any, name: str, flag: str) -> None:
    """Refuse what is no causal language model, or keeps a state that cannot be rolled back."""
    from transformers import AutoModelForCausalLM

    mapping = AutoModelForCausalLM._model_mapping
    if type(config) not in mapping:
        raise UsageError(
            f"{name} ({config.model_type}) is no causal language model.",
            flag=flag,
            remedy="Choose one that is.",
        )
    model_class = mapping[type(config)]
    model_class = model_class[0] if isinstance(model_class, (list, tuple)) else model_class
    if getattr(model_class, "_is_stateful", False):
        raise UsageError(
            f"{name} ({config.model_type}) is recurrent or hybrid: its state cannot be rolled back after a "
            "rejected draft token, so speculative sampling with it would be silently wrong.",
            flag=flag,
            remedy="Choose a pure attention model.",
        )


def _fingerprint(location: str, config: Any) -> str:
    """Commit of a hub model; for a folder a hash over its files' names, sizes and edges."""
    folder = Path(location)
    if not folder.is_dir():
        return str(getattr(config, "_commit_hash", None) or "unknown")
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.suffix in {".json", ".safetensors", ".bin"}):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            digest.update(file.read(_PROBE_BYTES))
            file.seek(max(size - _PROBE_BYTES, 0))
            digest.update(file.read())
    return f"sha256:{digest.hexdigest()[:16]}"


@contextmanager
def _explained(name: str, flag: str) -> Iterator[None]:
    """Turn what the Hugging Face libraries raise into a sentence with a remedy."""
    try:
        yield
    except SpsbenchError:
        raise
    except Exception as error:
        raise explain(error, name, flag) from error


def explain(error: Exception, name: str, flag: str) -> SpsbenchError:
    """The typed error for what went wrong while a model was looked up or read."""
    text = " ".join(str(e) for e in _causes(error)).lower()
    first_line = next(iter(str(error).splitlines()), type(error).__name__)
    if "gated" in text or "401" in text or "403" in text:
        return UnavailableError(
            f"{name} is gated.",
            flag=flag,
            remedy="Accept its licence on the hub, then log in with `hf auth login` or set HF_TOKEN.",
        )
    if any(word in text for word in ("connect", "offline", "resolve host", "name resolution", "timed out")):
        return UnavailableError(
            f"{name} is not on this machine and the hub cannot be reached.",
            flag=flag,
            remedy="Give a local folder, set HF_HOME to a filled cache, or use --pair mini.",
        )
    if "not a valid model identifier" in text or "404" in text or "not found" in text:
        return UnavailableError(
            f"no model {name} was found: {first_line}", flag=flag, remedy="Check its name and --revision."
        )
    return UnavailableError(
        f"{name} cannot be read: {first_line}", flag=flag, remedy="Fetch or save the model again."
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__

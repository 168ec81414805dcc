"""Where a model is and what its config.json says, without torch: a wrong name costs half a second."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spsbench.base.errors import UnavailableError
from spsbench.base.files import read_file
from spsbench.base.paths import embedded_dir, way_to_install
from spsbench.config import PairConfig
from spsbench.config.models import ModelRef
from spsbench.models.converted import SUFFIX as GGUF
from spsbench.models.downloads import pinned
from spsbench.models.fetch.packages import PREFIX, load_package
from spsbench.models.hf_errors import typed_errors
from spsbench.models.kinds import CONFIG, is_trained


def local_folder(name: str, flag: str) -> Path | None:
    """Return the folder of a model in Hugging Face's format; None for a name of the hub.

    Raises:
        UnavailableError: it names a place on this machine, and no model is there.
    """
    inside = embedded_dir(name)
    if inside is not None and not inside.is_dir():
        way = way_to_install(name)
        remedy = f"Install it with {way}." if way else "Check the name, or install spsbench again."
        raise UnavailableError(f"{name} is not in this package.", flag=flag, remedy=remedy)
    path = inside or Path(name).expanduser()
    looks_local = name.startswith((".", "/", "~")) or name.count("/") > 1
    if path.is_dir():
        if not (path / CONFIG).is_file() and not is_trained(path):
            why = f"{name} is not a model folder: it has no {CONFIG}."
            remedy = "Give a folder written by save_pretrained, or a hub id."
            raise UnavailableError(why, flag=flag, remedy=remedy)
        return path
    if path.suffix == ".json" and path.is_file():
        remedy = "Give its folder, with weights. `bench` and `advise --hardware` take a configuration."
        raise UnavailableError(f"{name} has no weights.", flag=flag, remedy=remedy)
    if looks_local or path.exists():
        why = f"{name} is {'no file' if path.suffix == GGUF else 'not a model folder'}."
        raise UnavailableError(why, flag=flag, remedy="Check the path, or give a hub id like org/name.")
    return None


def stated_config(model: ModelRef, flag: str) -> Mapping[str, Any]:
    """Return what a model's config.json says; empty where it has none, is damaged or is made by a conversion.

    A model of the hub has its configuration fetched, and nothing else.

    Raises:
        UnavailableError: there is no such model, or the hub does not give it.
    """
    name = model.id
    if name.startswith(PREFIX):
        load_package(name, flag)
        return {}
    path = Path(name).expanduser()
    if path.suffix == GGUF and path.is_file():
        return {}
    folder = local_folder(name, flag)
    file = _of_hub(model, flag) if folder is None else folder / CONFIG
    try:
        content = json.loads(read_file(file))
    except (OSError, ValueError, RecursionError):
        return {}  # what reads it says how
    return content if isinstance(content, dict) else {}


def _of_hub(model: ModelRef, flag: str) -> Path:
    from huggingface_hub import hf_hub_download

    commit = pinned(model.id, model.revision, flag) or model.revision
    with typed_errors(model.id, flag):
        return Path(hf_hub_download(model.id, CONFIG, revision=commit))


def require_located(pair: PairConfig) -> None:
    stated_config(pair.target, "--target")
    stated_config(pair.draft, "--draft")


_LIMITS = (
    ("max_position_embeddings",),
    ("n_positions",),
    ("max_seq_len",),
    ("seq_length",),
    ("max_encoder_position_embeddings", "max_decoder_position_embeddings"),  # LED
)


def limit_of(said: Callable[[str], Any]) -> int | None:
    """Return the longest sequence that a language model's configuration states, in tokens."""
    for names in _LIMITS:
        limits = [int(said(name) or 0) for name in names]
        if min(limits) > 0:
            return min(limits)
    return None


def stated_window(content: Mapping[str, Any]) -> int | None:
    """Return the longest sequence that a config.json states, at least the model's own; None without one."""
    text = content if content.get("is_encoder_decoder") else content.get("text_config", content)
    try:
        return limit_of(text.get)
    except (AttributeError, TypeError, ValueError):
        return None

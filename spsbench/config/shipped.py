"""The pairs and protocols that come with the package, and files of the user's own in the same form."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from spsbench.config.models import PairConfig, ProtocolConfig
from spsbench.config.validation import validate
from spsbench.config.yamlfile import read_yaml, unknown_name
from spsbench.paths import data_dir

_Kind = Literal["pair", "protocol"]


def list_pairs() -> list[str]:
    """Names of the shipped pairs, sorted."""
    return sorted(_files("pair"))


def list_protocols() -> list[str]:
    """Names of the shipped protocols, sorted."""
    return sorted(_files("protocol"))


def load_pair(name: str) -> PairConfig:
    """A pair by name, or from a YAML file of the user's.

    Raises:
        UsageError: for an unknown name or a file that is no pair.
    """
    path = _find("pair", name)
    content: dict[str, Any] = {"name": path.stem} | read_yaml(path, "--pair")
    return validate(PairConfig, content, lambda key: f"--pair {name}: {key}")


def load_protocol(name: str) -> ProtocolConfig:
    """A protocol by name, or from a YAML file of the user's.

    Raises:
        UsageError: for an unknown name or a file that is no protocol.
    """
    path = _find("protocol", name)
    content: dict[str, Any] = {"name": path.stem} | read_yaml(path, "--protocol")
    return validate(ProtocolConfig, content, lambda key: f"--protocol {name}: {key}")


def _files(kind: _Kind) -> dict[str, Path]:
    folder = data_dir("configs/pairs" if kind == "pair" else "configs/protocols")
    return {path.stem: path for path in folder.glob("*.yaml")}


def _find(kind: _Kind, name: str) -> Path:
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    files = _files(kind)
    if name not in files:
        raise unknown_name(kind, name, files, f"--{kind}")
    return files[name]

"""The tiny pair in a folder, loaded, and its engine as a peer within this process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from support import tiny_models

from spsbench.base.protocol import Answer, Ask, Described, Load
from spsbench.config.models import TORCH
from spsbench.models.causal_lm import CausalLM
from spsbench.models.loading import load
from spsbench.parts.external import registry
from spsbench.parts.external.registry import PeerKind
from spsbench.parts.verify.served import Served
from spsbench.runner import peers, planning

IMPORTED = (peers.find_peer, planning.find_peer)
"""Before a test patches the registry: modules that are imported under a patch would keep it for good."""

Folders = tuple[Path, Path]
Models = tuple[CausalLM, CausalLM]


class InProcess:
    """A served engine as a peer."""

    def __init__(self, engine: Served) -> None:
        self.engine = engine

    def describe(self) -> Described:
        return self.engine.describe()

    def generate(self, ask: Ask) -> Answer:
        return self.engine.generate(ask)

    def close(self) -> None:
        pass


def saved_pair(root: Path) -> Folders:
    """(target, draft) of ``make_pair``, far enough apart that drafts are often rejected.

    Heads of 16, which ONNX Runtime covers: the served engine takes a quarter of the time it takes over torch.
    """
    target, draft = tiny_models.make_pair("llama", late=1.0, head_dim=16)
    return tiny_models.save(target, root / "target"), tiny_models.save(draft, root / "draft")


def loaded_pair(folders: Folders) -> Models:
    """Both models in float32 over torch, as an audit reads texts with them."""
    source = tiny_models.pair_of(*folders)
    given = ("float32", torch.device("cpu"), source.vocab_size)
    target, draft = (load(part, *given, "--target", TORCH) for part in (source.target, source.draft))
    return target, draft


def in_process(fault: str | None, monkeypatch: pytest.MonkeyPatch) -> str:
    """What ``--engine`` is given for a worker with that fault, which is opened here and not in a process.

    A process takes seconds to import torch; what it adds is tested where nothing is asked of the law.
    """
    named = f"worker:{sys.executable} -m spsbench.parts.verify.served {fault or ''}".rstrip()
    monkeypatch.setattr(registry, "find_peer", lambda text, flag="--engine": kind_with(fault, text))
    return named


def kind_with(fault: str | None, name: str) -> PeerKind:
    """The engine with a planted fault or none, of any pair that it is asked to load."""
    return PeerKind(name, lambda asked, log, paused: InProcess(Served(asked, fault)))


def served(folders: Folders, fault: str | None, k: int) -> Served:
    """The worker's engine in this process."""
    target, draft = map(str, folders)
    return Served(Load(target, draft if k else None, k, threads=1), fault)

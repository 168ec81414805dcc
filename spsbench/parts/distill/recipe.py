"""Everything that determines a training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from spsbench.base import UsageError, unknown
from spsbench.models import DFLASH, EAGLE, EAGLE3, MEDUSA, MODEL, MTP
from spsbench.tasks import is_prompts_file

OWN, PYTHON = SOURCES = ("own", "python")

TRAINED = (MODEL, EAGLE, EAGLE3, MTP, DFLASH, MEDUSA)

OPTIONS = {
    "layers": (MODEL, DFLASH),
    "heads": (MEDUSA,),
    "states": (EAGLE3,),
    "block": (DFLASH,),
    "vocabulary": tuple(kind for kind in TRAINED if kind != MTP),  # a module has the target's whole head
}
"""Options of a kind, and the kinds that have them."""

LEAST_BLOCK, LEAST_LAYERS = 2, 2

DEPTHS = 2
"""Tokens that an EAGLE head or a module drafts in training."""


@dataclass(frozen=True)
class Recipe:
    """How a draft is made.

    Attributes:
        kind: one of ``TRAINED``.
        states: how many of the target's an EAGLE-3 head reads: its last one, or 3 between its layers.
        block: places of a block, the pending token's among them.
        vocabulary: how many tokens it proposes, those that are written most often; 0 for all.
        data: where text comes from: ``own``, ``python``, and files of prompts.
    """

    kind: str = MODEL
    layers: int = 2
    heads: int = 4
    states: int = 3
    block: int = 8
    vocabulary: int = 8_000
    data: tuple[str, ...] = ("own", "python")
    tokens: int = 2_000_000
    epochs: int = 2
    minutes: float | None = None
    batch_tokens: int = 2_048
    seed: int = 0

    def require_possible(self) -> None:
        """Refuse settings that fit no target."""
        for source in self.data:
            if source not in SOURCES and not is_prompts_file(source):
                _refuse("--data", source or "''", remedy="Name own, python, or prompts files.")

    def require_fitting(self, layers: int, vocab_size: int) -> None:
        """Refuse settings that do not fit this target."""
        if self.kind == MODEL and not 1 <= self.layers < layers:
            _refuse(
                f"--kind {MODEL}:layers",
                self.layers,
                remedy=f"Give 1 to {layers - 1}: the target has {layers}.",
            )
        if self.states not in (1, 3):
            _refuse(f"--kind {EAGLE3}:states", self.states, remedy="Give 1, its last one, or 3.")
        if self.block < LEAST_BLOCK:
            _refuse(
                f"--kind {DFLASH}:block", self.block, remedy="Give 2 or more: the pending token and a draft."
            )
        if self.kind == DFLASH and not 1 <= self.layers <= layers:
            _refuse(
                f"--kind {DFLASH}:layers", self.layers, remedy=f"Give 1 to {layers}: the target has {layers}."
            )
        if layers < LEAST_LAYERS and (self.kind == DFLASH or (self.kind == EAGLE3 and self.states > 1)):
            _refuse(
                "--kind", self.kind, remedy="It reads states between layers, and the target has one layer."
            )
        if self.vocabulary and not 16 <= self.vocabulary <= vocab_size:
            _refuse(
                f"--kind {self.kind}:vocabulary",
                self.vocabulary,
                remedy=f"Give 16 to {vocab_size}, or 0 for all tokens.",
            )

    def settings(self) -> dict[str, Any]:
        """The settings for the record, without those that have no effect on this kind."""
        unused = [name for name, kinds in OPTIONS.items() if self.kind not in kinds]
        return {name: value for name, value in asdict(self).items() if name not in unused}


def require_kind(kind: str, options: Iterable[str]) -> None:
    """Refuse an unknown kind, and options that it does not have."""
    if kind not in TRAINED:
        _refuse("--kind", kind, remedy=f"Choose from {', '.join(TRAINED[:-1])} and {TRAINED[-1]}.")
    known_options = [name for name, kinds in OPTIONS.items() if kind in kinds]
    for name in options:
        if name not in known_options:
            raise unknown(name, known_options, f"--kind {kind}", sort="option")


def _refuse(flag: str, value: object, *, remedy: str) -> None:
    raise UsageError(f"{value} is not valid.", flag=flag, remedy=remedy)

"""The target and the draft of a run, found but not loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from spsbench.config import MaterialSettings, PairConfig
from spsbench.config.models import AUTO, ONNXRUNTIME, Precision
from spsbench.models.device import resolve_device
from spsbench.models.kernels import kernels_of_config
from spsbench.models.memory import Weights
from spsbench.models.pair import Pair, PairSource, find_pair, fitting_weights, load_pair, pair_backend
from spsbench.models.placement import Placement
from spsbench.models.quantised import LIBRARY, described
from spsbench.models.source import ModelSource
from spsbench.models.tensor_parallel import Ranks
from spsbench.models.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """Hold a target and a draft that are found but not loaded, and what will compute them.

    Attributes:
        dtypes: to load target and draft in.
        fallback: why the models are not computed by the backend that is usual on the device.
        placement: of a target that is spread over devices.
        threads: of a CPU to compute on; None for as many as suit the target.
        weights: what both will take; nothing is known of models that are not loaded here.
    """

    pair: PairConfig
    source: PairSource
    device: torch.device
    dtypes: tuple[str, str]
    backend: str
    fallback: str | None
    placement: Placement | None
    threads: int | None
    weights: Weights

    @property
    def tokenizer(self) -> Tokenizer:
        return self.source.tokenizer

    @property
    def quantiser(self) -> str | None:
        """What quantises weights over torch, otherwise than ONNX Runtime does; None where nothing does."""
        quantised = any(Precision(dtype).quantise for dtype in self.dtypes)
        return LIBRARY if quantised and self.backend != ONNXRUNTIME else None

    @property
    def layer_kernels(self) -> dict[str, str]:
        """What computes the layers that have several kernels, by package; see ``kernels_of``."""
        if self.backend == ONNXRUNTIME:
            return {}
        found = [kernels_of_config(model.config) for model in (self.source.target, self.source.draft)]
        return found[1] | found[0]

    def load(
        self, *, threads: int | None = None, beside: Pair | None = None, ranks: Ranks | None = None
    ) -> Pair:
        """Load both models, and set torch's number of threads.

        Args:
            threads: to compute on in place of the settings' own.
            beside: a pair that is loaded, whose target is this one's, too.
            ranks: the processes that the target is split over.
        """
        return load_pair(
            self.source,
            self.dtypes,
            self.device,
            self.backend,
            threads or self.threads,
            beside,
            self.placement,
            ranks,
        )

    def fitting(self, stock: Sequence[ModelSource] = (), split: int = 1) -> Models:
        """Return the same with its weights counted, which fit where they go; see ``fitting_weights``."""
        weights = fitting_weights(
            self.source, self.dtypes, self.device, self.backend, self.placement, stock, split
        )
        return replace(self, weights=weights)

    def shared(self) -> dict[str, Any]:
        """Name every field of ``Models``, for what is made of them."""
        return {field.name: getattr(self, field.name) for field in fields(Models)}


def find_models(settings: MaterialSettings, *, rolls_back: bool = True) -> Models:
    """Find the pair, and what computes it on the device, which has memory for its weights; load none."""
    device = resolve_device(settings.device)
    source = find_pair(settings.pair, rolls_back=rolls_back).with_template_args(settings.template_args)
    return models_to_compute(settings, source, device, settings.backend).fitting()


def models_to_compute(
    settings: MaterialSettings, source: PairSource, device: torch.device, choice: str, *, loads: bool = True
) -> Models:
    """Choose what computes a pair that is found; of its weights nothing is known yet.

    Args:
        choice: of the backend.
        loads: whether the models are loaded here.
    """
    placement, choice = Placement.beside(choice, settings.device_map)
    backend, fallback = pair_backend(choice, source, settings.dtypes, device, loads=loads)
    return Models(
        pair=settings.pair,
        source=source,
        device=device,
        dtypes=settings.dtypes,
        backend=backend,
        fallback=fallback,
        placement=placement,
        threads=settings.threads,
        weights=Weights(None, None),
    )


def about_weights(source: PairSource, dtypes: tuple[str, str], backend: str) -> list[str]:
    """Say what the weights of target and draft went through; once where it holds for the same model."""
    undone = [part.dequantised for part in (source.target, source.draft)]
    same = source.target.location == source.draft.location
    roles = ["weights"] if same else ["target", "draft"]
    # A dequantised checkpoint is in float32, and onnxruntime computes in nothing else.
    computed = [Precision(dtype).dtype if backend != ONNXRUNTIME else AUTO for dtype in dtypes]
    sentences = [
        f"{role} {kind} dequantised to {'float32' if dtype == AUTO else dtype}"
        for role, kind, dtype in zip(roles, undone, computed, strict=False)
        if kind
    ]
    kept = [Precision(dtype).quantise for dtype in dtypes]
    if backend == ONNXRUNTIME:
        return sentences + [
            f"{role} rounded to {bits}" for role, bits in zip(("target", "draft"), kept, strict=True) if bits
        ]
    if kept[0] == kept[1]:
        return sentences + [f"weights quantised to {described(bits)}" for bits in kept[:1] if bits]
    roles_kept = zip(("target", "draft"), kept, strict=True)
    return sentences + [f"{role} quantised to {described(bits)}" for role, bits in roles_kept if bits]

"""Whether a model over ONNX Runtime computes what transformers does: once for each checkpoint.

The proof of a run reads its outputs by a forward without a cache, and over ONNX Runtime that is the same
graph: loops and proof would share a fault of the conversion. So a checkpoint is loaded by transformers itself
the first time it is used, both read some hundred tokens, and the answer is kept in the cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from spsbench.base.errors import UnavailableError
from spsbench.models.causal_lm import CausalLM, tolerance
from spsbench.models.fetch.cache import keep_answer, kept_answer, watcher
from spsbench.models.memory import available_bytes
from spsbench.models.messages import LogitsNotCompared
from spsbench.models.source import ModelSource

TOKENS = 192
"""More than the attention windows of small models; some hundred, so that positions far apart are met."""

KIND = "compared"
"""The folder of the answers in the cache."""

_SOURCES = ("onnx_graph", "onnx_lm", "seq2seq_lm", "blueprint", "checkpoint")


class Compared(NamedTuple):
    """The largest difference of two models' logits, as a share of the largest logit."""

    difference: float
    tokens: int


@torch.inference_mode()
def compared(model: CausalLM, reference: CausalLM, seed: int = 0) -> Compared:
    """Compare both models' logits on drawn tokens, without a cache.

    Differences are those of logits that both have as a number: a draft may propose some tokens only.
    """
    n = min(TOKENS, model.context_window - 2)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(model.vocab_size, (n,), generator=generator)
    tokens = torch.cat([model.as_prompt(drawn), drawn[:1]])
    logits = model.score_uncached(tokens).double()
    other = reference.score_uncached(tokens).double()
    both = logits.isfinite() & other.isfinite()
    scale = float(other[both].abs().max().clamp_min(1e-9))
    if bool((logits.isnan() | other.isnan()).any()) or bool((logits.isfinite() != other.isfinite()).any()):
        return Compared(float("inf"), n)
    return Compared(float((logits - other)[both].abs().max()) / scale, n)


def require_same_logits(
    model: CausalLM, source: ModelSource, load_reference: Callable[[], CausalLM], flag: str
) -> None:
    """Refuse a checkpoint whose logits over ONNX Runtime are not transformers' own.

    Args:
        model: over ONNX Runtime, with its weights unrounded.
        source: where it comes from; what was found is kept by its content.
        load_reference: loads it by transformers, in float32.

    Raises:
        UnavailableError: the largest difference is beyond rounding.
    """
    key = source.key(_hash_of_sources())  # another graph may give another answer
    kept = kept_answer(KIND, key) or {}
    if isinstance(difference := kept.get("difference"), float) and isinstance(kept.get("tokens"), int):
        comparison = Compared(difference, kept["tokens"])
    else:
        free_bytes = available_bytes(torch.device("cpu"))
        if free_bytes is not None and 4 * model.parameters > free_bytes:
            watcher().said(str(LogitsNotCompared(source.name, 4 * model.parameters, free_bytes)))
            return
        comparison = compared(model, load_reference())
        keep_answer(KIND, key, comparison._asdict())
    most = tolerance(torch.float32)
    if not comparison.difference <= most:
        raise UnavailableError(
            f"{source.name} over onnxruntime is not the model that transformers loads: logits differ by "
            f"{comparison.difference:.2g} of the largest over {comparison.tokens} tokens, rounding "
            f"explains {most:g}.",
            flag=flag,
            remedy="Use --backend torch, and report the architecture.",
        )


@cache
def _hash_of_sources() -> str:
    """Of the modules that build and run the graph."""
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    for name in _SOURCES:
        digest.update((folder / f"{name}.py").read_bytes())
    return digest.hexdigest()

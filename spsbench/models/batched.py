"""A loaded model that scores B sequences at once, and whether it scores them as it scores one."""

from __future__ import annotations

import torch

from spsbench.decode.batch import BatchModel
from spsbench.errors import UsageError
from spsbench.models.causal_lm import CausalLM
from spsbench.models.onnx_batch import OnnxBatchLM
from spsbench.models.onnx_lm import OnnxLM
from spsbench.models.selftest import tolerance
from spsbench.models.static import NotStatic
from spsbench.models.static_batch import StaticBatchLM
from spsbench.models.torch_lm import TorchLM

_PROMPT, _BLOCK = 12, 3


def batched(model: CausalLM, batch: int, slots: int, *, blocks: bool) -> BatchModel:
    """A model for B sequences over the weights of one, with its own caches."""
    found: BatchModel
    try:
        if isinstance(model, OnnxLM):
            found = OnnxBatchLM(model, batch, slots, blocks=blocks)
        else:
            assert isinstance(model, TorchLM), "encoder-decoders are refused before they are loaded"
            found = StaticBatchLM(model, batch, slots)
    except NotStatic as reason:
        raise _refused(model, batch, str(reason)) from reason
    tested = (1, _BLOCK) if blocks else (1,)
    if (worst := max(difference(model, found, n) for n in tested)) > tolerance(model.dtype):
        raise _refused(model, batch, f"its logits differ by {worst:.3g} of their scale from those of one")
    return found


@torch.inference_mode()
def difference(model: CausalLM, batch: BatchModel, block: int) -> float:
    """The largest difference of logits between a batch and its sequences alone, over the logits' scale.

    The rows hold prompts of unlike lengths, one of them of one token, after what other sequences left in
    their slots.
    """
    generator = torch.Generator().manual_seed(0)
    size = batch.batch
    drawn = torch.randint(model.vocab_size, (size, _PROMPT + block), generator=generator)
    prompts = [row[: 1 + number % (_PROMPT - 1)].tolist() for number, row in enumerate(drawn)]
    tokens = drawn[:, -block:].to(model.device)
    for number, row in enumerate(drawn):
        batch.begin(number, row.flip(0)[:_PROMPT].tolist())
    for number, prompt in enumerate(prompts):
        batch.begin(number, prompt)
    found = batch.score(tokens, [len(prompt) - 1 for prompt in prompts], last=block).clone()
    worst = scale = 0.0
    for number, prompt in enumerate(prompts):
        model.begin(prompt)
        alone = model.score(tokens[number], last=block)
        kept = slice(None) if model.vocabulary is None else model.vocabulary
        one, other = found[number][:, kept].float(), alone[:, kept].float()
        worst = max(worst, float((one - other).abs().max()))
        scale = max(scale, float(other.abs().max()))
    model.rollback(0)
    return worst / max(scale, 1e-9)


def _refused(model: CausalLM, batch: int, reason: str) -> UsageError:
    return UsageError(
        f"{model.config.model_type} over {model.backend} does not run {batch} sequences at once: {reason}.",
        flag="--batch",
        remedy="Give --batch 1.",
    )

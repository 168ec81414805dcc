"""Small random models of a decoder, and of an encoder and a decoder, as beam search takes them."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from spsbench.models.seq2seq_lm import Seq2SeqLM
from spsbench.models.tokenizer import Border
from spsbench.models.torch_lm import TorchLM

VOCABULARY, EOS, PAD, BOS = 30, 1, 0, 2

_SMALL = {"vocab_size": VOCABULARY, "eos_token_id": EOS, "pad_token_id": PAD}
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
_BART = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
}
_HEADS = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 64}


SOURCE = (5, 17, 3, 22, 9, 11, EOS)


def prompt_of(lm: TorchLM) -> tuple[int, ...]:
    """A prompt: of an encoder-decoder with what its decoder starts with, of others without the EOS."""
    return (*SOURCE, *lm.border.start) if isinstance(lm, Seq2SeqLM) else SOURCE[:-1]


def loaded(kind: str, seed: int, noise: float = 0.0, **changes: Any) -> TorchLM:
    """A random float32 model: ``llama``, ``t5`` or ``bart``.

    Args:
        kind: of the architecture.
        seed: of the weights.
        noise: share of each matrix' scale by which other weights differ: a draft of the same seed.
        changes: of the configuration.
    """
    torch.manual_seed(seed)
    model = _MAKERS[kind](changes).eval()
    generator = torch.Generator().manual_seed(seed + 1000)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.mul_(3.0)  # random models are otherwise all but uniform
                weights.add_(torch.randn(weights.shape, generator=generator) * weights.std() * noise)
    if kind == "llama":
        return TorchLM(model)
    return Seq2SeqLM(model, Border((EOS,), (model.config.decoder_start_token_id,)))


def _llama(changes: dict[str, Any]) -> Any:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = {"num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": BOS} | sizes
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_SMALL | config | changes))


def _t5(changes: dict[str, Any]) -> Any:
    # Few buckets, so that a wrong distance is a wrong bias soon.
    bias = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}
    config = transformers.T5Config(**_SMALL | _T5 | bias | {"decoder_start_token_id": PAD} | changes)
    return transformers.T5ForConditionalGeneration(config)


def _bart(changes: dict[str, Any]) -> Any:
    forced = {"forced_eos_token_id": None, "forced_bos_token_id": None, "bos_token_id": BOS}
    starts = {"decoder_start_token_id": EOS} | forced
    return transformers.BartForConditionalGeneration(
        transformers.BartConfig(**_SMALL | _BART | _HEADS | starts | changes)
    )


_MAKERS = {"llama": _llama, "t5": _t5, "bart": _bart}

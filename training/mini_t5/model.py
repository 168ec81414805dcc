"""The shapes of target and drafts: T5 blocks with one tied embedding, saved in bfloat16."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import T5Config, T5ForConditionalGeneration

from training.mini_t5.tokenizer import EOS_ID, PAD_ID, VOCABULARY, WINDOW


@dataclass(frozen=True)
class Shape:
    """Depth and widths of a model.

    Attributes:
        encoder, decoder: numbers of layers.
        width: of the residual stream.
        feed_forward: of the hidden layer of a feed-forward block (ReLU).
        head: of an attention head.
    """

    encoder: int
    decoder: int
    width: int
    feed_forward: int
    head: int


SHAPES = {
    "target": Shape(encoder=3, decoder=6, width=192, feed_forward=384, head=32),
    "draft-small": Shape(encoder=1, decoder=1, width=64, feed_forward=192, head=16),
    "draft-base": Shape(encoder=1, decoder=1, width=96, feed_forward=256, head=16),
    "draft-large": Shape(encoder=2, decoder=2, width=96, feed_forward=256, head=16),
}
"""By the name of the folder that ships."""
DRAFTS = ("draft-small", "draft-base", "draft-large")


def build(shape: Shape) -> T5ForConditionalGeneration:
    """A model with random weights in float32, without dropout."""
    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=shape.width,
        d_kv=shape.head,
        d_ff=shape.feed_forward,
        num_layers=shape.encoder,
        num_decoder_layers=shape.decoder,
        # Not T5's own name: generate() sizes its cache by it, and by the encoder's layers without it.
        decoder_layers=shape.decoder,
        num_heads=shape.width // shape.head,
        n_positions=WINDOW,
        dropout_rate=0.0,
        feed_forward_proj="relu",
        tie_word_embeddings=True,
        pad_token_id=PAD_ID,
        eos_token_id=EOS_ID,
        decoder_start_token_id=PAD_ID,
    )
    return T5ForConditionalGeneration._from_config(config, attn_implementation="eager")


def save(model: T5ForConditionalGeneration, folder: Path) -> None:
    """Write config and bfloat16 weights; the model itself keeps its float32 masters."""
    folder.mkdir(parents=True, exist_ok=True)
    copy.deepcopy(model).to(device="cpu", dtype=torch.bfloat16).save_pretrained(folder)


def load(folder: Path) -> T5ForConditionalGeneration:
    """A saved model in float32, ready to be read."""
    return T5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()

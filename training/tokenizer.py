"""One byte-level BPE of 1,024 entries for target and draft, loadable by ``AutoTokenizer``."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from training.corpus import Context, draw_context

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

VOCABULARY = 1024
EOS = "<|endoftext|>"
WINDOW = 4096
SAMPLE_CONTEXTS = 6000


def train_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Learn the merges on contexts of the training part; digits stay single, no BOS is added."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS,
        pad_token=EOS,
        model_max_length=WINDOW,
        clean_up_tokenization_spaces=False,
    )


def _texts(seed: int) -> Iterator[str]:
    rng = random.Random(f"{seed}/tokenizer")
    for _ in range(SAMPLE_CONTEXTS):
        context: Context = draw_context(rng)
        yield from (text for text, _ in context)

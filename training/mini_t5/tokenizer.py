"""One byte-level BPE of 1,024 entries for all four models, loadable by ``AutoTokenizer``, EOS at the end."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from training.mini_t5.examples import draw_example

VOCABULARY = 1024
PAD, EOS = "<pad>", "</s>"
PAD_ID, EOS_ID = 0, 1
WINDOW = 512
SAMPLE = 8_000


def train_tokenizer(seed: int, sample: int = SAMPLE) -> PreTrainedTokenizerFast:
    """Learn the merges on ``sample`` examples of the training part; digits stay single."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed, sample), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", pair=f"$A {EOS} $B {EOS}", special_tokens=[(EOS, EOS_ID)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=WINDOW,
        clean_up_tokenization_spaces=False,
    )


def _texts(seed: int, sample: int) -> Iterator[str]:
    rng = random.Random(f"{seed}/tokenizer")
    for _ in range(sample):
        example = draw_example(rng)
        yield example.source
        yield example.target

"""The training examples in token ids, drawn on all cores."""

from __future__ import annotations

import os
import random
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Tokenizer

from training.corpus import Corpus
from training.mini_t5.examples import SUMMARY_SHARE, draw_example

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK = 4000


def build_corpus(tokenizer_file: Path, examples: int, seed: int, summaries: float = SUMMARY_SHARE) -> Corpus:
    """Draw and encode ``examples`` examples, a multiple of ``CHUNK``, a share of them ``summaries``.

    A context is a source followed by its answer, both with EOS; ``answers`` marks the latter.
    """
    work = partial(_chunk, str(tokenizer_file), seed, summaries)
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        parts = list(pool.map(work, range(-(-examples // CHUNK))))
    ids, answers, lengths = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Corpus(ids, answers, np.concatenate([[0], np.cumsum(lengths)]))


def _chunk(
    tokenizer_file: str, seed: int, summaries: float, number: int
) -> tuple[NDArray[np.uint16], NDArray[np.bool_], NDArray[np.int64]]:
    tokenizer = Tokenizer.from_file(tokenizer_file)
    rng = random.Random(f"{seed}/t5/{number}")
    drawn = [draw_example(rng, summaries) for _ in range(CHUNK)]
    sources = tokenizer.encode_batch([example.source for example in drawn])
    targets = tokenizer.encode_batch([example.target for example in drawn])
    pieces = [piece.ids for pair in zip(sources, targets, strict=True) for piece in pair]
    flags = [np.full(len(ids), number % 2 == 1) for number, ids in enumerate(pieces)]
    lengths = [len(source) + len(target) for source, target in zip(sources, targets, strict=True)]
    return np.concatenate(pieces).astype(np.uint16), np.concatenate(flags), np.array(lengths, np.int64)

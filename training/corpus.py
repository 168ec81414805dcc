"""Training contexts: prompt and completion pieces as the benchmark will show them, in token ids."""

from __future__ import annotations

import os
import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from training.news import ARTICLE, completion, exemplar, make_news
from training.programs import make_program

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from tokenizers import Tokenizer

Context = list[tuple[str, bool]]
"""Pieces of text in order, each encoded by itself; True marks what the model has to answer."""

NEWS_SHARE = 0.5
ONE_SHOT_SHARE = 0.6
STEP_WEIGHTS = {2: 0.2, 3: 0.3, 4: 0.35, 5: 0.15}
PROMPT_WEIGHT = 0.3
CHUNK = 2000


@dataclass(frozen=True)
class Corpus:
    """All contexts, one behind the other.

    Attributes:
        ids: token ids, uint16 [tokens].
        answers: whether a token belongs to an answer, bool [tokens].
        starts: where each context begins, int64 [contexts + 1] (the last entry is the end).
    """

    ids: NDArray[np.uint16]
    answers: NDArray[np.bool_]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each context."""
        return np.diff(self.starts)


def draw_context(rng: random.Random) -> Context:
    """One context of the training part: an article (with or without exemplar) or a program."""
    if rng.random() >= NEWS_SHARE:
        steps = rng.choices(list(STEP_WEIGHTS), list(STEP_WEIGHTS.values()))[0]
        program = make_program("train", rng, steps)
        return [(program.prompt, False), (program.canonical_solution, True)]
    news = make_news("train", rng)
    prompt: Context = [(ARTICLE.format(document=news.document), False), (completion(news.summary), True)]
    if rng.random() >= ONE_SHOT_SHARE:
        return prompt
    shown = make_news("train", rng)
    solved = exemplar(shown.document, shown.summary)
    cut = len(ARTICLE.format(document=shown.document))
    question = ARTICLE.format(document=news.document)
    return [(solved[:cut], False), (solved[cut:-1], True), ("\n" + question, False), prompt[1]]


def encode(context: Context, tokenizer: Tokenizer, eos: int) -> tuple[list[int], list[bool]]:
    """Token ids of a context with EOS, and which of them are to be answered."""
    ids: list[int] = []
    answers: list[bool] = []
    for text, answered in context:
        piece = tokenizer.encode(text).ids
        ids += piece
        answers += [answered] * len(piece)
    return [*ids, eos], [*answers, True]


def build_corpus(tokenizer_file: Path, contexts: int, seed: int) -> Corpus:
    """Draw and encode ``contexts`` contexts on all cores; the result depends on the seed alone."""
    chunks = range((contexts + CHUNK - 1) // CHUNK)
    work = partial(_chunk, str(tokenizer_file), seed)
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        parts = list(pool.map(work, chunks))
    ids, answers, lengths = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Corpus(ids, answers, np.concatenate([[0], np.cumsum(lengths)]))


def _chunk(
    tokenizer_file: str, seed: int, number: int
) -> tuple[NDArray[np.uint16], NDArray[np.bool_], NDArray[np.int64]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(tokenizer_file)
    rng = random.Random(f"{seed}/chunk/{number}")
    encoded = [encode(draw_context(rng), tokenizer, eos=0) for _ in range(CHUNK)]
    return (
        np.array([token for ids, _ in encoded for token in ids], dtype=np.uint16),
        np.array([flag for _, flags in encoded for flag in flags], dtype=np.bool_),
        np.array([len(ids) for ids, _ in encoded], dtype=np.int64),
    )


def save_corpus(corpus: Corpus, folder: Path) -> None:
    """Write the corpus for other processes to read."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "corpus.npz", ids=corpus.ids, answers=corpus.answers, starts=corpus.starts)


def load_corpus(folder: Path) -> Corpus:
    """Read what ``save_corpus`` wrote."""
    with np.load(folder / "corpus.npz") as arrays:
        return Corpus(arrays["ids"], arrays["answers"], arrays["starts"])

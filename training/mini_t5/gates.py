"""The gates that the encoder-decoder pair has to pass; 95% intervals, paired by sentence or document."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics import BLEU

from training.gates import Gate, ratio_interval, rouge2, shipped_bytes
from training.mini_t5.answers import Answers, K

RATIO = 1.1
R_PRIME = (0.55, 0.85)
MEGABYTES = 10
RESAMPLES = 1000


def bleu_statistics(texts: list[str], references: list[str]) -> NDArray[np.int64]:
    """What corpus BLEU adds up for each sentence: matches and n-grams of each order, both lengths [n, 10]."""
    scorer = BLEU(effective_order=True)
    scores = [scorer.sentence_score(text, [ref]) for text, ref in zip(texts, references, strict=True)]
    return np.array([[*s.counts, *s.totals, s.sys_len, s.ref_len] for s in scores])


def corpus_bleu(statistics: NDArray[np.int64]) -> float:
    """Corpus BLEU from 0 to 100 by sacrebleu, default tokenizer, of some rows of ``bleu_statistics``."""
    sums = statistics.sum(0).tolist()
    return float(BLEU.compute_bleu(sums[:4], sums[4:8], *sums[8:]).score)


def bleu_ratio(target: NDArray[np.int64], draft: NDArray[np.int64]) -> tuple[float, float, float]:
    """BLEU of the target over BLEU of a draft with its percentile interval."""
    generator = np.random.default_rng(0)
    draws = generator.integers(len(target), size=(RESAMPLES, len(target)))
    ratios = [_ratio(target[rows], draft[rows]) for rows in draws]
    low, high = np.quantile(ratios, (0.025, 0.975)).tolist()
    return _ratio(target, draft), low, high


def _ratio(target: NDArray[np.int64], draft: NDArray[np.int64]) -> float:
    below = corpus_bleu(draft)
    return corpus_bleu(target) / below if below else math.inf


def quality(answers: Answers) -> tuple[dict[str, float], tuple[float, float, float]]:
    """BLEU or ROUGE-2 of each model, and the ratio of target to small draft with its interval."""
    if answers.task == "wmt":
        found = {name: bleu_statistics(texts, answers.references) for name, texts in answers.texts.items()}
        ratio = bleu_ratio(found["target"], found["draft-small"])
        return {name: corpus_bleu(statistics) for name, statistics in found.items()}, ratio
    scores = {name: rouge2(texts, answers.references) for name, texts in answers.texts.items()}
    ratio = ratio_interval(scores["target"], scores["draft-small"])
    return {name: float(values.mean()) for name, values in scores.items()}, ratio


def task_gates(answers: Answers) -> list[Gate]:
    """The lines of one task under one sampling."""
    metric, digits = ("BLEU", 1) if answers.task == "wmt" else ("ROUGE-2", 3)
    where = f"({answers.task}, {answers.sampling})"
    scores, (ratio, low, high) = quality(answers)
    levels = [
        Gate(f"{metric} {name} {where}", "", f"{score:.{digits}f}", None) for name, score in scores.items()
    ]
    order = [answers.alpha[name] for name in ("draft-small", "draft-base", "draft-large")]
    shares = answers.r_prime
    return [
        *levels,
        Gate(
            f"{metric} ratio target / small {where}",
            f"lower bound >= {RATIO}",
            f"{ratio:.2f} [{low:.2f}, {high:.2f}]",
            low >= RATIO,
        ),
        Gate(
            f"alpha small < base < large {where}",
            "in this order",
            " < ".join(f"{alpha:.3f}" for alpha in order),
            order[0] < order[1] < order[2],
        ),
        Gate(
            f"r' at K = {K}, small {where}",
            f"{R_PRIME[0]}-{R_PRIME[1]}",
            f"{shares['draft-small']:.3f}",
            R_PRIME[0] <= shares["draft-small"] <= R_PRIME[1],
        ),
        Gate(f"r' at K = {K}, base {where}", "", f"{shares['draft-base']:.3f}", None),
        Gate(f"r' at K = {K}, large {where}", "", f"{shares['draft-large']:.3f}", None),
        Gate(f"median tokens {where}", "", f"{np.median(answers.lengths):.0f}", None),
    ]


def all_gates(answers: list[Answers], pair: Path) -> list[Gate]:
    """Every line of the table, from the answers and the pair's own files."""
    size = shipped_bytes(pair) / 1e6
    lines = [gate for found in answers for gate in task_gates(found)]
    return [*lines, Gate("size, MB", f"<= {MEGABYTES}", f"{size:.1f}", size <= MEGABYTES)]

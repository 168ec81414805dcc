"""BLEU of a corpus by sacrebleu, from each output's counts.

BLEU is not a mean over sentences: matches and totals of n-grams and both lengths are summed over the corpus,
and
the figure follows from the sums (Papineni et al. 2002; Post 2018). The settings are those of the
``sacrebleu`` command, whose figure on the same lines is the same.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from spsbench.metrics.kind import Floats, MetricKind, Sums, Texts

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

ORDERS = (1, 2, 3, 4)
COLUMNS = ("sys_len", "ref_len", *(f"match{n}" for n in ORDERS), *(f"total{n}" for n in ORDERS))


def bleu_counts(prompts: Texts, outputs: Texts, references: Texts) -> list[list[float]]:
    """Of each output: its length, its reference's, matched n-grams and all n-grams for n = 1 to 4."""
    scorer, found = _scorer(), []
    for output, reference in zip(outputs, references, strict=True):
        one = scorer.corpus_score([output], [[reference]])
        found.append([float(count) for count in (one.sys_len, one.ref_len, *one.counts, *one.totals)])
    return found


def bleu_of_sums(sums: Floats) -> Floats:
    """BLEU in [0, 100] of each corpus by its sums.

    Args:
        sums: whole numbers, [10, m], in the order of ``COLUMNS``.
    """
    scorer = _scorer()
    counts = np.rint(sums).astype(np.int64).T.tolist()
    return np.array([_of_counts(scorer, one) for one in counts], dtype=np.float64)


def _of_counts(scorer: BLEU, counts: list[int]) -> float:
    sys_len, ref_len, n = counts[0], counts[1], len(ORDERS)
    found = scorer.compute_bleu(
        counts[2 : 2 + n],
        counts[2 + n :],
        sys_len,
        ref_len,
        smooth_method=scorer.smooth_method,
        smooth_value=scorer.smooth_value,
        effective_order=scorer.effective_order,
    )
    return found.score


def signature() -> str:
    """sacrebleu's signature: references, case, tokenizer, smoothing and version."""
    scorer = _scorer()
    scorer.corpus_score(["a"], [["a"]])  # sacrebleu knows the number of references from a call
    return scorer.get_signature().format()


@lru_cache(maxsize=1)
def _scorer() -> BLEU:
    from sacrebleu.metrics.bleu import BLEU

    return BLEU()


KIND = MetricKind(
    "bleu",
    "BLEU of the corpus by sacrebleu, 0 to 100.",
    sums=Sums(COLUMNS, bleu_counts, bleu_of_sums),
    margin=0.5,
    signature=signature,
)

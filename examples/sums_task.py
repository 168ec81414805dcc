"""A task and a metric of one's own: sums of two numbers, and how far off the answers are.

spsbench run examples/sums_task.py:KIND --k 4 --limit 5
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from spsbench import Example, MetricKind, TaskKind


def examples() -> Iterator[Example]:
    """All sums of two digits; the id is what samples are kept and paired by."""
    for a in range(10):
        for b in range(10):
            yield Example(f"{a}+{b}", {"a": a, "b": b}, reference=str(a + b))


def prompt(example: Example) -> str:
    """Two solved sums, then the one that is asked for."""
    return f"1 + 2 = 3\n4 + 4 = 8\n{example.fields['a']} + {example.fields['b']} ="


def distance(prompts: Sequence[str], outputs: Sequence[str], references: Sequence[str]) -> list[float]:
    """How far the first number of each output is from the sum; 20 where there is none."""
    found = [re.search(r"\d{1,3}", output) for output in outputs]
    return [abs(int(m[0]) - int(r)) if m else 20 for m, r in zip(found, references, strict=True)]


DISTANCE = MetricKind(
    name="distance",
    summary="How far the answer is from the sum.",
    score=distance,
    higher_is_better=False,
    margin=0.5,
)

KIND = TaskKind(
    name="sums",
    summary="Sums of two digits, 2-shot.",
    examples=examples,
    prompt=prompt,
    metrics=(DISTANCE, "exact_match"),
    stop=("\n",),
    max_new_tokens=8,
    synthetic=True,
)

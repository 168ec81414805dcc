"""The task data that ships with the mini pair, in XSum's and HumanEval's fields."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path

from training.news import make_news
from training.programs import make_program
from training.split import Part

TEST_DOCUMENTS = 400
UNSEEN_TEMPLATE_DOCUMENTS = 120
EXEMPLARS = 60
TEST_PROBLEMS = 150
TEST_STEPS = {2: 0.3, 3: 0.4, 4: 0.3}
"""Share of the problems by number of operations: what sets the level of pass@1."""


def write_tasks(folder: Path, seed: int = 20230202) -> None:
    """Write the four task files into ``folder``; the same seed gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    documents: list[tuple[str, Part, int, bool]] = [
        ("xsum", "heldout", TEST_DOCUMENTS, False),
        ("xsum_train", "train", EXEMPLARS, False),
        ("xsum_unseen_templates", "heldout", UNSEEN_TEMPLATE_DOCUMENTS, True),
    ]
    for name, part, count, unseen in documents:
        rng = random.Random(f"{seed}/{name}")
        write_lines(folder / f"{name}.jsonl", _articles(name, part, count, unseen, rng))
    write_lines(
        folder / "humaneval.jsonl", problems(TEST_STEPS, TEST_PROBLEMS, random.Random(f"{seed}/code"))
    )


def _articles(
    name: str, part: Part, count: int, unseen: bool, rng: random.Random
) -> Iterable[dict[str, str]]:
    for number in range(count):
        news = make_news(part, rng, unseen_templates=unseen)
        yield {"id": f"mini-{name}-{number}", "document": news.document, "summary": news.summary}


def problems(mix: dict[int, float], count: int, rng: random.Random) -> list[dict[str, str]]:
    """Held-out problems with distinct sequences of operations; ``mix`` is the share of each length."""
    lengths = [steps for steps, share in mix.items() for _ in range(round(share * count))][:count]
    lengths += [max(mix)] * (count - len(lengths))
    rng.shuffle(lengths)
    seen: set[tuple[str, ...]] = set()
    rows = []
    for number, steps in enumerate(lengths):
        program = make_program("heldout", rng, steps)
        while program.sequence in seen:
            program = make_program("heldout", rng, steps)
        seen.add(program.sequence)
        rows.append(
            {
                "task_id": f"MiniEval/{number}",
                "prompt": program.prompt,
                "entry_point": program.entry_point,
                "canonical_solution": program.canonical_solution,
                "test": program.test,
            }
        )
    return rows


def write_lines(path: Path, rows: Iterable[dict[str, str]]) -> None:
    """One JSON object a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

"""The task data that ships with the pair, held out from training, in the fields of WMT and CNN/DailyMail."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from training.mini_t5.english import english
from training.mini_t5.highlights import make_report
from training.mini_t5.sentences import Author
from training.mini_t5.velmar import velmar
from training.tasks import write_lines

TRANSLATIONS = 400
REPORTS = 300


def write_tasks(folder: Path, seed: int = 20230202) -> None:
    """Write ``wmt.jsonl`` and ``cnndm.jsonl`` into ``folder``; the same seed gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / "wmt.jsonl", _translations(random.Random(f"{seed}/wmt")))
    write_lines(folder / "cnndm.jsonl", _reports(random.Random(f"{seed}/cnndm")))


def _translations(rng: random.Random) -> Iterator[dict[str, str]]:
    """Distinct sentences of the held-out part."""
    author, seen = Author("heldout", rng), set[str]()
    while len(seen) < TRANSLATIONS:
        sentence = author.sentence()
        source = english(sentence)
        if source not in seen:
            yield {"id": f"mini-wmt-{len(seen)}", "source": source, "target": velmar(sentence)}
            seen.add(source)


def _reports(rng: random.Random) -> Iterator[dict[str, str]]:
    for number in range(REPORTS):
        report = make_report("heldout", rng)
        yield {"id": f"mini-cnndm-{number}", "article": report.article, "highlights": report.highlights}

"""The examples of a task and their origin."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spsbench.paths import mini_dirs
from spsbench.records import Example


@dataclass(frozen=True, slots=True)
class TaskData:
    """Examples, the exemplar of a 1-shot prompt, and their provenance.

    Attributes:
        examples: in the order in which they are to run; see ``chosen``.
        provenance: source, revision, split, split_size, ids_sha256, content_sha256, prompt_preset,
            prompt_sha256 and, with an exemplar, exemplar_id; goes into ``run.json``.
    """

    examples: list[Example]
    exemplar: Example | None
    provenance: dict[str, Any]
    synthetic: bool
    label: str


def seeded_order(examples: Sequence[Example], seed: int) -> list[Example]:
    """Examples sorted by a hash of seed and id: a shuffle that ignores the order in the file."""
    return sorted(
        examples,
        key=lambda e: hashlib.sha256(f"{seed}\0{e.example_id}".encode(errors="surrogatepass")).digest(),
    )


def chosen(examples: Sequence[Example], limit: int | None, seed: int) -> list[Example]:
    """The first ``limit`` examples in the seeded order; all of them for None.

    So a small limit is a fair sample of the split, a larger one extends a smaller one (a run can
    be resumed with more), and a run that is cut short has still measured a fair sample.
    """
    return seeded_order(examples, seed)[:limit]


def fingerprint(examples: Sequence[Example]) -> dict[str, Any]:
    """Size of a split, hash of its sorted ids and hash of all it holds; blind to the rows' order."""
    ids = sorted(example.example_id for example in examples)
    content = sorted(json.dumps([e.example_id, e.fields], sort_keys=True) for e in examples)
    return {"split_size": len(examples), "ids_sha256": _sha256(ids), "content_sha256": _sha256(content)}


def is_mini(path: Path) -> bool:
    """Whether a path lies in the package's synthetic data."""
    place = path.resolve()
    return any(place.is_relative_to(folder.resolve()) for folder in mini_dirs().values())


def _sha256(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode(errors="surrogatepass")).hexdigest()

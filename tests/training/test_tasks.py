from __future__ import annotations

import json
from pathlib import Path

import pytest

from spsbench.paths import mini_dir
from training.tasks import write_tasks

COUNTS = {"xsum": 400, "xsum_train": 60, "xsum_unseen_templates": 120, "humaneval": 150}


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_tasks(folder)
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_the_shipped_data_is_what_the_seed_gives(written: Path, name: str, count: int) -> None:
    shipped = rows(mini_dir() / "data", name)
    assert len(shipped) == count
    assert shipped == rows(written, name)


def test_no_item_is_there_twice_and_none_of_the_exemplars_is_tested(written: Path) -> None:
    documents = [row["document"] for name in COUNTS if name != "humaneval" for row in rows(written, name)]
    assert len(set(documents)) == len(documents)
    prompts = [row["prompt"] for row in rows(written, "humaneval")]
    assert len(set(prompts)) == len(prompts)


def test_fields_are_those_of_xsum_and_humaneval(written: Path) -> None:
    assert set(rows(written, "xsum")[0]) == {"id", "document", "summary"}
    fields = {"task_id", "prompt", "entry_point", "canonical_solution", "test"}
    assert set(rows(written, "humaneval")[0]) == fields

"""Official data against a local stand-in of the hub's cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import huggingface_hub.constants
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spsbench.base.errors import UnavailableError
from spsbench.models import hf_errors
from spsbench.tasks.catalogue import load_task

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WORDS = " ".join(f"word{i}" for i in range(60))


def rows(split: str, count: int, column: str = "document") -> list[dict[str, str]]:
    return [{"id": f"{split}{i}", column: f"{WORDS} {i}", "summary": f"Sum {i}."} for i in range(count)]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, with the network out of reach."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def put(cache: Path, repository: str, revision: str, files: dict[str, list[dict[str, Any]]]) -> None:
    root = cache / f"datasets--{repository.replace('/', '--')}"
    reference = root / "refs" / revision
    reference.parent.mkdir(parents=True)
    reference.write_text(COMMIT)
    for name, content in files.items():
        path = root / "snapshots" / COMMIT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(content), path)


def test_converted_parquet_is_used_with_its_commit(cache: Path) -> None:
    empty = {"id": "empty", "document": "\n", "summary": "Nothing."}
    files = {
        "default/validation/0000.parquet": [*rows("validation", 3), empty],
        "default/test/0000.parquet": rows("test", 2),
        "default/train/0000.parquet": rows("train", 5),
    }
    put(cache, "EdinburghNLP/xsum", "refs/convert/parquet", files)
    data = load_task("xsum").load("official", None, seed=0)
    assert sorted(e.example_id for e in data.examples) == ["validation0", "validation1", "validation2"]
    assert data.exemplar is not None
    assert data.exemplar.example_id.startswith("train")
    told = {
        key: data.provenance[key] for key in ("source", "revision", "split", "split_size", "skipped_empty")
    }
    assert told == {
        "source": "hub: EdinburghNLP/xsum",
        "revision": COMMIT,
        "split": "validation",
        "split_size": 3,
        "skipped_empty": 1,
    }
    assert (data.label, data.synthetic) == ("xsum", False)


def test_main_is_the_second_choice(cache: Path) -> None:
    files = {
        "data/validation-00000-of-00002.parquet": rows("validation", 2),
        "data/validation-00001-of-00002.parquet": rows("more", 2),
        "data/train-00000-of-00001.parquet": rows("train", 2),
    }
    put(cache, "EdinburghNLP/xsum", "main", files)
    assert load_task("xsum").load("official", None, seed=0).provenance["split_size"] == 4


def test_the_last_choice_has_its_own_column_and_config(cache: Path) -> None:
    files = {
        "xsum/validation/0000.parquet": rows("validation", 2, "article"),
        "xsum-sampled/validation/0000.parquet": rows("sampled", 2, "article"),
        "xsum/train/0000.parquet": rows("train", 2, "article"),
    }
    put(cache, "lighteval/summarization", "refs/convert/parquet", files)
    data = load_task("xsum").load("official", None, seed=0)
    assert {e.example_id for e in data.examples} == {"validation0", "validation1"}
    assert data.provenance["source"] == "hub: lighteval/summarization"


def test_offline_names_what_is_missing_and_the_ways_out(cache: Path) -> None:
    with pytest.raises(UnavailableError) as caught:
        load_task("xsum").load("official", None, seed=0)
    assert caught.value.exit_code == 3
    for part in ("EdinburghNLP/xsum at refs/convert/parquet", "lighteval/summarization", "validation"):
        assert part in caught.value.message
    for way in ("--data PATH", "HF_HOME", "--data mini"):
        assert way in str(caught.value.remedy)


def test_a_snapshot_without_the_split_is_passed_over(cache: Path) -> None:
    put(cache, "EdinburghNLP/xsum", "refs/convert/parquet", {"default/train/0000.parquet": rows("train", 2)})
    with pytest.raises(UnavailableError, match="has no Parquet or JSON lines file of 'validation'"):
        load_task("xsum").load("official", None, seed=0)


def pairs(count: int) -> list[dict[str, Any]]:
    return [{"translation": {"en": f"Line {i}.", "de": f"Zeile {i}."}} for i in range(count)]


def test_translations_come_from_one_configuration_without_its_train_split(cache: Path) -> None:
    blank = {"translation": {"en": " ", "de": "Nichts."}}
    files = {
        "de-en/test/0000.parquet": [*pairs(3), blank, *pairs(1)],
        "fr-en/test/0000.parquet": [{"translation": {"en": "Line.", "fr": "Ligne."}}],
    }
    put(cache, "wmt/wmt14", "refs/convert/parquet", files)
    data = load_task("wmt14-ende").load("official", None, seed=0)
    texts = sorted((e.fields["source"], e.reference) for e in data.examples)
    assert texts == [("Line 0.", "Zeile 0."), *((f"Line {i}.", f"Zeile {i}.") for i in range(3))]
    assert len({e.example_id for e in data.examples}) == 4  # a pair that is there twice counts twice
    told = {name: data.provenance[name] for name in ("source", "revision", "split", "skipped_empty")}
    assert told == {"source": "hub: wmt/wmt14", "revision": COMMIT, "split": "test", "skipped_empty": 1}
    assert (data.label, data.synthetic) == ("wmt14-ende", False)


def test_only_what_is_needed_is_downloaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published = [
        *(f"{pair}/{split}/0000.parquet" for pair in ("de-en", "fr-en") for split in ("test", "train")),
        "de-en/test/index.duckdb",
        "de-en/test-00000-of-00001.parquet",
        "de-en/train-00000-of-00003.parquet",
    ]
    wanted: list[list[str]] = []

    def download(repository: str, *, allow_patterns: list[str], **_: Any) -> str:
        from huggingface_hub.utils import filter_repo_objects

        wanted.append(list(filter_repo_objects(published, allow_patterns=allow_patterns)))
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(UnavailableError, match="wmt/wmt14 at refs/convert/parquet, wmt/wmt14 at main"):
        load_task("wmt14-ende").load("official", None, seed=0)
    assert wanted == [["de-en/test/0000.parquet", "de-en/test-00000-of-00001.parquet"]] * 2


def test_highlights_come_from_the_split_of_the_task(cache: Path) -> None:
    row = {"id": "a1", "article": "A storm came. It rained.", "highlights": "Storm came .\nIt rained ."}
    put(cache, "abisee/cnn_dailymail", "main", {"3.0.0/test-00000-of-00001.parquet": [row]})
    (example,) = load_task("cnndm").load("official", None, seed=0).examples
    assert (example.example_id, example.fields["article"]) == ("a1", row["article"])
    assert example.reference == row["highlights"]


@pytest.mark.parametrize("reached", [True, False])
def test_a_hub_that_cannot_be_reached_is_asked_once(reached: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Session:
        def head(self, url: str, timeout: float) -> None:
            asked.append(url)
            if not reached:
                raise OSError("no route")

    hf_errors.forget()
    monkeypatch.setattr(huggingface_hub, "get_session", Session)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    for _ in range(2):
        with hf_errors.offline_unless_reached():
            assert huggingface_hub.constants.HF_HUB_OFFLINE is not reached
    assert len(asked) == 1
    assert huggingface_hub.constants.HF_HUB_OFFLINE is False
    hf_errors.forget()

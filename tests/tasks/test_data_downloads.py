"""Data of a hub on this machine comes as weights do: its size first, and each fault has its sentence."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.hub import FAULTS, TOKEN, Hub, Notes, connected

from spsbench.base.errors import UnavailableError
from spsbench.models import hf_errors
from spsbench.models.fetch.cache import watched_by
from spsbench.tasks.catalogue import load_task
from spsbench.tasks.task import TaskData

XSUM = "EdinburghNLP/xsum"
SHARDS = [f"data/validation-0000{shard}-of-00002.parquet" for shard in range(2)]
WANTED = [*SHARDS, "data/train-00000-of-00002.parquet"]


def put(folder: Path, name: str, split: str, count: int) -> None:
    """Articles that do not compress, so that a file is larger than what is sent at a time."""
    rows = [
        {"id": f"{split}{i}", "document": f"An article of words. {os.urandom(600).hex()}", "summary": f"{i}."}
        for i in range(count)
    ]
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / name, compression="none", use_dictionary=False)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    folder = tmp_path / "served" / "datasets" / XSUM
    for shard, name in enumerate(SHARDS):
        put(folder, name, f"validation{shard}-", 40)
    for name in ("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"):
        put(folder, name, "train", 40)
    put(folder, "data/test-00000-of-00001.parquet", "test", 40)
    with Hub(tmp_path / "served") as hub:
        yield hub


@pytest.fixture
def forget(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """This process talks to the hub; calling it makes it a new process in this."""
    with connected(hub, tmp_path / "home", monkeypatch) as forget:
        yield forget


def load() -> TaskData:
    return load_task("xsum").load("official", None, seed=0)


def size(hub: Hub) -> int:
    return sum((hub.root / "datasets" / XSUM / name).stat().st_size for name in WANTED)


def content(hub: Hub) -> list[str]:
    return [request.removeprefix("GET /content/") for request in hub.requests if "/content/" in request]


def refusal() -> UnavailableError:
    with pytest.raises(UnavailableError) as caught:
        load()
    assert caught.value.flag == "--data official"
    assert "--data mini" in str(caught.value.remedy)
    return caught.value


def test_what_is_needed_comes_once_with_its_size_first_and_is_then_read_without_the_hub(
    hub: Hub, forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched_by(notes := Notes()):
        first = load()
    assert len(first.examples) == 80
    assert sorted(content(hub)) == sorted(f"datasets/{XSUM}/{name}" for name in WANTED)
    assert notes.lines == [f"data of {XSUM} ({size(hub) / 1e3:,.0f} kB) from 127.0.0.1"]
    assert notes.come == notes.total == size(hub)
    hub.mend()
    forget()
    assert load() == first
    assert content(hub) == []
    hub.requests.clear()
    with monkeypatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        forget()
        assert load() == first
    assert hub.requests == []
    hub.break_down("status", 503)
    forget()
    with watched_by(notes := Notes()):
        assert load() == first
    line = f"127.0.0.1 answered 503, a server error: the local copy of {XSUM} is used"
    assert notes.lines == [line]


def test_a_hub_that_is_down_is_named_by_what_is_used_in_its_place(
    hub: Hub, forget: Callable[[], None]
) -> None:
    hub.__exit__()
    with watched_by(notes := Notes()):
        told = refusal()
    assert notes.lines == []
    assert "not on this machine and 127.0.0.1 cannot be reached" in str(told)
    hub.__enter__()


def test_another_source_of_the_cache_serves_where_the_hub_fails(hub: Hub, forget: Callable[[], None]) -> None:
    name = "lighteval/summarization"
    rows = [{"id": name, "article": f"Article {name}.", "summary": f"{name}."} for name in ("one", "two")]
    file = hub.root / "datasets" / name / "xsum" / "validation" / "0000.parquet"
    file.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), file)
    hub.set(XSUM, private=True)
    first = load()
    assert first.provenance["source"] == f"hub: {name}"
    hub.set(XSUM)
    hub.break_down("status", 503)
    forget()
    with watched_by(notes := Notes()):
        assert load() == first
    assert notes.lines == [f"127.0.0.1 answered 503, a server error: the local copy of {name} is used"]


def test_what_came_before_a_cut_does_not_come_again(hub: Hub, forget: Callable[[], None]) -> None:
    hub.break_down("cut", 20_000, where="/content/.*validation-00001")
    load()
    assert len([request for request in content(hub) if "validation-00001" in request]) == 3
    assert sum(hub.sent.values()) == size(hub)


def test_a_later_command_goes_on_where_the_first_broke_off(hub: Hub, forget: Callable[[], None]) -> None:
    hub.break_down("cut", 30_000, where="/content/.*validation-00001", times=1)
    hub.break_down("status", 503, where="/content/.*validation-00001")
    broken = refusal()
    assert f"{SHARDS[1]} of {XSUM} broke off at 30 kB of " in broken.message
    assert f"{XSUM} at main, lighteval/summarization at refs/convert/parquet, " in broken.message
    assert "summarization at main: not on this machine)." in broken.message
    assert str(broken.remedy).startswith("What was received is kept: repeat the command to continue.")
    hub.mend()
    forget()
    load()
    assert (
        hub.sent[Path(SHARDS[1]).name] == (hub.root / "datasets" / XSUM / SHARDS[1]).stat().st_size - 30_000
    )


def test_an_interruption_is_raised_at_once_and_keeps_what_came(
    hub: Hub, forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.break_down("stall", 30_000, where="/content/.*validation-00000")
    last = (hub.root / "datasets" / XSUM / SHARDS[0]).stat().st_size
    with watched_by(Notes(breaks_off_at=size(hub) - last + 1)), pytest.raises(KeyboardInterrupt):
        load()
    hub.mend()
    load()
    assert sum(hub.sent.values()) < last


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_of_the_hub_has_its_sentence(hub: Hub, forget: Callable[[], None], fault: str) -> None:
    kind, value, sentence, remedy = FAULTS[fault]
    hub.break_down(kind, value)
    refused = refusal()
    assert f"{XSUM} at refs/convert/parquet: {sentence.rstrip('.')}" in str(refused)
    assert remedy in str(refused.remedy)


def test_a_web_page_in_place_of_data(hub: Hub, forget: Callable[[], None]) -> None:
    hub.break_down("web page", where="/content/")
    assert "answered with a web page" in str(refusal())


def test_gated_data(hub: Hub, forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    hub.set(XSUM, gated=True)
    refused = refusal()
    assert f"{XSUM} at refs/convert/parquet, {XSUM} at main: gated" in str(refused)
    assert "hf auth login" in str(refused.remedy)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    forget()
    load()


def test_a_full_disk_is_seen_before_the_first_byte(
    hub: Hub, forget: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf_errors, "free_bytes", lambda folder: 50_000)
    refused = refusal()
    needed = f"data of {XSUM} ({size(hub) / 1e3:,.0f} kB) need {size(hub) / 1e3:,.0f} kB"
    assert f"{needed} in {tmp_path / 'home' / 'hub'}, which has 50 kB free" in str(refused)
    assert "HF_HOME" in str(refused.remedy)
    assert content(hub) == []


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.ENOSPC, "there is no room left in"),
        (errno.EROFS, "cannot be written (Read-only file system)"),
        (errno.EACCES, "cannot be written (Permission denied)"),
    ],
)
def test_a_cache_that_takes_nothing(
    hub: Hub,
    forget: Callable[[], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    sentence: str,
) -> None:
    planted = f"""
import os
from pathlib import Path

real = Path.open

def full(path, *arguments, **options):
    if path.suffix == ".incomplete":
        raise OSError({number}, os.strerror({number}), str(path))
    return real(path, *arguments, **options)

Path.open = full
"""
    (tmp_path / "sitecustomize.py").write_text(planted)
    monkeypatch.syspath_prepend(tmp_path)  # of the process that receives, too
    refused = refusal()
    assert sentence in str(refused)
    assert str(tmp_path / "home") in str(refused)
    assert "HF_HOME to" in str(refused.remedy)

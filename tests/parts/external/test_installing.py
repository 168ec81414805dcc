"""Environments of engines: what is run, what is left when it fails, and what is refused."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import sys
import tarfile
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.commandline import call as cli
from support.fake_engine import FakeRun, write_catalogue

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.parts.external.install import Entry, install, list_entries, load_entry, run, uninstall
from spsbench.parts.external.registry import NAMED

HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
PINNED = re.compile(r"^[A-Za-z0-9._-]+==[A-Za-z0-9.+]+$")


def tiny() -> Entry:
    return load_entry("tiny", "NAME")


def files(cache: Path) -> list[str]:
    """What is in a cache, but for locks."""
    return sorted(path.name for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock")


@pytest.mark.parametrize("name", list_entries())
def test_every_lock_file_pins_every_package_and_its_files_once(name: str) -> None:
    entry = load_entry(name, "NAME")
    text = re.sub(r"(?m)^#.*\n", "", entry.lock.read_text()).replace(" \\\n", "")
    requirements = [line.split() for line in text.splitlines()]
    lines = [pinned for pinned, *_ in requirements]
    assert lines
    assert [line for line in lines if not PINNED.match(line)] == []
    assert [
        pinned for pinned, *hashes in requirements if not (hashes and all(map(HASH.fullmatch, hashes)))
    ] == []
    names = [line.partition("==")[0].lower() for line in lines]
    assert len(names) == len(set(names))
    pinned = f"{entry.package}=={entry.version}"
    source = "" if entry.source is None else entry.source.file
    assert pinned in lines or source == f"{pinned.replace('-', '_').replace('==', '-')}.tar.gz"
    assert not {each.partition("==")[0] for each in entry.elsewhere} & set(names)


def test_every_engine_of_the_catalogue_can_be_started_and_the_other_way_round() -> None:
    assert set(list_entries()) == set(NAMED)
    assert set(list_entries()) == {
        *("openvino", "onnxruntime-genai", "llama-cpp", "vllm", "mlx-lm", "transformers", "xllamacpp")
    }


def test_an_engine_is_installed_by_its_own_pip_and_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = write_catalogue(tmp_path, monkeypatch) / "tiny.txt"
    monkeypatch.setenv("PYTHONPATH", "/of/ours")
    execute = FakeRun()
    environment = install(tiny(), execute)
    assert environment.is_here
    assert environment == tiny().environment
    venv, pip = execute.ran
    assert venv[:3] == [sys.executable, "-m", "venv"]
    assert pip[0] == str(environment.folder.with_name(f"{environment.folder.name}.partial") / "bin/python")
    assert pip[1:3] == ["-m", "pip"]
    assert {"--no-deps", "--only-binary"} <= set(pip)
    assert pip[-3:] == ["--require-hashes", "-r", str(lock)]
    assert "PYTHONPATH" not in execute.variables
    assert execute.variables["TMPDIR"].startswith(str(tmp_path / "cache"))
    install(tiny(), execute)
    assert len(execute.ran) == 2


def test_another_lock_file_is_another_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = write_catalogue(tmp_path, monkeypatch) / "tiny.txt"
    old = install(tiny(), FakeRun())
    lock.write_text("tiny-engine==1.0\nnumpy==2.0\n")
    assert not tiny().environment.is_here
    assert old.is_here
    uninstall(tiny())
    assert not old.is_here
    assert files(tmp_path / "cache") == []


def test_a_release_is_in_a_place_of_its_own_with_the_pins_of_the_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = "elsewhere: {big==1+cpu: 'https://index.example/cpu'}\npins: [big, numpy]\n"
    write_catalogue(tmp_path, monkeypatch, more, "tiny-engine==1.0\nnumpy==2.0 \\\n    --hash=sha256:0\n")
    assert load_entry("tiny@1.0", "NAME") == tiny()
    older, execute = load_entry("tiny@0.9", "NAME"), FakeRun()
    assert install(older, execute).is_here
    assert not tiny().environment.is_here
    assert execute.ran[1][-3:] == ["tiny-engine==0.9", "big==1+cpu", "numpy==2.0"]
    assert "--no-deps" not in execute.ran[1]
    assert load_entry("tiny@0.8", "NAME").environment != older.environment
    newest = install(tiny(), FakeRun())
    uninstall(older)
    assert (older.environment.is_here, newest.is_here) == (False, True)
    install(older, FakeRun())
    uninstall(tiny())
    assert (older.environment.is_here, newest.is_here) == (False, False)


def test_what_a_release_does_not_need_is_removed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel beside the CPU build of PyTorch that is made for another: the engine would not load."""
    write_catalogue(tmp_path, monkeypatch, "without: [vision]\n")
    execute = FakeRun()
    install(load_entry("tiny@0.9", "NAME"), execute)
    assert [each[3:] for each in execute.ran[2:]] == [["uninstall", "--yes", "vision"]]
    locked = FakeRun()
    install(tiny(), locked)
    assert not any("uninstall" in each for each in locked.ran)


@pytest.mark.parametrize("version", ["", "../1", "1 2", "one"])
def test_a_release_that_is_none_is_refused(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_catalogue(tmp_path, monkeypatch)
    with pytest.raises(UsageError, match="is not a release"):
        load_entry(f"tiny@{version}", "NAME")


def test_an_environment_in_passing_stays_once_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_catalogue(tmp_path, monkeypatch)
    entry = load_entry("tiny@0.9", "NAME")
    install(entry, FakeRun(), passing=True)
    install(entry, FakeRun(), passing=True)
    assert entry.environment.mark.exists()
    install(entry, FakeRun())
    install(entry, FakeRun(), passing=True)
    assert not entry.environment.mark.exists()


def test_one_whose_interpreter_is_gone_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_catalogue(tmp_path, monkeypatch)
    environment = install(tiny(), FakeRun())
    environment.python.unlink()
    environment.python.symlink_to("/no/python")
    assert not environment.is_here
    assert install(tiny(), FakeRun()).is_here


@pytest.mark.parametrize("word", ["venv", "pip"])
def test_half_of_an_environment_is_never_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    write_catalogue(tmp_path, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        install(tiny(), FakeRun(stops=word))
    with pytest.raises(UnavailableError, match="failed"):
        install(tiny(), FakeRun(fails=word))
    assert not tiny().environment.is_here
    assert files(tmp_path / "cache") == ["tiny.log"]
    assert install(tiny(), FakeRun()).is_here


def test_what_a_killed_installation_left_is_cleared_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_catalogue(tmp_path, monkeypatch)
    folder = tiny().environment.folder
    left = folder.with_name(f"{folder.name}.partial") / "bin"
    left.mkdir(parents=True)
    (left / "python").write_text("old")
    assert not tiny().environment.is_here
    assert install(tiny(), FakeRun()).python.read_text() == ""


def test_two_at_once_install_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_catalogue(tmp_path, monkeypatch)
    execute = FakeRun()
    threads = [threading.Thread(target=install, args=(tiny(), execute)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(execute.ran) == 2


def test_no_room_is_said_before_anything_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_catalogue(tmp_path, monkeypatch)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2999))
    execute = FakeRun()
    with pytest.raises(UnavailableError, match=r"Tiny needs 3 kB in .*, which has 3 kB free"):
        install(tiny(), execute)
    assert execute.ran == []


def test_a_package_that_the_index_lacks_comes_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = "elsewhere: {big==1+cpu: 'https://index.example/cpu'}\n"
    write_catalogue(tmp_path, monkeypatch, more)

    execute = FakeRun(lacks="big==1+cpu")
    assert install(tiny(), execute).is_here
    assert execute.ran[2][-3:] == ["big==1+cpu", "--index-url", "https://index.example/cpu"]
    assert execute.ran[3][-2] == "-r"


def sources(folder: Path, patch: pytest.MonkeyPatch, hostile: tarfile.TarInfo | None = None) -> None:
    """The engine is compiled, of a package that lies in a folder which pip knows."""
    if not hasattr(tarfile, "data_filter"):
        pytest.skip("Python before 3.11.4 does not unpack sources")
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as packed:
        packed.addfile(tarfile.TarInfo("tiny-1.0/code/CMakeLists.txt"))
        if hostile is not None:
            packed.addfile(hostile)
    found = folder / "links"
    found.mkdir()
    (found / "tiny-1.0.tar.gz").write_bytes(content.getvalue())
    digest = hashlib.sha256(content.getvalue()).hexdigest()
    size = len(content.getvalue())
    more = f"source: {{file: tiny-1.0.tar.gz, bytes: {size}, sha256: {digest}, folder: tiny-1.0/code}}\n"
    write_catalogue(folder, patch, more)
    patch.setenv("PIP_FIND_LINKS", str(found))
    patch.setenv("PIP_NO_INDEX", "1")
    patch.setenv("PIP_CONFIG_FILE", os.devnull)


def test_one_that_is_compiled_keeps_its_server_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources(tmp_path, monkeypatch)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    execute = FakeRun()
    environment = install(tiny(), execute)
    assert environment.server.read_text() == "built"
    configure, build = execute.ran[-2:]
    assert configure[1:3] == build[1:3] == ["-m", "cmake"]
    assert {"-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_BUILD_NUMBER=1"} <= set(configure)
    assert "llama-server" in build
    assert files(tmp_path / "cache") == ["llama-server", "python", "tiny.log"]


def test_sources_are_kept_where_compilation_fails_and_then_no_index_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources(tmp_path, monkeypatch)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(UnavailableError, match="failed"):
        install(tiny(), FakeRun(fails="--build"))
    assert files(tmp_path / "cache") == ["tiny-1.0.tar.gz.part", "tiny.log"]
    shutil.rmtree(tmp_path / "links")
    assert install(tiny(), FakeRun()).server.is_file()
    uninstall(tiny())
    with pytest.raises(UnavailableError, match=r"no package index .* has tiny-1\.0\.tar\.gz"):
        install(tiny(), FakeRun())
    assert files(tmp_path / "cache") == []


@pytest.mark.parametrize(
    ("name", "kind", "link"),
    [("../../out", tarfile.REGTYPE, ""), ("etc", tarfile.SYMTYPE, "/etc"), ("pipe", tarfile.FIFOTYPE, "")],
)
def test_sources_that_lead_out_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: bytes, link: str
) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    sources(tmp_path, monkeypatch, member)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(UnavailableError, match=r"tiny-1\.0\.tar\.gz is not what it should be"):
        install(tiny(), FakeRun())
    assert not tiny().environment.folder.exists()
    assert not (tmp_path / "cache" / "out").exists()


@pytest.mark.parametrize(
    ("named", "words"), [("", "there is no C++ compiler"), ("mine++", "CXX=mine++ is not there")]
)
def test_no_compiler_is_one_line_and_exit_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, words: str
) -> None:
    sources(tmp_path, monkeypatch)
    monkeypatch.setenv("CXX", named)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    done = cli("get", "tiny")
    assert done.code == 3
    assert words in done.err
    assert "Install g++ or clang++, or set CXX." in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_a_python_that_cannot_unpack_safely_is_refused_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources(tmp_path, monkeypatch)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.delattr(tarfile, "data_filter")
    with pytest.raises(UnavailableError, match="cannot unpack safely"):
        install(tiny(), FakeRun())
    assert files(tmp_path / "cache") == []


def wheel(folder: Path) -> str:
    """A package with nothing but a module; its hash."""
    info, file = "tiny_engine-1.0.dist-info", folder / "tiny_engine-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("tiny_engine.py", "")
        packed.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-engine\nVersion: 1.0\n")
        packed.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.thorough
def test_get_installs_with_the_real_pip_and_removes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = write_catalogue(tmp_path, monkeypatch) / "tiny.txt"
    links = tmp_path / "links"
    links.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    sha256 = wheel(links)
    lock.write_text(
        f"tiny-engine==1.0 --hash=sha256:{sha256[::-1]}\n"
    )  # the index has another file than was locked
    refused = cli("get", "tiny")
    assert (refused.code, tiny().environment.is_here) == (3, False)
    assert "DO NOT MATCH THE HASHES" in (tmp_path / "cache/engines/tiny.log").read_text()
    lock.write_text(f"tiny-engine==1.0 --hash=sha256:{sha256}\n")
    done = cli("get", "tiny")
    assert done.code == 0, done.err
    assert done.err.startswith("Tiny 1.0: 1 kB to fetch, 2 kB to keep, about 1 second")
    assert str(tiny().environment.folder) in done.out
    found = tiny().environment
    check = [found.python, "-c", "import tiny_engine, pip"]
    run(check, tmp_path / "log", {})
    row = json.loads(cli("get", "tiny", "--json").out)[0]
    assert (row["engine"], row["version"]) == ("tiny", "1.0")
    assert row["bytes"] > 1_000_000
    gone = cli("get", "--remove", "tiny")
    assert re.fullmatch(r"tiny is gone: \d+ MB freed.\n", gone.out)
    assert cli("get", "--remove", "tiny").out == "tiny was not here.\n"
    assert files(tmp_path / "cache") == []


def test_an_unknown_name_is_refused_with_the_closest() -> None:
    done = cli("get", "opnvino")
    assert done.code == 2
    assert "the pair or engine opnvino is unknown. Did you mean openvino?" in done.err


def test_list_engines_tells_what_is_installed_and_what_each_cannot_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPSBENCH_CACHE", str(tmp_path))

    def rows() -> dict[str, dict[str, str]]:
        found = json.loads(cli("list", "engines", "--json").out)["engines"]
        return {row["external engine"]: row for row in found if "external engine" in row}

    before = rows()
    assert set(before) == set(list_entries())
    assert before["openvino"]["installed"].startswith("no, ")
    assert before["openvino"]["sampled"] == "its own, not lossless"
    assert before["openvino"]["statistics"] == "loops"
    assert "`spsbench get openvino`" in before["openvino"]["needs"]
    assert "55005" in before["vllm"]["limits"]
    assert before["llama-cpp"]["options"] == (
        "draft_sampling=greedy\nspeculation=draft\ndraft_p_min=\ndraft_n_min=\nsynth_len="
    )
    python = load_entry("openvino", "NAME").environment.python
    python.parent.mkdir(parents=True)
    python.touch()
    assert rows()["openvino"]["installed"] == "yes"
    shown = cli("list", "engines").out
    assert "Options: draft_sampling=greedy" in shown
    assert "Install one by `spsbench get NAME`." in shown


def test_a_command_that_fails_says_its_last_error_and_one_that_is_interrupted_is_ended(
    tmp_path: Path,
) -> None:
    code = "print('ERROR: no such thing.'); print('a hint'); raise SystemExit(1)"
    with pytest.raises(UnavailableError, match="failed: no such thing") as caught:
        run([sys.executable, "-c", code], tmp_path / "log", dict(os.environ))
    assert str(tmp_path / "log") in str(caught.value)

    def tick() -> None:
        raise KeyboardInterrupt

    pid = tmp_path / "pid"
    code = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    with pytest.raises(KeyboardInterrupt):
        run([sys.executable, "-c", code], tmp_path / "log", dict(os.environ), tick)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


_NO_NETWORK = "WARNING: connection broken: Failed to establish a new connection: /whl/cpu/numpy"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ([_NO_NETWORK, "ERROR: No matching distribution found for a==1"], "no package index can be reached"),
        (
            [_NO_NETWORK, "ERROR: Could not find a==1 (from versions: none)", "ERROR: No match"],
            "no package index can be reached",
        ),
        (
            [
                _NO_NETWORK,
                "ERROR: Cannot install numpy==2 and a==1 because these package versions have conflicting"
                " dependencies.",
                "ERROR: ResolutionImpossible: see https://pip.pypa.io",
            ],
            "Cannot install numpy==2 and a==1",
        ),
        (
            [_NO_NETWORK, "ERROR: Could not find a==9 (from versions: 1, 2)", "ERROR: No match"],
            "Could not find a==9",
        ),
    ],
)
def test_an_index_that_answered_is_not_called_out_of_reach(
    tmp_path: Path, said: list[str], reason: str
) -> None:
    script = "".join(f"print({line!r})\n" for line in said) + "raise SystemExit(1)"
    with pytest.raises(UnavailableError, match=f"failed: {reason}"):
        run([sys.executable, "-c", script], tmp_path / "log", dict(os.environ))

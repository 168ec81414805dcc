from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

import spsbench
from spsbench.base import environment
from spsbench.base.environment import busy  # for the session it is replaced in the module

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def test_the_description_is_json_and_tells_the_essentials() -> None:
    described = json.loads(json.dumps(environment.describe_environment(["spsbench", "run", "a b"])))
    assert described["command"] == "spsbench run 'a b'"
    assert described["spsbench"] == spsbench.__version__
    assert described["cpu"]["threads"] >= 1
    assert described["libraries"]["torch"]
    assert described["load_1m"] >= 0


@pytest.mark.parametrize(
    ("module", "program"), [("spsbench.__main__", f"{Path(sys.executable).name} -m spsbench"), (None, "/x/a")]
)
def test_a_module_that_was_started_is_recorded_by_its_name(
    module: str | None, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = None if module is None else ModuleSpec(module, None)
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=spec))
    monkeypatch.setattr(sys, "argv", ["/x/a", "run", "a b"])
    assert environment.describe_environment()["command"] == f"{program} run 'a b'"


def test_stolen_time_only_grows_or_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = environment.stolen_s(), environment.stolen_s()
    assert first is None or (second is not None and 0 <= first <= second)
    monkeypatch.setattr(psutil, "cpu_times", lambda: object())
    assert environment.stolen_s() is None


@pytest.mark.parametrize(("percent", "said"), [(9.0, None), (60.0, "Other processes use 1.2 of 2 CPUs now.")])
def test_others_on_the_cpu_are_named(
    percent: float, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: percent)
    monkeypatch.setattr(psutil, "cpu_count", lambda: 2)
    assert busy() == said


@pytest.mark.parametrize(
    ("percent", "cpus", "left"), [(3.0, 2, 2), (50.0, 2, 1), (100.0, 2, 1), (30.0, 16, 11), (60.0, 1, 1)]
)
def test_cpus_that_others_leave(
    percent: float, cpus: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: percent)
    monkeypatch.setattr(psutil, "cpu_count", lambda: cpus)
    monkeypatch.setattr(environment, "_usable_threads", lambda: cpus)
    environment.cpus_left.cache_clear()
    assert environment.cpus_left() == left
    environment.cpus_left.cache_clear()


def test_an_absent_library_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "LIBRARIES", ("numpy", "no-such-library"))
    versions = environment.library_versions()
    assert versions["numpy"]
    assert versions["no-such-library"] is None


@needs_git
def test_git_state_tells_commit_and_changes(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    git("init")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-m", "one")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "run.json").write_text("being written")
    clean = environment.git_state(tmp_path)
    (tmp_path / "file").write_text("two")
    dirty = environment.git_state(tmp_path)
    assert clean is not None
    assert dirty is not None
    assert len(clean["commit"]) == 40
    assert (clean["dirty"], dirty["dirty"]) == (False, True)


@needs_git
def test_a_folder_inside_a_checkout_is_not_the_checkout(tmp_path: Path) -> None:
    subprocess.run(["git", "init", str(tmp_path)], check=True, capture_output=True)
    inside = tmp_path / "venv"
    inside.mkdir()
    assert environment.git_state(inside) is None


def test_a_machine_that_hides_its_frequency_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden() -> None:
        raise FileNotFoundError

    monkeypatch.setattr(psutil, "cpu_freq", hidden)
    assert environment.cpu_frequency_mhz() is None
    monkeypatch.setattr(psutil, "cpu_freq", lambda: None)
    assert environment.cpu_frequency_mhz() is None


def test_describing_imports_nothing_heavy() -> None:
    code = (
        "import sys; from spsbench.base.environment import describe_environment; describe_environment();"
        "print({'torch', 'transformers', 'pandas', 'scipy', 'datasets'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


def test_waiting_for_a_cpu_only_grows_or_is_not_told() -> None:
    before, after = environment.waited_s(), environment.waited_s()
    assert (before is None and after is None) or 0 <= (before or 0.0) <= (after or 0.0)


def test_where_the_kernel_keeps_no_waits_none_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_OWN_THREADS", tmp_path)
    assert environment.waited_s() is None
    for thread, waits in (("1", "10 2500000000 7"), ("2", "1 500000000 1")):
        (tmp_path / thread).mkdir()
        (tmp_path / thread / "schedstat").write_text(waits)
    assert environment.waited_s() == 3.0
    (tmp_path / "2/schedstat").write_text("gone")
    assert environment.waited_s() is None


def test_what_was_taken_is_a_difference_of_what_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter([1.0, 2.5])
    monkeypatch.setitem(environment.TAKERS, "waited_s", lambda: next(told))
    monkeypatch.setitem(environment.TAKERS, "stolen_s", lambda: None)
    assert environment.taken_since(environment.taken()) == {"waited_s": 1.5}


@pytest.mark.parametrize(
    ("flags", "is_virtual"),
    [("flags\t\t: fpu sse2 hypervisor lahf_lm", True), ("flags\t\t: fpu sse2 lahf_lm", False), ("", None)],
)
def test_the_flags_of_the_cpu_say_whether_a_hypervisor_runs_it(
    flags: str, is_virtual: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nmodel name\t: AMD EPYC\n{flags}\n")
    monkeypatch.setattr(environment, "_CPU_INFO", tmp_path / "cpuinfo")
    assert environment.is_virtual() is is_virtual
    assert environment.describe_environment()["cpu"]["model"] == "AMD EPYC"
    monkeypatch.setattr(environment, "_CPU_INFO", tmp_path / "nowhere")
    assert environment.is_virtual() is None

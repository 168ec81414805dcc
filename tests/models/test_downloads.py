"""Models of a hub on this machine, by the real client libraries: what is fetched, and what faults say."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from support.commandline import call
from support.hub import FAULTS, TOKEN, Hub, Notes, connected, environment
from support.tiny_models import make_pair, pair_of, save

from spsbench.base.errors import SpsbenchError, UnavailableError, UsageError
from spsbench.cli.doctor import model_is_here
from spsbench.config.models import TORCH
from spsbench.models import downloads, hf_errors, loading, memory
from spsbench.models.fetch import hub as receiver
from spsbench.models.fetch.cache import watched_by
from spsbench.models.loading import fetch_weights
from spsbench.models.pair import Pair, PairSource, load_pair, pair_backend
from spsbench.models.quantised import require_readable

CPU = torch.device("cpu")
NAMES = ("org/target", "org/draft")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Repositories of a target in shards and a draft in one file."""
    root = tmp_path_factory.mktemp("hub")
    for name, model, size in zip(NAMES, make_pair("qwen3"), ("60KB", "5GB"), strict=True):
        save(model, root / "models" / name, max_shard_size=size)
    return root


@pytest.fixture
def hub(made: Path, tmp_path: Path) -> Iterator[Hub]:
    shutil.copytree(made, tmp_path / "served")
    with Hub(tmp_path / "served") as hub:
        yield hub


@pytest.fixture
def forget(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """This process talks to the hub; calling it makes it a new process in this."""
    with connected(hub, tmp_path / "home", monkeypatch) as forget:
        yield forget


def load(source: PairSource | None = None) -> Pair:
    return load_pair(source or pair_of(*NAMES), ("auto", "auto"), CPU, TORCH, threads=1)


def weights(pair: Pair) -> list[dict[str, Any]]:
    return [model.model.state_dict() for model in (pair.target, pair.draft)]  # type: ignore[attr-defined]


def content(hub: Hub) -> list[str]:
    return [request for request in hub.requests if "/content/" in request]


def size(hub: Hub, *names: str) -> int:
    files = [path for name in names for path in (hub.root / "models" / name).glob("*.safetensors")]
    return sum(path.stat().st_size for path in files)


def came(hub: Hub) -> int:
    return sum(size for name, size in hub.sent.items() if name.endswith(".safetensors"))


def test_a_pair_is_fetched_once_and_then_read_without_the_hub(hub: Hub, forget: Callable[[], None]) -> None:
    with watched_by(notes := Notes()):
        first = weights(load())
    assert notes.lines == ["weights of org/target (195 kB) and org/draft (131 kB) from 127.0.0.1"]
    assert notes.come == notes.total == size(hub, *NAMES)
    hub.mend()
    forget()
    again = weights(load())
    assert all(
        torch.equal(part[name], other[name])
        for part, other in zip(first, again, strict=True)
        for name in part
    )
    assert content(hub) == []
    hub.break_down("status", 503)
    hub.requests.clear()
    forget()
    with watched_by(notes := Notes()):
        load()
    assert hub.requests == ["HEAD /", "GET /api/models/org/target"]
    line = "127.0.0.1 answered 503, a server error: the local copy of org/target is used"
    assert notes.lines == [line]


def test_a_mirror_that_names_files_alone_is_asked_for_their_folders(
    hub: Hub, forget: Callable[[], None]
) -> None:
    whole = {name: downloads.repository(name, None) for name in NAMES}
    for name in NAMES:
        hub.set(name, brief=True)
    forget()
    assert {name: downloads.repository(name, None) for name in NAMES} == whole
    with watched_by(notes := Notes()):
        load()
    assert notes.lines == ["weights of org/target (195 kB) and org/draft (131 kB) from 127.0.0.1"]
    assert came(hub) == size(hub, *NAMES)


def test_a_hub_that_is_down_is_asked_once_where_all_is_here(hub: Hub, forget: Callable[[], None]) -> None:
    load()
    forget()
    hub.__exit__()
    with watched_by(notes := Notes()):
        load()
    assert notes.lines == ["127.0.0.1 cannot be reached: the local copy of org/target is used"]


def test_what_came_before_a_cut_does_not_come_again(hub: Hub, forget: Callable[[], None]) -> None:
    hub.break_down("cut", 30_000, where="/content/.*draft", times=3)
    load()
    asked = [request for request in content(hub) if "draft" in request]
    assert len(asked) == 4
    assert came(hub) == size(hub, *NAMES)


def test_a_later_command_goes_on_where_the_first_broke_off(hub: Hub, forget: Callable[[], None]) -> None:
    source = pair_of(*NAMES)
    hub.break_down("cut", 30_000, where="/content/.*draft", times=1)
    hub.break_down("status", 503, where="/content/.*draft")
    with pytest.raises(UnavailableError) as caught:
        load(source)
    broken = str(caught.value)
    assert "model.safetensors of org/draft broke off at 30 kB of 131 kB: 127.0.0.1 answered 503" in broken
    assert broken.endswith("What was received is kept: repeat the command to continue.")
    hub.mend()
    with watched_by(notes := Notes()):
        fetch_weights({"--draft": source.draft})
    assert notes.lines == ["weights of org/draft (131 kB) from 127.0.0.1, 30 kB of it are here"]
    assert came(hub) == size(hub, "org/draft") - 30_000


def test_a_target_that_is_its_own_draft_is_fetched_once(hub: Hub, forget: Callable[[], None]) -> None:
    source, watcher = pair_of(NAMES[0], NAMES[0]), Notes()
    with watched_by(watcher):
        fetch_weights({"--target": source.target, "--draft": source.draft})
    assert watcher.total == size(hub, NAMES[0])
    assert " and " not in watcher.lines[0]


def test_a_model_is_here_once_all_its_weights_are(hub: Hub, forget: Callable[[], None]) -> None:
    name, source = NAMES[0], pair_of(*NAMES).target
    memory.weight_bytes(source, "float32", "--target")  # which fetches the index
    assert not model_is_here(name, None)
    fetch_weights({"--target": source})
    assert model_is_here(name, None)


def test_an_error_names_the_model_that_is_fetched(
    hub: Hub, forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = pair_of(*NAMES)
    fetch_weights({"--draft": source.draft})
    monkeypatch.setattr(hf_errors, "free_bytes", lambda folder: 0)
    with pytest.raises(UnavailableError, match="org/target") as caught:
        fetch_weights({"--target": source.target, "--draft": source.draft})
    assert caught.value.flag == "--target"


def receiving(pid: int | None = None) -> list[psutil.Process]:
    """The processes that receive files for a process, this one if none is named."""
    return [each for each in psutil.Process(pid).children() if receiver.__name__ in each.cmdline()]


def test_an_interruption_is_raised_at_once_and_keeps_what_came(hub: Hub, forget: Callable[[], None]) -> None:
    source = pair_of(*NAMES)
    hub.break_down("stall", 30_000, where="/content/.*draft")
    with watched_by(Notes(breaks_off_at=1)), pytest.raises(KeyboardInterrupt):
        fetch_weights({"--draft": source.draft})
    assert receiving() == []
    hub.mend()
    fetch_weights({"--draft": source.draft})
    assert came(hub) < size(hub, "org/draft")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_receives_does_not_outlive_the_command(hub: Hub, tmp_path: Path, number: int) -> None:
    hub.break_down("stall", 30_000, where="/content/")
    code = "from spsbench.models.downloads import fetch, repository; there = repository('org/draft', None); "
    code += "fetch([(there, ['model.safetensors'])], '--draft')"
    command = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | environment(hub, tmp_path / "home"),
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not came(hub):
        time.sleep(0.05)
        assert command.poll() is None
    (receives,) = receiving(command.pid)
    command.send_signal(number)
    assert command.wait(timeout=10) != 0
    assert psutil.wait_procs([receives], timeout=2)[1] == []


def test_a_process_that_ends_while_it_receives_is_named(hub: Hub, forget: Callable[[], None]) -> None:
    class Killer(Notes):
        @contextmanager
        def transfer(self, what: str, total: int, done: int) -> Iterator[Callable[[int], None]]:
            def came(count: int) -> None:
                for process in receiving() if count else ():
                    process.kill()

            yield came

    source = pair_of(*NAMES)
    hub.break_down("stall", 30_000, where="/content/.*draft")
    with watched_by(Killer()), pytest.raises(UnavailableError, match="ended with code -9") as caught:
        fetch_weights({"--draft": source.draft})
    assert str(caught.value.remedy) == "What was received is kept: repeat the command to continue."
    hub.mend()
    fetch_weights({"--draft": source.draft})
    assert came(hub) == size(hub, "org/draft") - 30_000


def test_what_is_not_the_hubs_is_thrown_away(hub: Hub, forget: Callable[[], None]) -> None:
    source = pair_of(*NAMES)
    there, (file,) = downloads.remote_weights("org/draft", str(source.draft.commit), "--draft")
    incomplete = there.blob(file).with_name(f"{there.blob(file).name}.incomplete")
    incomplete.write_bytes(b"x" * 1000)
    with pytest.raises(UnavailableError, match="is not the content that the hub names by its hash"):
        fetch_weights({"--draft": source.draft})
    assert not incomplete.exists()
    fetch_weights({"--draft": source.draft})


def test_a_full_disk_is_seen_before_the_first_byte(
    hub: Hub, forget: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = pair_of(*NAMES)
    monkeypatch.setattr(hf_errors, "free_bytes", lambda folder: 200_000)
    with pytest.raises(UnavailableError) as caught:
        load(source)
    expected = f"need 326 kB in {tmp_path / 'home' / 'hub'}, which has 200 kB free."
    assert expected in str(caught.value)
    assert "HF_HOME" in str(caught.value.remedy)
    assert content(hub) == []


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_the_size_is_known_and_refused_before_the_download(
    hub: Hub, forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    source = pair_of(*NAMES)
    before = memory.weight_bytes(source.target, dtype, "--target")
    assert before is not None
    with monkeypatch.context() as patch:
        patch.setattr(memory, "available_bytes", lambda device: before)
        with pytest.raises(UsageError, match="the weights of org/target and org/draft need"):
            load_pair(source, (dtype, dtype), CPU, TORCH, threads=1)
    assert content(hub) == []
    fetch_weights({"--target": source.target})
    after = memory.weight_bytes(source.target, dtype, "--target")
    assert after is not None
    assert 0 <= before - after < 20_000  # the heads of four files


def test_weights_in_a_bin_file(hub: Hub, forget: Callable[[], None]) -> None:
    for name in NAMES:
        folder = hub.root / "models" / name
        for file in folder.glob("*.safetensors*"):
            file.unlink()
        torch.save(make_pair("qwen3")[NAMES.index(name)].state_dict(), folder / "pytorch_model.bin")
    source = pair_of(*NAMES)
    sizes = [memory.weight_bytes(source.target, dtype, "--target") for dtype in ("float32", "bfloat16")]
    assert sizes[0] == 2 * (sizes[1] or 0)
    assert sizes[0] == (hub.root / "models/org/target/pytorch_model.bin").stat().st_size
    load(source)
    forget()
    assert memory.weight_bytes(pair_of(*NAMES).target, "float32", "--target") == sizes[0]


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_of_the_hub_has_its_sentence(hub: Hub, forget: Callable[[], None], fault: str) -> None:
    kind, value, sentence, remedy = FAULTS[fault]
    hub.break_down(kind, value)
    with pytest.raises(UnavailableError) as caught:
        pair_of(*NAMES)
    assert str(caught.value).startswith(f"--target: org/target cannot be fetched: {sentence}")
    assert remedy in str(caught.value.remedy)


def test_a_web_page_in_place_of_weights(hub: Hub, forget: Callable[[], None]) -> None:
    source = pair_of(*NAMES)
    hub.break_down("cut", 30_000, where="/content/.*draft", times=1)
    hub.break_down("web page", where="/content/")
    for flag, model in (("--draft", source.draft), ("--target", source.target)):
        with pytest.raises(UnavailableError, match="answered with a web page") as caught:
            fetch_weights({flag: model})
        assert caught.value.flag == flag
    hub.mend()
    fetch_weights({"--target": source.target, "--draft": source.draft})
    assert came(hub) == size(hub, *NAMES) - 30_000  # a page in place of the rest takes nothing away


def test_a_mirror_that_drops_the_commit_of_a_large_file(hub: Hub, forget: Callable[[], None]) -> None:
    source = pair_of(*NAMES)
    hub.break_down("no commit", where="draft/resolve/")
    with pytest.raises(UnavailableError, match="answers without X-Repo-Commit") as caught:
        fetch_weights({"--draft": source.draft})
    assert "HF_ENDPOINT" in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("number", "sentence", "remedy"),
    [
        (errno.ENOSPC, "there is no room left in", "Make room, or set HF_HOME to another disk."),
        (errno.EROFS, "cannot be written (Read-only file system)", "Set HF_HOME to a folder"),
        (errno.EACCES, "cannot be written (Permission denied)", "Set HF_HOME to a folder"),
    ],
)
@pytest.mark.parametrize("what", ["settings", "weights"])
def test_a_cache_that_takes_nothing(
    hub: Hub,
    forget: Callable[[], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    sentence: str,
    remedy: str,
    what: str,
) -> None:
    source = pair_of(*NAMES) if what == "weights" else None
    real = Path.open

    def full(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.suffix == ".incomplete":
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(UnavailableError) as caught:
        load(source)
    assert "cannot be fetched: " in str(caught.value)
    assert sentence in str(caught.value)
    assert str(tmp_path / "home") in str(caught.value)
    assert str(caught.value.remedy).startswith(remedy)


def lost_weights(folder: Path) -> None:
    for file in folder.glob("*.safetensors*"):
        file.unlink()


def converted(folder: Path) -> None:
    lost_weights(folder)
    (folder / "q4.gguf").write_bytes(b"GGUF")


def adapter(folder: Path) -> None:
    converted(folder)
    (folder / "q4.gguf").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text("{}")


def lost_shard(folder: Path) -> None:
    sorted(folder.glob("model-*.safetensors"))[1].unlink()


def no_configuration(folder: Path) -> None:
    converted(folder)
    (folder / "config.json").unlink()


def modelopt(folder: Path) -> None:
    """As its earlier versions wrote it: config.json says nothing of quantisation."""
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))


BAD: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "nothing": (lost_weights, "org/target has no weights that transformers reads; there is", "safetensors"),
    "gguf": (
        converted,
        "there is tokenizer.json, config.json, tokenizer_config.json and 2 more",
        ".gguf file",
    ),
    "adapter": (adapter, "org/target has no weights that transformers reads", "merge it"),
    "shard": (lost_shard, "org/target lacks model-00002-of-0000", "Choose another revision"),
    "modelopt": (modelopt, "org/target is quantised by modelopt (hf_quant_config.json)", "--concurrency 1"),
    "config": (no_configuration, "org/target has no config.json; there is", ".gguf file"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_repository_that_holds_no_whole_model_is_refused_before_its_weights_come(
    hub: Hub, forget: Callable[[], None], bad: str
) -> None:
    change, sentence, remedy = BAD[bad]
    change(hub.root / "models" / "org/target")
    with pytest.raises(UnavailableError) as caught:
        memory.weight_bytes(pair_of(*NAMES).target, "auto", "--target")
    assert sentence in str(caught.value)
    assert remedy in str(caught.value.remedy)
    assert caught.value.flag == "--target"
    assert content(hub) == []


QUANTISED: dict[str, tuple[dict[str, Any], str, str, int, str]] = {
    "fp8": (
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        *("fp8", "transformers would turn its weights back into bfloat16 on this CPU", 2),
        "a GPU of compute capability 8.9 or more",
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
        *("awq", "gptqmodel", 3, "`pip install gptqmodel accelerate`"),
    ),
    "gptq": (
        {"quant_method": "gptq", "bits": 4, "group_size": 128},
        *("gptq", "optimum", 3, "`pip install optimum gptqmodel`"),
    ),
    "bitsandbytes": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        *("bitsandbytes", "bitsandbytes", 3, "`pip install bitsandbytes accelerate`"),
    ),
    "bitsandbytes without a method": (
        {"load_in_8bit": True},
        *("bitsandbytes", "bitsandbytes", 3, "`pip install bitsandbytes accelerate`"),
    ),
    "compressed-tensors": (
        {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}},
        *("compressed-tensors", "compressed", 3, "No package makes transformers compute"),
    ),
    "mxfp4": (
        {"quant_method": "mxfp4"},
        *("mxfp4", "transformers would turn its weights back into bfloat16 on this CPU", 2),
        "a GPU of compute capability 7.5 or more",
    ),
    "exotic": ({"quant_method": "exotic"}, "exotic", "got exotic.", 2, "Install what it needs"),
    "nothing": ({"bits": 4}, "a method without a name", "quant_method", 2, "Install what it needs"),
}
"""Of config.json, then the method's name, the reason, the exit code, and what would run it."""
RUN_BY = {"awq": "gptqmodel", "gptq": "optimum", "bitsandbytes": "bitsandbytes", "mxfp4": "triton"}
RUN_BY |= {"compressed-tensors": "compressed_tensors"}


@pytest.mark.parametrize("which", QUANTISED)
def test_a_quantisation_that_cannot_run_is_named_before_the_download(
    hub: Hub, forget: Callable[[], None], which: str
) -> None:
    settings, method, reason, code, needs = QUANTISED[which]
    if method in RUN_BY and importlib.util.find_spec(RUN_BY[method]) is not None:
        pytest.skip("this machine may run it")
    path = hub.root / "models" / "org/target" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": settings}))
    source = pair_of(*NAMES)
    sentence = f"org/target is quantised by {method}, which cannot run here: "
    with pytest.raises(SpsbenchError, match=sentence) as caught:
        pair_backend(TORCH, source, ("auto", "auto"), CPU)
    assert reason in str(caught.value)
    assert (caught.value.exit_code, caught.value.flag) == (code, "--target")
    assert str(caught.value.remedy).startswith(("It takes ", "`pip", "No package", "Install"))
    assert needs in str(caught.value.remedy)
    assert pair_backend(TORCH, source, ("auto", "auto"), CPU, loads=False) == (TORCH, None)
    with pytest.raises(SpsbenchError, match=sentence):
        loading.load_torch(source.target, "auto", CPU, source.vocab_size, "--target")
    assert content(hub) == []


def test_a_folder_of_modelopt_is_refused(hub: Hub) -> None:
    folder = hub.root / "models" / "org/draft"
    modelopt(folder)
    source = pair_of(folder).target
    with pytest.raises(UnavailableError, match="is quantised by modelopt"):
        loading.load_torch(source, "auto", CPU, source.tokenizer.size, "--target")


@pytest.mark.parametrize("method", ["fp8", "compressed-tensors"])
def test_weights_that_would_be_turned_back_into_floats_are_refused_beside_a_gpu_too(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Here transformers would load them for the CPU, or unpack them, and not say so."""
    from transformers.quantizers import AutoHfQuantizer

    class Content(AutoHfQuantizer):
        quantization_config = None

        def validate_environment(self, **_: Any) -> None: ...

    monkeypatch.setattr(AutoHfQuantizer, "merge_quantization_configs", lambda *_: None)
    monkeypatch.setattr(AutoHfQuantizer, "from_config", lambda *_, **__: Content())
    given = SimpleNamespace(quantization_config={})
    with pytest.raises(UsageError, match=f"org/x is quantised by {method}, which cannot run here: transf"):
        require_readable(given, method, CPU, "org/x", "--target")
    require_readable(given, "gptq", CPU, "org/x", "--target")


def test_a_configuration_by_its_hub_id(hub: Hub, forget: Callable[[], None]) -> None:
    asked = ("advise", "--hardware", "h100-sxm", "--alpha", "0.8", "--json")
    shown = call(*asked, "--target", NAMES[0], "--draft", NAMES[1])
    assert shown.code == 0, shown.err
    parameters = json.loads(shown.out)["parameters"]
    assert parameters["target"] > parameters["draft"] > 0
    assert content(hub) == []
    itself = call(*asked, "--target", f"{NAMES[0]}@main/config.json", "--draft", f"{NAMES[1]}/config.json")
    assert (itself.code, json.loads(itself.out)["parameters"]) == (0, parameters)
    missing = call(*asked, "--target", "org/nothing", "--draft", NAMES[1])
    assert missing.code == 3
    assert "--target: no model org/nothing was found on the hub" in missing.err


def test_gated_private_missing_and_without_that_revision(
    hub: Hub, forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(*pair: str, revision: str | None = None) -> str:
        with pytest.raises(SpsbenchError) as caught:
            pair_of(*pair, revision=revision)
        assert caught.value.exit_code == 3
        return str(caught.value)

    hub.set("org/target", gated=True)
    assert "org/target is gated." in refusal(*NAMES)
    hub.set("org/target", private=True)
    forget()
    assert "no model org/target was found on the hub, or it is private." in refusal(*NAMES)
    assert "no model org/nothing was found on the hub" in refusal("org/nothing")
    assert "org/draft has no such revision." in refusal("org/draft", revision="v9")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    forget()
    load()


@pytest.mark.parametrize("etag", ["", "../../out", "/etc/passwd", "ab" * 20 + "/x"])
def test_content_is_named_by_a_hash_and_by_no_path(etag: str) -> None:
    there = downloads.Repository("org/x", "c", {"model.safetensors": downloads.RemoteFile(3, etag)})
    with pytest.raises(UnavailableError, match=r"does not name the content of model\.safetensors of org/x"):
        there.blob("model.safetensors")

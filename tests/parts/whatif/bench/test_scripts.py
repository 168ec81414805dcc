"""The benchmarks that wait for a quiet machine or a GPU run here at small size: every step, no timing."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu, gpu_batches, gpu_street, loop, speed
from benchmarks.pairs import build
from spsbench.engines.cuda_graph import GraphedEngine
from spsbench.engines.local import EagerEngine


@pytest.mark.thorough
def test_the_gpu_script_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "gpu"
    flags = ["--tiny", "--device", "cpu", "--rounds", "2", "--tokens", "12", "--context", "20"]
    monkeypatch.setattr(sys, "argv", ["gpu", *flags, "--minutes", "0", "--out", str(out)])
    assert gpu.main() == 0
    text = (out / "gpu.md").read_text()
    assert "graphed == eager for K = 0, 1, 4" in text
    assert "within 2" in text
    assert "Acceptance is synthetic" in text
    for name in ("ArS eager", "ArS graphed", "ArS hf-generate", "SpS graphed", "SpS hf-assisted"):
        assert f"| {name} |" in text
    assert capsys.readouterr().out == text + "\n"


@pytest.mark.thorough
def test_the_script_of_the_commands_that_people_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--tiny", "--device", "cpu", "--only", "as typed", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["gpu_street", *flags])
    assert gpu_street.main() == 0
    table = (tmp_path / "street.md").read_text()
    assert capsys.readouterr().out == table
    assert "| run, as typed | 0 |" in table
    assert re.findall(r"@ eager, B = 1 \| [\d.]+ \| [\d.]+ \| (\w+)", table) == ["ok", "ok"]
    assert "Lossless" in (tmp_path / "run-as-typed.txt").read_text()


@pytest.mark.thorough
def test_the_script_of_gpu_batches_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "batches.md"
    flags = ["--tiny", "--device", "cpu", "--batches", "1,3", "--rounds", "2", "--tokens", "8"]
    monkeypatch.setattr(sys, "argv", ["gpu_batches", *flags, "--context", "16", "--out", str(out)])
    assert gpu_batches.main() == 0
    text = out.read_text()
    assert "every row == eager for K = 0, 1, 4" in text
    assert "synthetic" in text
    assert re.search(r"^\| 3 \| [\d,]+ \| [\d,]+ \| \d\.\d\dx \[", text, re.MULTILINE)
    assert capsys.readouterr().out == text + "\n"


@pytest.mark.parametrize(("engine", "script"), [(EagerEngine, gpu_batches), (GraphedEngine, gpu)])
def test_it_stops_where_engines_disagree(
    engine: type[EagerEngine | GraphedEngine], script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Any = engine.generate

    def wrong(self: Any, request: object) -> object:
        found = real(self, request)
        found.tokens[-1] += 1
        return found

    monkeypatch.setattr(engine, "generate", wrong)
    with pytest.raises(SystemExit, match="disagree"):
        list(script._agreement(torch.device("cpu")))


def test_the_speed_script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--pair", "tiny", "--rounds", "2", "--tokens", "8", "--context", "16", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["speed", *flags])
    monkeypatch.setattr(
        speed, "time_forwards", lambda model, rows, context, budget_s: _forwards(model, context)
    )
    speed.main()
    said = capsys.readouterr().out
    for what in ("generate() / ours", "assisted / ours", "overhead per loop", "verify t(5)/t(1)"):
        assert what in said


def test_the_speed_script_measures_memory_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--pair", "tiny", "--tokens", "8", "--context", "16", "--threads", "1"]
    flags += ["--memory"]
    monkeypatch.setattr(sys, "argv", ["speed", *flags])
    speed.main()
    said = capsys.readouterr().out
    assert "MiB resident / (" in said
    assert "generate() / ours" not in said


def test_the_loop_script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["loop", "--vocab", "300", "--k", "2", "--loops", "40"])
    loop.main()
    said = capsys.readouterr().out
    assert "K = 2, 1 threads" in said
    for name in ("T .8, top-p .95", "T .8, top-k 50", "T 1", "greedy"):
        assert f"| 300 | {name} |" in said
    assert "| 300 | greedy | 1, 1, 1 |" in said
    assert "| 300 | T 1 | 300, 300, 300 |" in said


def _forwards(model: object, context: int) -> object:
    from spsbench.parts.whatif.bench.forwards import time_forwards

    return time_forwards(model, (1, 5), context, 0.01)  # type: ignore[arg-type]


def test_the_draft_of_random_weights_agrees_with_its_target_by_design() -> None:
    target, draft = build("tiny", torch.float32, torch.device("cpu"))
    with torch.inference_mode():
        tokens = torch.arange(5, 60)
        p, q = (model.score_uncached(tokens).softmax(-1) for model in (draft, target))
        overlap = torch.minimum(p, q).sum(-1).mean()
        stranger = build("tiny", torch.float32, torch.device("cpu"), seed=1)[0]
        chance = torch.minimum(stranger.score_uncached(tokens).softmax(-1), q).sum(-1).mean()
    assert 0.5 < float(overlap) < 0.99
    assert float(chance) < 0.5 * float(overlap)

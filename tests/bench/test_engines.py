"""The interleaved run of several engines, with a worker that counts in the place of engines."""

from __future__ import annotations

import os
import signal
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file

from benchmarks.engines import __main__ as command
from benchmarks.engines.contenders import Contender
from benchmarks.engines.conversion import gguf
from benchmarks.engines.messages import ARS, SPS, Answer, Loaded, Request, Settings, read, written
from benchmarks.engines.openvino_model import _key, restored
from benchmarks.engines.rounds import Measured, Plan, Turn, measure
from benchmarks.engines.serving import until_stop
from benchmarks.engines.table import same_text, table
from benchmarks.engines.worker_process import WorkerFailed, WorkerProcess

FAKE = "benchmarks.engines.workers.fake"
REQUESTS = (Request((1, 10), 8, (14,), ()), Request((1, 20), 6, (14,), ()))
SETTINGS = Settings("target", None, 4, 1, (), 256)


def fake(name: str, **options: object) -> Contender:
    return Contender(name, FAKE, Path(sys.executable), options)


def plan(folder: Path, *, draft: bool = True, rounds: int = 3) -> Plan:
    return Plan(
        folder / "target", folder / "draft" if draft else None, 4, 1, (), REQUESTS, rounds, 1, folder / "logs"
    )


def rows(found: Measured) -> dict[str, dict[str, str]]:
    """Cells by engine and column."""
    drawn = table(found)
    titles = [column.title for column in drawn.columns]
    return {str(row[0]): dict(zip(titles, map(str, row), strict=True)) for row in drawn.rows}  # type: ignore[arg-type, index]


def test_every_engine_answers_in_every_round_and_texts_are_compared(tmp_path: Path) -> None:
    engines = [fake("first"), fake("hides", hides=True), fake("skewed", skew=1)]
    found = measure(plan(tmp_path), engines, lambda text: None)
    assert not found.failed
    seen = sorted((turn.round, turn.engine, turn.method) for turn in found.turns)
    assert seen == sorted((r, e.name, m) for r in range(3) for e in engines for m in (ARS, SPS))
    cells = rows(found)
    assert [cells[name]["texts ="] for name in cells] == ["2 of 2", "2 of 2", "0 of 2"]
    assert [cells[name]["SpS texts ="] for name in cells] == ["2 of 2", "2 of 2", "0 of 2"]


def test_the_table_tells_the_median_over_rounds_of_time_over_decoded_tokens(tmp_path: Path) -> None:
    found = measure(plan(tmp_path), [fake("first")], lambda text: None)
    # The warm-up is the first request of a worker; its n-th takes n ms a token. Texts of 4 and 6 tokens.
    by_round = [(4 * n + 6 * (n + 1)) / 10 for n in (2, 4, 6)]
    told = f"{by_round[1]:.2f} ({by_round[0]:.2f}–{by_round[2]:.2f})"
    cells = rows(found)["first"]
    assert cells["ArS, ms/token"] == told == "4.60 (2.60–6.60)"
    assert cells["SpS, ms/token"] == "2.30 (1.30–3.30)"
    assert cells["ArS / SpS"] == "2.00 (2.00–2.00)"
    assert cells["tokens/loop"] == "2.00"


def test_without_a_draft_there_is_no_sps(tmp_path: Path) -> None:
    found = measure(plan(tmp_path, draft=False, rounds=1), [fake("first")], lambda text: None)
    assert {turn.method for turn in found.turns} == {ARS}
    cells = rows(found)["first"]
    assert cells["ArS, ms/token"] == "2.60"
    assert {cells[title] for title in ("SpS, ms/token", "ArS / SpS", "tokens/loop", "SpS texts =")} == {"–"}


@pytest.mark.parametrize(
    ("fails", "reason"),
    [("load", "no such model"), ("generate", "out of memory"), ("exit", "it ended")],
)
def test_an_engine_that_fails_is_left_out_with_its_reason(tmp_path: Path, fails: str, reason: str) -> None:
    found = measure(plan(tmp_path, rounds=1), [fake("first"), fake("bad", fails=fails)], lambda text: None)
    assert reason in found.failed["bad"]
    assert {turn.engine for turn in found.turns} == {"first"}
    assert list(rows(found)) == ["first"]


def test_one_that_fails_in_a_later_round_loses_all_its_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = WorkerProcess.generate, 0

    def failing(self: WorkerProcess, request: Request) -> Answer:
        nonlocal asked
        asked += 1
        if asked == 8:
            raise WorkerFailed("late")
        return real(self, request)

    monkeypatch.setattr(WorkerProcess, "generate", failing)
    found = measure(plan(tmp_path), [fake("only")], lambda text: None)
    assert found.turns == []
    assert "late" in found.failed["only"]
    assert rows(found) == {}


def state(pid: int) -> str:
    """Of a process, as the kernel tells: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_worker_is_stopped_unless_it_is_measured_and_gone_at_the_end(tmp_path: Path) -> None:
    with WorkerProcess(Path(sys.executable), FAKE, {}, tmp_path / "log") as worker:
        with worker.awake():
            assert worker.load(SETTINGS) == Loaded("1.0")
            assert state(worker.pid) != "T"
            assert worker.generate(REQUESTS[0]).output_ids == (11, 12, 13, 14)
        os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOWAIT)
        assert state(worker.pid) == "T"
    with pytest.raises(ProcessLookupError):
        os.kill(worker.pid, signal.SIGCONT)
    assert "must do no harm" in (tmp_path / "log").read_text()


def test_a_worker_says_what_it_did_not_expect(tmp_path: Path) -> None:
    with WorkerProcess(Path(sys.executable), FAKE, {}, tmp_path / "log") as worker, worker.awake():
        with pytest.raises(WorkerFailed, match="Request is not expected here"):
            worker.generate(REQUESTS[0])
        worker.load(SETTINGS)  # and goes on


@pytest.mark.parametrize("message", [SETTINGS, Loaded("1"), REQUESTS[0], Answer((1, 2), 1.0, 2.0, 1)])
def test_messages_come_back_as_they_were(message: Settings | Loaded | Request | Answer) -> None:
    assert read(written(message)) == message


def test_texts_end_at_the_first_stop_and_a_token_kept_back_is_no_difference() -> None:
    assert until_stop([5, 14, 7], REQUESTS[0]) == (5, 14)
    assert until_stop(list(range(20, 40)), REQUESTS[1]) == tuple(range(20, 26))
    whole = Answer((5, 14), 0.0, 1.0, 1)
    assert same_text(Answer((5,), 0.0, 1.0, 1, hidden_stop=True), whole)
    assert not same_text(Answer((5,), 0.0, 1.0, 1), whole)
    assert Turn("e", ARS, 0, (Answer((5,), 3.0, 0.0, 0),)).ms_per_token is None


def test_our_engine_through_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--prompts", "1", "--rounds", "1", "--warmup", "0", "--max-new-tokens", "6"]
    flags += ["--work", str(tmp_path), "--out", str(tmp_path / "table")]
    monkeypatch.setattr(sys, "argv", ["engines", *flags])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert command.main() == 0
    said = capsys.readouterr().out
    assert said == (tmp_path / "table.md").read_text() + "\n"
    assert "| spsbench eager |" in said
    assert "1 of 1 | 1 of 1 |" in said
    assert "Left out, not given: ort, openvino, vllm, llama." in said
    assert '"ms_per_token"' in (tmp_path / "table.json").read_text()


def test_an_interpreter_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["engines", "--ort", "/no/python"])
    with pytest.raises(SystemExit):
        command.main()
    assert "--ort: /no/python is no file" in capsys.readouterr().err


def test_gguf_is_written_once_with_rotated_heads(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model")
    found = gguf(model, tmp_path / "work")
    content = found.read_bytes()
    assert content[:8] == b"GGUF" + struct.pack("<I", 3)
    assert struct.unpack("<Q", content[8:16])[0] == 11  # tensors: the tied head is not among them
    # Halves become neighbours: the rows of a head of four come as 0, 2, 1, 3.
    rows_of_q = np.frombuffer(content[content.index(marked(0)) :][: 4 * 16], dtype=np.float32).reshape(4, 4)
    assert rows_of_q[:, 0].tolist() == [100.0, 102.0, 101.0, 103.0]
    before = found.stat().st_mtime_ns
    assert gguf(model, tmp_path / "work").stat().st_mtime_ns == before


def test_openvino_gets_the_float32_array_that_a_constant_is_the_rounding_of(tmp_path: Path) -> None:
    exact = np.linspace(0.1, 0.7, 6, dtype=np.float32).reshape(2, 3)
    known = {_key(exact): exact}
    found = restored(exact.astype(np.float16)[None], known)
    assert found.shape == (1, 2, 3)
    assert np.array_equal(found[0], exact)
    assert restored(np.array([-65504], dtype=np.float16), known).dtype == np.float32
    with pytest.raises(ValueError, match="none of the model's weights"):
        restored(np.ones((2, 3), dtype=np.float16), known)


def marked(row: int) -> bytes:
    return np.full(4, 100.0 + row, dtype=np.float32).tobytes()


def tiny_llama(folder: Path) -> Path:
    """One layer, one head of width 4; the rows of its queries are 100, 101, 102, 103."""
    import json

    import torch

    folder.mkdir()
    width = 4
    layer = "model.layers.0."
    matrices = ["k_proj", "v_proj", "o_proj"]
    state = {f"{layer}self_attn.{name}.weight": torch.zeros(width, width) for name in matrices}
    state[f"{layer}self_attn.q_proj.weight"] = torch.arange(100.0, 104.0)[:, None].repeat(1, width)
    state |= {
        f"{layer}mlp.{name}.weight": torch.zeros(width, width)
        for name in ("gate_proj", "up_proj", "down_proj")
    }
    norms = [f"{layer}input_layernorm", f"{layer}post_attention_layernorm", "model.norm"]
    state |= {f"{name}.weight": torch.ones(width) for name in norms}
    state |= {name: torch.zeros(3, width) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    state["lm_head.weight"] = state["lm_head.weight"].clone()
    save_file(state, folder / "model.safetensors")
    config = {"model_type": "llama", "hidden_size": width, "num_attention_heads": 1, "num_key_value_heads": 1}
    config |= {"head_dim": width, "num_hidden_layers": 1, "intermediate_size": width, "vocab_size": 3}
    config |= {"max_position_embeddings": 8, "rms_norm_eps": 1e-6, "eos_token_id": 0, "pad_token_id": 0}
    config |= {"tie_word_embeddings": True, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}
    (folder / "config.json").write_text(json.dumps(config))
    added = [{"content": "<end>", "id": 0, "special": True}]
    tokenizer = {"model": {"vocab": {"a": 1, "b": 2}, "merges": []}, "added_tokens": added}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder

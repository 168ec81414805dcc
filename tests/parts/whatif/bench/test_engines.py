"""The interleaved run of several engines, with a worker that counts in the place of engines."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from benchmarks.engines import __main__ as command
from benchmarks.engines.contenders import from_here, theirs
from benchmarks.engines.rounds import ARS, SPS, Measured, Plan, Turn, measure
from benchmarks.engines.table import same_text, table
from spsbench.base.protocol import LENGTH, STOP, Answer, Ask, Load, PeerError, Sampling
from spsbench.parts.external.registry import PeerKind
from spsbench.parts.external.worker import Worker

GREEDY = Sampling(greedy=True)
REQUESTS = (Ask([1, 10], 8, [14], sampling=GREEDY), Ask([1, 20], 6, [14], sampling=GREEDY))


def fake(name: str, **options: object) -> PeerKind:
    return from_here(name, "fake", options)


def plan(folder: Path, *, draft: bool = True, rounds: int = 3) -> Plan:
    return Plan(
        folder / "target", folder / "draft" if draft else None, 4, 1, REQUESTS, rounds, 1, folder / "logs"
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
    ("fails", "reason"), [("load", "no such model"), ("generate", "out of memory"), ("exit", "it ended")]
)
def test_an_engine_that_fails_is_left_out_with_its_reason(tmp_path: Path, fails: str, reason: str) -> None:
    found = measure(plan(tmp_path, rounds=1), [fake("first"), fake("bad", fails=fails)], lambda text: None)
    assert reason in found.failed["bad"]
    assert {turn.engine for turn in found.turns} == {"first"}
    assert list(rows(found)) == ["first"]


def test_one_that_fails_in_a_later_round_loses_all_its_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = Worker.generate, 0

    def failing(self: Worker, ask: Ask) -> Answer:
        nonlocal asked
        asked += 1
        if asked == 8:
            raise PeerError("late")
        return real(self, ask)

    monkeypatch.setattr(Worker, "generate", failing)
    found = measure(plan(tmp_path), [fake("only")], lambda text: None)
    assert found.turns == []
    assert "late" in found.failed["only"]
    assert rows(found) == {}


def state(pid: int) -> str:
    """Of a process, as the kernel tells: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_worker_is_stopped_unless_it_is_measured_and_gone_at_the_end(tmp_path: Path) -> None:
    worker = fake("fake").open(Load("target", threads=1), tmp_path / "log", True)
    assert isinstance(worker, Worker)
    assert worker.describe().version == "1.0"
    assert worker.generate(REQUESTS[0]).output_ids == [11, 12, 13, 14]
    pid = worker.pid
    assert pid is not None
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    assert state(pid) == "T"
    worker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    assert "must do no harm" in (tmp_path / "log").read_text()


def test_a_token_that_is_kept_back_is_no_difference() -> None:
    whole = Answer([5, 14], STOP, decode_ms=1.0, decoded=1)
    assert same_text(Answer([5], STOP, hidden_stop=True), whole)
    assert not same_text(Answer([5], STOP), whole)
    assert Turn("e", ARS, 0, (Answer([5], LENGTH, decode_ms=3.0, decoded=0),)).ms_per_token is None


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_our_engine_through_the_command(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--prompts", "1", "--rounds", "1", "--warmup", "0", "--max-new-tokens", "6"]
    monkeypatch.setenv("SPSBENCH_CACHE", str(tmp_path / "cache"))
    flags += ["--work", str(tmp_path), "--out", str(tmp_path / "table"), "--dtype", dtype]
    monkeypatch.setattr(sys, "argv", ["engines", *flags])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert command.main() == 0
    said = capsys.readouterr().out
    assert said == (tmp_path / "table.md").read_text() + "\n"
    assert "| spsbench eager |" in said
    assert f"greedy, {dtype}, K = 4" in said
    assert ("torch" in said.split("| spsbench eager |")[1].split("|")[0]) is (dtype == "bfloat16")
    assert "1 of 1 | 1 of 1 |" in said
    assert "Left out, not given: ort, openvino, vllm, llama." in said
    assert '"ms_per_token"' in (tmp_path / "table.json").read_text()


def test_an_environment_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["engines", "--ort", "/no/environment"])
    with pytest.raises(SystemExit):
        command.main()
    assert "--ort: /no/environment is not a folder" in capsys.readouterr().err


def test_a_model_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["engines", "--models", str(tmp_path / "none"), "--work", str(tmp_path)])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert command.main() == 2
    assert f"error: --models: {tmp_path / 'none'}" in capsys.readouterr().err


def test_an_engine_of_others_keeps_its_title(tmp_path: Path) -> None:
    assert theirs("llama-cpp", tmp_path).name == "llama.cpp"

"""What a run draws for its proof alone: counted, bounded, apart from the journal, and not done twice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.commandline import BRIEF, SMALL, call, journal

from spsbench.base.records import Arm, BeamParams, SamplingParams
from spsbench.engines import rescore
from spsbench.report import judgement
from spsbench.runner import proof
from spsbench.runner.proof import PROOF_SAMPLING, proof_arms, proof_prompts

NUCLEUS, GREEDY = SamplingParams(top_p=0.8), SamplingParams(greedy=True)


def told(directory: Path) -> Any:
    return json.loads((directory / "run.json").read_text())["proof"]


def run(directory: Path, *more: str) -> None:
    result = call("run", *BRIEF, *SMALL, "--no-score", "--k", "2,3", *more)
    assert result.code == 0, result.err


def test_each_engine_and_k_is_drawn_from_once() -> None:
    arms = [
        Arm("ars", 0, "eager", "nucleus", NUCLEUS),
        Arm("sps", 4, "eager", "nucleus", NUCLEUS),
        Arm("sps", 4, "eager", "greedy", GREEDY),
        Arm("sps", 7, "graphed", "nucleus", NUCLEUS),
        Arm("sps", 4, "hf-assisted", "nucleus", NUCLEUS),
        Arm("sps", 5, "eager", "beam(2)", SamplingParams(beam=BeamParams(2, 2))),
    ]
    found = proof_arms(arms)
    assert [(arm.engine, arm.k) for arm in found] == [("eager", 4), ("graphed", 7)]
    assert {arm.sampling for arm in found} == {PROOF_SAMPLING}
    assert not PROOF_SAMPLING.greedy
    assert (PROOF_SAMPLING.temperature, PROOF_SAMPLING.top_k, PROOF_SAMPLING.top_p) == (1.0, 0, 1.0)


def test_a_run_draws_a_sequence_a_prompt_and_arm_and_keeps_them_apart(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    run(directory, "--out", str(directory))
    found = told(directory)
    assert [(arm["engine"], arm["k"]) for arm in found["arms"]] == [("eager", 2), ("eager", 3)]
    for arm in found["arms"]:
        assert (arm["sequences"], arm["failed"], arm["rescored"]["sequences"]) == (1, 0, 1)
        assert arm["decisions"]["contradicted"] == 0 < arm["decisions"]["decisions"]
    lines = journal(directory)
    assert {line["arm"] for line in lines} == {"ars-nucleus", "sps-k2-nucleus", "sps-k3-nucleus"}
    assert all(line["losslessness"]["decisions_contradicted"] == 0 for line in lines)
    assert all(line["losslessness"]["decisions"] >= len(line["token_ids"]) for line in lines)
    summary = json.loads((directory / "summary.json").read_text())
    assert [arm["decisions"]["exact"] for arm in summary["losslessness"]["arms"]] == [True] * 3


@pytest.mark.thorough
def test_it_is_drawn_anew_only_where_a_run_grew_or_the_proof_was_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "run"
    run(directory, "--out", str(directory), "--no-proof")
    assert told(directory) == {}
    assert "proof: false" in (directory / "config.yaml").read_text()
    calls: list[int] = []
    real = proof.draw_proof

    def counted(*arguments: Any) -> dict[str, Any]:
        calls.append(1)
        return real(*arguments)

    monkeypatch.setattr(proof, "draw_proof", counted)
    info = json.loads((directory / "run.json").read_text())
    resume = ("run", "--resume", str(directory), "--set", "proof=true")
    assert call(*resume).code == 0
    assert not calls
    (directory / "run.json").write_text(json.dumps(info | {"proof": None}))
    assert call(*resume).code == 0
    assert len(told(directory)["arms"]) == 2
    assert call(*resume).code == 0
    assert len(calls) == 1
    assert call(*resume, "--limit", "2").code == 0
    assert [arm["sequences"] for arm in told(directory)["arms"]] == [2, 2]


@pytest.mark.thorough
def test_a_resumed_run_says_what_an_uninterrupted_one_says_and_the_screen_what_the_report_says(
    tmp_path: Path,
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(whole, "--drafter", "ngram,union:of=lookup+model", "--limit", "2", "--out", str(whole))
    shutil.copytree(whole, cut)
    lines = (whole / "samples.jsonl").read_text().splitlines(keepends=True)
    (cut / "samples.jsonl").write_text("".join(lines[: len(lines) // 2]))
    assert call("run", "--resume", str(cut)).code == 0
    first, second = (json.loads((folder / "summary.json").read_text()) for folder in (whole, cut))
    assert first["losslessness"] == second["losslessness"]
    (said,) = judgement.losslessness(second)
    assert said.startswith("Lossless: ")
    assert said in (cut / "report.md").read_text()


def test_a_proof_that_fails_harms_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> dict[str, Any]:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(proof, "draw_proof", broken)
    run(tmp_path / "run", "--out", str(tmp_path / "run"))
    assert told(tmp_path / "run") == {"error": "RuntimeError: out of memory"}


@pytest.mark.thorough
def test_sequences_that_fail_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = proof.read_again

    def broken(arm: Arm, *rest: Any) -> None:
        if arm.sampling_name == "proof" and arm.k == 2:
            raise ValueError("no rows")
        real(arm, *rest)

    monkeypatch.setattr(proof, "read_again", broken)
    run(tmp_path / "run", "--out", str(tmp_path / "run"))
    arms = told(tmp_path / "run")["arms"]
    assert [(arm["sequences"], arm["failed"]) for arm in arms] == [(0, 1), (1, 0)]
    assert arms[0]["rescored"] is arms[0]["decisions"] is None


@pytest.mark.parametrize(
    ("prompts", "ks", "each"), [(1, 1, 1), (6, 1, 4), (40, 1, 20), (300, 1, 40), (300, 7, 6), (40, 7, 4)]
)
def test_how_many_is_a_matter_of_prompts_and_arms_not_of_time(prompts: int, ks: int, each: int) -> None:
    arms = tuple(Arm("sps", k + 1, "eager", "nucleus", NUCLEUS) for k in range(ks))
    asked = (SimpleNamespace(conversation=None),) * prompts
    plan: Any = SimpleNamespace(arms=arms, prompts=asked, config=SimpleNamespace(proof=True))
    assert len(proof_prompts(plan)) == each
    plan.config.proof = False
    assert proof_prompts(plan) == ()


ASKED = "Tried to allocate 9.00 GiB. GPU 0 has a total capacity of 23.00 GiB"
NO_ROOM = (
    "out of memory: 9.00 GiB more did not fit. "
    "Fewer --max-new-tokens or a smaller --batch leaves room for it."
)


def test_what_was_measured_stays_where_reading_again_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The times stand, the sequence is counted, and nothing is called lossless."""
    real = rescore.readings
    due = [RuntimeError("no rows\nmore lines"), torch.OutOfMemoryError("CUDA out of memory. " + ASKED)]

    def fails_twice(*arguments: Any, **options: Any) -> Any:
        for part in real(*arguments, **options):
            yield part
            if due:  # in the middle of a text
                raise due.pop(0)

    monkeypatch.setattr(rescore, "readings", fails_twice)
    directory = tmp_path / "run"
    result = call("run", *BRIEF, *SMALL, "--no-score", "--k", "2", "--out", str(directory))
    assert result.code == 0, result.err
    lines = journal(directory)
    unread = [line for line in lines if line.get("unread")]
    assert [line["unread"] for line in unread] == ["RuntimeError: no rows", NO_ROOM]
    assert all(line["token_ids"] and line["decode_s"] > 0 and line["error"] is None for line in unread)
    arms = json.loads((directory / "summary.json").read_text())["losslessness"]["arms"]
    assert sum(arm["unread"] for arm in arms) == 2
    assert not all(arm["decisions"]["exact"] for arm in arms)
    assert "2 sequences could not be read again: their times count" in " ".join(result.out.split())

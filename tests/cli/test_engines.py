"""Engines side by side in one run."""

from __future__ import annotations

import json
from pathlib import Path

from support.commandline import BRIEF, SMALL, Cli


def test_peers_are_measured_like_arms(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    engines = "eager,hf-generate,hf-assisted"
    result = cli("run", *BRIEF, *SMALL, "--engine", engines, "--sampling", "greedy", "--json", "--out", run)
    assert result.code == 0, result.err
    rows = {row["arm"]: row for row in json.loads(result.out)["rows"]}
    assert list(rows) == [
        "ars-greedy",
        "ars-greedy@hf-generate",
        "sps-k4-greedy",
        "sps-k4-greedy@hf-assisted",
    ]
    assert len({row["metrics"]["rouge2"] for row in rows.values()}) == 1
    assisted = rows["sps-k4-greedy@hf-assisted"]
    assert assisted["baseline"].startswith("ars-greedy")
    assert assisted["verification_rule"].startswith("transformers")
    assert assisted["target_mode"] == "stock"
    assert assisted["acceptance"]["alpha_beta"] is None
    assert assisted["acceptance"]["mean_acceptance_length"] >= 1
    journal = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    assert len({tuple(line["token_ids"]) for line in journal}) == 1
    assert all("rescored_positions" in line["losslessness"] for line in journal)


def test_without_cuda_a_graphed_arm_runs_eagerly_and_says_so(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = cli("run", *BRIEF, *SMALL, "--engine", "graphed", "--json", "--out", run)
    assert result.code == 0, result.err
    reason = "sps-k4-nucleus@graphed runs with the engine eager: CUDA graphs need a CUDA device."
    assert reason in " ".join(result.err.split())
    summary = json.loads(result.out)
    assert {row["engine"] for row in summary["rows"]} == {"eager"}
    assert any("ran with the engine eager" in warning for warning in summary["warnings"])
    told = json.loads((run / "run.json").read_text())
    assert set(told["engine_fallbacks"]) == {"ars-nucleus@graphed", "sps-k4-nucleus@graphed"}
    assert set(told["target_mode"].values()) <= {"onnxruntime"}

"""``spsbench export``: the files that other harnesses read."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support.commandline import ALONE, SMALL, Result, call, journal

ASKED = {"doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"}
"""What readers of lm-eval's samples ask for, beside the hashes and the scores."""

REQUIRED = {"schema_version", "evaluation_id", "retrieved_timestamp", "source_metadata", "model_info"}
REQUIRED |= {"eval_library", "evaluation_results"}
"""What a record of Every Eval Ever must have (0.3.0)."""


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of programs, two samples each, judged without a sandbox's isolation."""
    run = tmp_path_factory.mktemp("programs") / "run"
    asked = ("--k", "2", *SMALL, "--samples", "2", "--no-proof", "--tag", "organisation=us")
    done = call("run", "humaneval", *asked, "--unsafe-exec", "--out", run)
    assert done.code == 0, done.err
    return run


def test_lm_eval_has_a_line_for_each_prompt(finished: tuple[Path, Result], tmp_path: Path) -> None:
    made = call("export", finished[0], "--to", "lm-eval", "--out", tmp_path, "--json")
    assert made.code == 0, made.err
    paths = [Path(path) for path in json.loads(made.out)["files"]]
    assert [path.name.split("_")[1] for path in paths] == ["xsum-ars-nucleus", "xsum-sps-k4-nucleus"]
    stored = lines(finished[0] / "samples.jsonl")
    for path, arm in zip(paths, ("ars-nucleus", "sps-k4-nucleus"), strict=True):
        found = lines(path)
        texts = {row["example_id"]: row["text"] for row in stored if row["arm"] == arm}
        assert [row["doc_id"] for row in found] == list(range(len(texts)))
        for row in found:
            assert row.keys() >= ASKED
            assert row["resps"] == [[texts[row["doc"]["id"]]]]
            assert row["prompt_hash"] == sha256(row["arguments"]["gen_args_0"]["arg_0"].encode()).hexdigest()
            assert set(row["metrics"]) <= row.keys()
            assert "rouge2" in row["metrics"]


def test_samples_of_a_prompt_stand_in_one_line(programs: Path, tmp_path: Path) -> None:
    assert call("export", programs, "--to", "lm-eval", "--out", tmp_path).code == 0
    for path in tmp_path.iterdir():
        for row in lines(path):
            assert len(row["resps"][0]) == 2
            assert row["passed"] in (0.0, 0.5, 1.0)


def test_a_later_turn_stands_behind_the_arms_own_answer(tmp_path: Path) -> None:
    run = tmp_path / "run"
    flags = ("--limit", "2", "--samples", "2", "--sampling", "temperature1", "--max-new-tokens", "8")
    assert call("run", "mt-bench", *flags, *ALONE, "--remeasure", "0", "--out", run).code == 0
    assert call("export", run, "--to", "lm-eval", "--out", tmp_path / "out", "--quiet").code == 0
    prompts = {row["example_id"]: row["prompt"] for row in lines(run / "prompts.jsonl")}
    for arm in ("ars-temperature1", "sps-k4-temperature1"):
        (path,) = (tmp_path / "out").glob(f"*{arm}_*")
        found = [(one["doc"]["id"], one["doc"]["prompt"], one["resps"][0]) for one in lines(path)]
        own = {
            (row["example_id"], row["sample_index"]): row["text"] for row in journal(run) if row["arm"] == arm
        }
        expected = []
        for first in (name for name in prompts if "/" not in name):
            expected.append((first, prompts[first], [own[first, 0], own[first, 1]]))
            later = f"{first}/2"
            for index in (0, 1):
                said = f"{prompts[first]}{own[first, index]}\n{prompts[later]}"
                expected.append((later, said, [own[later, index]]))
        assert found == expected


def test_a_record_holds_what_the_schema_asks_for(programs: Path, tmp_path: Path) -> None:
    made = call("export", programs, "--to", "every-eval-ever", "--out", tmp_path, "--json")
    assert made.code == 0, made.err
    found = json.loads(made.out)
    assert found["left_out"] == []
    records = [Path(path) for path in found["files"] if path.endswith(".json")]
    assert len(records) == 2
    for path in records:
        record = json.loads(path.read_text())
        assert record.keys() >= REQUIRED
        assert record["source_metadata"]["source_organization_name"] == "us"
        assert record["model_info"]["additional_details"].keys() >= {"deployment_type", "model_availability"}
        (result,) = (row for row in record["evaluation_results"] if row["evaluation_name"].endswith("pass@1"))
        assert 0 <= result["score_details"]["score"] <= 1
        assert result["source_data"]["additional_details"]["synthetic"] == "true"
        told = record["detailed_evaluation_results"]
        samples = tmp_path / told["file_path"]
        assert told["checksum"] == sha256(samples.read_bytes()).hexdigest()
        rows = lines(samples)
        assert told["total_rows"] == len(rows)
        assert {row["evaluation_id"] for row in rows} == {record["evaluation_id"]}
        assert all(row["evaluation"]["is_correct"] == (row["evaluation"]["score"] == 1) for row in rows)
        mean = sum(row["evaluation"]["score"] for row in rows) / len(rows)
        assert result["score_details"]["score"] == pytest.approx(mean)


def test_samples_that_nothing_calls_right_are_left_out_and_named(
    finished: tuple[Path, Result], tmp_path: Path
) -> None:
    made = call("export", finished[0], "--to", "every-eval-ever", "--out", tmp_path)
    assert made.code == 0
    assert made.err.count("which no metric marks right or wrong") == 2
    assert not list(tmp_path.rglob("*.jsonl"))


def test_the_same_run_has_the_same_places(programs: Path, tmp_path: Path) -> None:
    for name in "ab":
        assert call("export", programs, "--to", "every-eval-ever", "--out", tmp_path / name).code == 0
    first, second = (
        sorted(path.relative_to(tmp_path / name) for path in (tmp_path / name).rglob("*.*")) for name in "ab"
    )
    assert first == second


def test_an_unknown_format_and_an_unfinished_run_are_refused(
    finished: tuple[Path, Result], tmp_path: Path
) -> None:
    refused = call("export", finished[0], "--to", "lm_eval")
    assert refused.code == 2
    assert "Did you mean lm-eval?" in refused.err
    missing = call("export", tmp_path, "--to", "lm-eval")
    assert missing.code == 2
    assert "is not a run directory" in missing.err

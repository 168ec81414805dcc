"""The evidence of each token of whole runs: every arm and engine, failures, and runs that go on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from support.commandline import BRIEF, SMALL, call

from spsbench.base.records import Arm, SamplingParams
from spsbench.config import resolve
from spsbench.config.models import TORCH
from spsbench.law.rederive import own_law
from spsbench.models.pair import Pair, find_pair, load_pair
from spsbench.runner import proof
from spsbench.store import Frames, read_frames

KEY = ["example_id", "sample_index", "arm"]
VALUES = ["log_target", "log_draft", "draft_rank", "draft_max", "draft_entropy"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of every method, two samplings and two engines of others; not to be changed."""
    directory = tmp_path_factory.mktemp("evidence") / "run"
    what = (
        "--arms",
        "ars,sps,draft",
        "--sampling",
        "nucleus,greedy",
        "--engine",
        "eager,hf-assisted,hf-prompt-lookup",
    )
    result = call("run", "xsum", *BRIEF, *SMALL, *what, "--no-score", "--no-proof", "--out", directory)
    assert result.code == 0, result.err
    return directory


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair(find_pair(resolve({}).pair), ("float32", "float32"), torch.device("cpu"), TORCH)


def sampling_of(directory: Path, name: str) -> SamplingParams:
    """How the rows of a sampling's arms were warped."""
    arms = json.loads((directory / "run.json").read_text())["identity"]["arms"]
    return next(SamplingParams(**arm["sampling"]) for arm in arms if arm["sampling_name"] == name)


def again(pair: Pair, prompt: list[int], sample: Any, sampling: SamplingParams) -> pd.DataFrame:
    """The values of one sequence from rows in float64 and the second way to warp."""
    ids = torch.tensor([*prompt, *sample.token_ids])
    own = ids[len(prompt) :, None]
    raw = {
        name: getattr(pair, name).score_uncached(ids[:-1])[len(prompt) - 1 :] for name in ("target", "draft")
    }
    laws = {name: own_law(rows, sampling, 0.0).probs for name, rows in raw.items()}
    target = laws["draft" if sample.method == "draft" else "target"]
    ahead = raw["draft"].sort(dim=-1, descending=True, stable=True).indices
    columns = {
        "log_target": target.gather(-1, own).log(),
        "log_draft": laws["draft"].gather(-1, own).log(),
        "draft_rank": (ahead == own).long().argmax(-1),
        "draft_max": laws["draft"].max(-1).values,
        "draft_entropy": torch.special.entr(laws["draft"]).sum(-1),
    }
    return pd.DataFrame({name: values.reshape(-1).double().numpy() for name, values in columns.items()})


def by_sample(frames: Frames) -> dict[Any, pd.DataFrame]:
    return {key: rows.reset_index(drop=True) for key, rows in frames.evidence.groupby(KEY, sort=False)}


@torch.inference_mode()
def test_every_arm_and_engine_is_read_again_token_by_token(finished: Path, pair: Pair) -> None:
    frames = read_frames(finished)
    prompts = [json.loads(line) for line in (finished / "prompts.jsonl").read_text().splitlines()]
    ids = {row["example_id"]: row["prompt_ids"] for row in prompts}
    found = by_sample(frames)
    assert len(found) == len(frames.samples)
    assert set(frames.arms["method"]) == {"ars", "sps", "draft"}
    assert set(frames.arms["engine"]) == {"eager", "hf-assisted", "hf-prompt-lookup"}
    for sample in frames.samples.merge(frames.arms, on="arm").itertuples():
        rows = found[sample.example_id, sample.sample_index, sample.arm]
        assert list(rows["token_id"]) == sample.token_ids
        assert list(rows["position"]) == list(range(len(sample.token_ids)))
        due = again(pair, ids[sample.example_id], sample, sampling_of(finished, sample.sampling))
        pd.testing.assert_frame_equal(rows[VALUES].astype("float64"), due, rtol=1e-4, atol=1e-5)


def test_what_an_arm_emitted_is_possible_under_its_own_law(finished: Path) -> None:
    rows = read_frames(finished).evidence
    assert (rows["log_target"] > -math.inf).all()
    drafts = rows[rows["arm"].str.startswith("draft")]
    assert len(drafts) > 0
    assert (drafts["log_target"] == drafts["log_draft"]).all()
    greedy = rows[rows["arm"].str.contains("greedy")]
    assert (greedy["log_target"] == 0).all()
    assert ((greedy["log_draft"] == 0) == (greedy["draft_rank"] == 0)).all()
    # The target says what its draft would not: that is there too, and is no NaN.
    assert (rows["log_draft"] == -math.inf).any()
    assert rows[VALUES].notna().all().all()


@pytest.mark.thorough
def test_a_sequence_that_could_not_be_read_again_has_none_and_keeps_its_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no failure: resuming measures nothing anew."""
    real = proof.read_again

    def broken(arm: Arm, *rest: Any) -> None:
        if "sps" in arm.name:
            raise RuntimeError("out of memory")
        real(arm, *rest)

    directory = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(proof, "read_again", broken)
        assert call("run", "xsum", *BRIEF, *SMALL, "--no-score", "--no-proof", "--out", directory).code == 0
    text = (directory / "samples.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert {line["arm"][:3]: line["token_evidence"] is None for line in lines} == {"ars": False, "sps": True}
    assert {line["arm"][:3]: line.get("unread") for line in lines} == {
        "ars": None,
        "sps": "RuntimeError: out of memory",
    }
    assert all(line["decode_s"] > 0 and line["error"] is None for line in lines)
    assert set(read_frames(directory).evidence["arm"]) == {"ars-nucleus"}
    assert call("run", "--resume", directory).code == 0
    assert (directory / "samples.jsonl").read_text() == text

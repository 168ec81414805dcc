"""The token ids that a run writes: they change with the paper's algorithm and with nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commandline import BRIEF, call
from support.tiny_heads import save_head
from syrupy.assertion import SnapshotAssertion
from transformers import AutoModelForCausalLM

from spsbench.base.paths import mini_dir
from spsbench.models.torch_lm import TorchLM

TINY = ("--threads", "1", "--no-score", "--no-proof", "--set", "warmup=false", "--quiet", "--json")
XSUM = ("xsum", *BRIEF, "--limit", "3", "--max-new-tokens", "24")
LAYER = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 32}

RUNS = {
    "nucleus": (*XSUM, "--k", "4"),
    "greedy": (*XSUM, "--k", "4", "--sampling", "greedy"),
    "top-p-1": (*XSUM, "--k", "2", "--top-p", "1", "--temperature", "1.2"),
    "top-k": (*XSUM, "--k", "3", "--top-p", "1", "--top-k", "5"),
    "humaneval": ("humaneval", "--limit", "2", "--max-new-tokens", "24", "--k", "4"),
    "mini-t5": ("--pair", "mini-t5", "--limit", "3", "--max-new-tokens", "16", "--k", "2"),
    "lookup": (*XSUM, "--k", "4", "--drafter", "lookup"),
    "suffix": (*XSUM, "--k", "4", "--drafter", "suffix"),
    "ngram": (*XSUM, "--k", "4", "--drafter", "ngram"),
    "union": (*XSUM, "--k", "4", "--drafter", "union"),
    "heads": (*XSUM, "--k", "2", "--drafter", "heads:from=head"),
    # Products of rounded weights differ in their last bits from CPU to CPU: so do drafts and the texts
    # that are sampled with them, but not greedy ones.
    "quantised": (*XSUM, "--k", "4", "--drafter", "quantised", "--sampling", "greedy"),
    "adaptive": (*XSUM, "--k", "6,adaptive"),
    "batch": (*XSUM, "--limit", "8", "--k", "3", "--batch", "1,4"),
    "beam": (*XSUM, "--k", "3", "--sampling", "beam:width=3"),
    "torch": (*XSUM, "--k", "4", "--backend", "torch"),
}


def tokens(arguments: tuple[object, ...], out: Path) -> str:
    done = call("run", *arguments, *TINY, "--out", out)
    assert done.code == 0, done.err
    return str(json.loads(done.out)["token_sha256"])


@pytest.mark.parametrize("name", RUNS)
def test_tokens_of(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.chdir(tmp_path)
    if name == "heads":
        target = TorchLM(AutoModelForCausalLM.from_pretrained(mini_dir() / "target"))
        save_head(tmp_path / "head", target, "eagle", scale=0.02, config=LAYER)
    assert tokens(RUNS[name], tmp_path / "run") == snapshot


def test_shards_that_are_merged_hold_the_tokens_of_one_run(tmp_path: Path) -> None:
    for part in ("1/2", "2/2"):
        tokens((*RUNS["nucleus"], "--shard", part), tmp_path / part[0])
    done = call("merge", tmp_path / "1", tmp_path / "2", "--out", tmp_path / "merged", "--json")
    assert json.loads(done.out)["token_sha256"] == tokens(RUNS["nucleus"], tmp_path / "whole")

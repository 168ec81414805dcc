"""Every command that computes with models, on a CUDA device (an emulated one): as on the CPU."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from commandline import BRIEF, Cli, journal
from support.device import Device, emulated

pytestmark = [pytest.mark.usefixtures("quick_rehearsals"), pytest.mark.thorough]

SHORT = (*BRIEF, "--limit", "2", "--max-new-tokens", "6", "--threads", "1", "--no-score")
ONCE = ("--set", "warmup=false", "--remeasure", "0", "--quiet")
TREES = ("--tree", "2,1+dynamic:4", "--drafter", "model,suffix,lookup", "--k", "2")

RUNS: dict[str, Sequence[str]] = {
    "drafters": ("--drafter", "model,lookup,suffix,bigram,early-exit,union", "--k", "3"),
    "rules": ("--rule", "sample-and-compare,block,lenience,typical-acceptance"),
    "policies": ("--policy", "stop-below,entropy,momentum"),
    "trees": (*TREES, "--rule", "recursive-rejection,traversal,one-hot,k-seq"),
    "beams": ("--sampling", "beam", "--beams", "2"),
    "batches": ("--batch", "1,2", "--drafter", "model,lookup"),
    "engines": ("--engine", "eager,graphed,hf-generate,hf-assisted,hf-prompt-lookup"),
    "graphed batches": ("--engine", "graphed", "--batch", "2", "--k", "0,1,4"),
    "processors": ("--min-p", "0.02", "--repetition-penalty", "1.2", "--min-new-tokens", "3"),
    "the draft alone": ("--arms", "ars,sps,draft", "--sampling", "nucleus,greedy"),
}


def made(cli: Cli, folder: Path, command: Sequence[Any], device: str, dtype: str) -> Path:
    """The run of a command on a device, in which nothing failed."""
    out = folder / f"{device}-{dtype}"
    machine = ("--backend", "torch", "--device", device, "--dtype", dtype)
    result = cli(*command, *SHORT, *ONCE, *machine, "--out", out)
    assert result.code == 0, result.err
    return out


def tokens(run: Path) -> dict[tuple[str, str, int], list[int]]:
    rows = journal(run)
    assert not [row["error"] for row in rows if row["error"] is not None]
    return {(row["arm"], row["example_id"], row["sample_index"]): row["token_ids"] for row in rows}


def on_both(cli: Cli, folder: Path, command: Sequence[Any], dtype: str) -> tuple[Path, Device]:
    """The run on the device, whose tokens are those of the CPU."""
    reference = made(cli, folder, command, "cpu", dtype)
    with emulated() as device:
        run = made(cli, folder, command, "cuda", dtype)
    found, expected = tokens(run), tokens(reference)
    assert found.keys() == expected.keys()
    assert found == expected
    assert device.counts.waits
    return run, device


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", RUNS)
def test_a_run_gives_the_tokens_of_the_cpu(cli: Cli, tmp_path: Path, name: str, dtype: str) -> None:
    run, _ = on_both(cli, tmp_path, ("run", "xsum", *RUNS[name], "--no-proof"), dtype)
    assert not json.loads((run / "run.json").read_text())["engine_fallbacks"]


def lossless(run: Path) -> Any:
    return json.loads((run / "summary.json").read_text())["losslessness"]["verdict"]


def test_a_small_run_is_that_of_the_cpu_in_graphs_too(cli: Cli, tmp_path: Path) -> None:
    command = ("run", "xsum", "--engine", "eager,graphed", "--k", "2", "--limit", "1")
    run, device = on_both(cli, tmp_path, command, "float32")
    assert not json.loads((run / "run.json").read_text())["engine_fallbacks"]
    assert lossless(run) == "ok"
    arms = {arm for arm, *_ in tokens(run)}
    assert arms == {
        f"{arm}{engine}" for arm in ("ars-nucleus", "sps-k2-nucleus") for engine in ("", "@graphed")
    }
    assert device.capturing is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sweep_is_proven_reported_compared_and_replayed(cli: Cli, tmp_path: Path, dtype: str) -> None:
    with emulated():
        sweep = made(
            cli, tmp_path, ("sweep-k", "xsum", "--k", "0,2", "--engine", "eager,graphed"), "cuda", dtype
        )
        assert lossless(sweep) == "ok"
        for command in (("report", sweep), ("compare", sweep, sweep)):
            shown = cli(*command)
            assert shown.code == 0, shown.err
        asked = ("--drafter", "model,lookup,early-exit", "--k", "1,2", "--budget", "0.1")
        result = cli("replay", sweep, *asked, "--threads", "1", "--json", "--quiet")
    assert result.code == 0, result.err
    assert len(json.loads(result.out)["cells"]) == 6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_forwards_are_timed_and_a_prompt_is_traced(cli: Cli, dtype: str) -> None:
    machine = ("--device", "cuda", "--dtype", dtype, "--threads", "1")
    with emulated():
        asked = ("--k", "2", "--alpha", "0.8", "--batch", "1,2", "--seconds", "0.1", "--context", "16")
        timed = cli("bench", *asked, *machine, "--json")
        traced = cli("trace", "A council met.", "--k", "3", "--max-new-tokens", "8", *machine)
    assert timed.code == traced.code == 0, timed.err + traced.err
    assert json.loads(timed.out)["forwards"]["target"]
    assert re.search(r"\d tokens in \d+ loops", traced.out)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_advice_is_given(cli: Cli, tmp_path: Path, dtype: str) -> None:
    """With every drafter that suits: one that the device's backend cannot run is not offered."""
    short = (*BRIEF, "--limit", "4", "--max-new-tokens", "8", "--budget", "0.1", "--k", "2", "--threads", "1")
    with emulated():
        machine = ("--device", "cuda", "--dtype", dtype)
        result = cli("advise", "xsum", *short, *machine, "--json", "--out", tmp_path / "advice")
    assert result.code == 0, result.err
    assert json.loads(result.out)


def test_text_of_the_cpu_is_audited(cli: Cli, tmp_path: Path) -> None:
    run = made(
        cli, tmp_path, ("run", "xsum", "--arms", "ars", "--no-proof", "--temperature", "1"), "cpu", "float32"
    )
    texts = tmp_path / "texts.jsonl"
    rows = [{"prompt": "A council met.", "text": row["text"]} for row in journal(run)]
    texts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with emulated():
        result = cli("audit", texts, "--device", "cuda", "--dtype", "float32", "--json")
    assert result.code in (0, 4), result.err
    assert json.loads(result.out)["texts"] == len(rows)

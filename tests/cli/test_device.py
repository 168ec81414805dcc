"""Every command that computes with models, on a CUDA device (an emulated one): as on the CPU."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.commandline import BRIEF, Cli, journal
from support.device import Device, emulated

pytestmark = [pytest.mark.usefixtures("quick_rehearsals"), pytest.mark.thorough]

SHORT = (*BRIEF, "--limit", "2", "--max-new-tokens", "5", "--threads", "1", "--no-score")
ONCE = ("--set", "warmup=false", "--remeasure", "0", "--quiet")
RUNS: dict[str, Sequence[str]] = {
    "drafters": ("--drafter", "model,lookup,suffix,bigram,early-exit,union", "--k", "3"),
    "batches": ("--batch", "1,2", "--drafter", "model,lookup"),
    "engines": ("--engine", "eager,graphed,hf-generate,hf-assisted,hf-prompt-lookup"),
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


@pytest.mark.parametrize(("name", "dtype"), [*((name, "float32") for name in RUNS), ("drafters", "bfloat16")])
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
def test_a_sweep_is_proven_reported_and_compared(cli: Cli, tmp_path: Path, dtype: str) -> None:
    with emulated():
        sweep = made(
            cli, tmp_path, ("sweep-k", "xsum", "--k", "0,2", "--engine", "eager,graphed"), "cuda", dtype
        )
        assert lossless(sweep) == "ok"
        for command in (("report", sweep), ("compare", sweep, sweep)):
            shown = cli(*command)
            assert shown.code == 0, shown.err


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_forwards_of_a_configuration_are_timed(cli: Cli, tmp_path: Path, dtype: str) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 300} | sizes
    (tmp_path / "config.json").write_text(json.dumps(config))
    models = ("--target", tmp_path / "config.json", "--draft", tmp_path / "config.json")
    asked = ("--k", "2", "--seconds", "0.1", "--context", "16", "--threads", "1")
    with emulated():
        result = cli("bench", *models, *asked, "--device", "cuda", "--dtype", dtype, "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["forwards"]["target"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_prompt_is_traced(cli: Cli, dtype: str) -> None:
    machine = ("--device", "cuda", "--dtype", dtype, "--threads", "1")
    with emulated():
        result = cli("trace", "A council met.", "--k", "3", "--max-new-tokens", "8", *machine)
    assert result.code == 0, result.err
    assert re.search(r"\d tokens in \d+ loops", result.out)

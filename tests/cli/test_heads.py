"""``--drafter heads`` from the command line: both kinds are measured and tested, others are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from support.commandline import BRIEF, SMALL, Cli
from support.tiny_heads import save_head
from support.tiny_models import config_of, make
from transformers import AutoModelForCausalLM

from spsbench.base.paths import mini_dir
from spsbench.models.torch_lm import TorchLM
from spsbench.parts.verify import effort
from spsbench.parts.verify.effort import Effort

TINY = Effort(draws=60, end_to_end=10, contexts=1, prompts=2, outputs=1)
LAYER = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 32}
ONE = ("--threads", "1", "--k", "2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of both kinds for the embedded target, and one for another model."""
    whole = tmp_path_factory.mktemp("heads")
    target = TorchLM(AutoModelForCausalLM.from_pretrained(mini_dir() / "target", dtype=torch.float32))
    for kind in ("eagle", "medusa"):
        save_head(whole / kind, target, kind, scale=0.02, config=LAYER)
    save_head(whole / "other", TorchLM(make(config_of("llama"))))
    return whole


@pytest.mark.thorough
def test_both_kinds_are_measured_beside_the_draft_model(cli: Cli, folder: Path, tmp_path: Path) -> None:
    drafters = [f"heads:from={folder / kind}" for kind in ("eagle", "medusa")]
    flags = ("--drafter", ",".join(["model", *drafters]), "--sampling", "nucleus,greedy", "--json")
    result = cli("run", *BRIEF, *SMALL, *ONE, *flags, "--out", tmp_path / "run")
    assert result.code == 0, result.err
    summary = json.loads(result.out)
    rows = [row for row in summary["rows"] if row["method"] == "sps"]
    assert {row["drafter"] for row in rows} == {"model", *drafters}
    assert all(row["draft_forwards"] == (2 if row["drafter"] == "model" else 0) for row in rows)
    lines = [json.loads(line) for line in (tmp_path / "run/samples.jsonl").read_text().splitlines()]
    assert not any(line["error"] for line in lines)
    greedy = {tuple(line["token_ids"]) for line in lines if "greedy" in line["arm"]}
    assert len(greedy) == len({line["example_id"] for line in lines})
    with_heads = [arm for arm in summary["prediction"]["arms"] if arm["drafter"] in drafters]
    assert all(arm["c_source"] == "loops" and 0 < arm["c"] < 20 for arm in with_heads)


@pytest.mark.thorough
def test_a_run_is_not_continued_with_another_head(cli: Cli, folder: Path, tmp_path: Path) -> None:
    head = tmp_path / "head"
    shutil.copytree(folder / "medusa", head)
    given = ("run", *BRIEF, *SMALL, *ONE, "--drafter", f"heads:from={head}", "--no-score")
    assert cli(*given, "--out", tmp_path / "run").code == 0
    assert cli(*given, "--resume", tmp_path / "run").code == 0
    weights = head / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
    result = cli(*given, "--resume", tmp_path / "run")
    assert result.code == 2
    assert "drafter_files" in result.err


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_both_kinds_pass_every_test_that_can_be_asked(
    cli: Cli, folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(effort.EFFORTS, "full", TINY)
    drafter = f"heads:from={folder / kind}"
    result = cli("verify", "--drafter", drafter, *ONE, "--sampling", "nucleus", "--top-p", "1", "--json")
    assert result.code == 0, result.err
    (found,) = json.loads(result.out)["findings"].values()
    verdicts = {finding["test"]: finding["verdict"] for finding in found}
    assert verdicts.pop("enumeration") == verdicts.pop("clock") == "skipped"
    assert {"contract", "analytic", "sampling", "end to end", "outputs"} <= verdicts.keys()
    assert set(verdicts.values()) == {"ok"}


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("heads", 2, "was made for package:smollm2"),
        ("heads:from=nowhere", 3, "nowhere is not a trained draft"),
        ("heads:from=FOLDER/other", 2, "was made for tiny"),
        ("union:of=lookup+heads", 2, "was made for package:smollm2"),
    ],
)
def test_what_does_not_fit_is_refused(cli: Cli, folder: Path, name: str, code: int, said: str) -> None:
    drafter = name.replace("FOLDER", str(folder))
    result = cli("run", *SMALL, *ONE, "--drafter", drafter, "--no-score")
    assert result.code == code
    assert said in " ".join(result.err.split())
    assert "Traceback" not in result.err

"""``spsbench replay``: what a run of the same arms gives, without running them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from commandline import Cli
from tiny_heads import save_head
from transformers import AutoModelForCausalLM

from spsbench.models.torch_lm import TorchLM
from spsbench.paths import mini_dir

ALONE = ("--threads", "1", "--no-score", "--no-proof", "--set", "warmup=false", "--quiet")
DRAFTERS = "model,lookup,union,bigram"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ArS and several drafters on some prompts, under the law that leaves most to chance."""
    from commandline import call

    run = tmp_path_factory.mktemp("replay") / "run"
    asked = ("run", "xsum", "--limit", "12", "--k", "2,5", "--drafter", DRAFTERS, "--top-p", "1")
    done = call(*asked, *ALONE, "--out", run)
    assert done.code == 0, done.err
    return run


def test_tokens_per_loop_are_those_of_the_arms_that_were_run(cli: Cli, measured: Path) -> None:
    asked = ("--drafter", DRAFTERS, "--k", "2,5", "--budget", "0", "--threads", "1", "--json", "--quiet")
    result = cli("replay", measured, *asked)
    assert result.code == 0, result.err
    facts = json.loads(result.out)
    assert facts["tokens"] > 400
    assert len(facts["cells"]) == 8
    for cell in facts["cells"]:
        found, ran = cell["tokens_per_loop"], cell["measured_tokens_per_loop"]
        # Other texts of the same law: each has an interval of about this width of its own.
        width = found["high"] - found["low"]
        assert found["low"] - width < ran < found["high"] + width, cell
        assert cell["r_prime"] == pytest.approx(found["estimate"] / (cell["k"] + 1))
        assert sum(cell["emitted"]) == pytest.approx(1.0)
        assert cell["loops"]["p50"] <= cell["loops"]["p90"] <= cell["loops"]["p99"]
        assert cell["predicted"] is None


def test_another_temperature_for_the_texts_does_not_fit(cli: Cli, measured: Path, tmp_path: Path) -> None:
    """The control: texts of another law than is said are noticed."""
    path = measured / "run.json"
    told = json.loads(path.read_text())
    other = tmp_path / "run"
    other.mkdir()
    for file in measured.iterdir():
        if file.is_file():
            (other / file.name).write_bytes(file.read_bytes())
    for arm in told["arms"]:
        arm["params"]["temperature"] = 0.5
    (other / "run.json").write_text(json.dumps(told))
    result = cli("replay", other, "--k", "5", "--budget", "0", "--threads", "1")
    assert result.code == 2
    assert "do not fit this target under this sampling" in " ".join(result.err.split())


def test_heads_are_replayed_from_where_each_loop_begins(cli: Cli, measured: Path, tmp_path: Path) -> None:
    target = TorchLM(AutoModelForCausalLM.from_pretrained(mini_dir() / "target", dtype=torch.float32))
    layer = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 32}
    for kind in ("eagle", "medusa"):
        save_head(tmp_path / kind, target, kind, scale=0.02, config=layer)
    names = [f"heads:from={tmp_path / kind}" for kind in ("eagle", "medusa")]
    asked = ("--drafter", ",".join(names), "--k", "3", "--budget", "0", "--threads", "1", "--json", "--quiet")
    result = cli("replay", measured, *asked)
    assert result.code == 0, result.err
    run = ("run", "xsum", "--limit", "12", "--k", "3", "--drafter", ",".join(names), "--top-p", "1")
    ran = cli(*run, *ALONE, "--out", tmp_path / "run", "--json")
    assert ran.code == 0, ran.err
    rows = {row["drafter"]: row for row in json.loads(ran.out)["rows"] if row["method"] == "sps"}
    for cell in json.loads(result.out)["cells"]:
        measured_length = rows[cell["drafter"]]["tokens_per_loop"]
        assert cell["tokens_per_loop"]["estimate"] == pytest.approx(measured_length, rel=0.1)


def test_the_screen_says_what_is_predicted_and_what_was_run(cli: Cli, measured: Path) -> None:
    result = cli("replay", measured, "--k", "2", "--budget", "0.1", "--threads", "1")
    assert result.code == 0, result.err
    assert "replayed over 12 texts" in result.out
    assert "Times are of loops run here" in " ".join(result.out.split())
    assert max(map(len, result.out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--k", "0"), 2, "0 is ArS"),
        (("--budget", "-1"), 2, "no time"),
        (("--sampling", "greedy"), 2, "It has nucleus"),
        (("--drafter", "suffix:across=true"), 2, "cannot be replayed"),
        (("--drafter", "heads"), 2, "was made for package:smollm2"),
        (("--drafter", "nobody"), 2, "nobody"),
        (("--k", "0"), 2, "no lookahead is left"),
        (("--draft", "nowhere"), 3, "nowhere"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    cli: Cli, measured: Path, flags: tuple[str, ...], code: int, said: str
) -> None:
    result = cli("replay", measured, "--threads", "1", *flags)
    assert result.code == code, result.err
    assert said in " ".join(result.err.split())


def test_too_little_text_and_no_text_are_refused(cli: Cli, tmp_path: Path) -> None:
    few = ("run", "xsum", "--limit", "1", "--max-new-tokens", "20", *ALONE)
    assert cli(*few, "--out", tmp_path / "few").code == 0
    result = cli("replay", tmp_path / "few")
    assert result.code == 2
    assert "replay needs 200" in result.err
    assert cli(*few, "--arms", "sps", "--out", tmp_path / "none").code == 0
    assert "no ArS" in cli("replay", tmp_path / "none").err
    assert cli("replay", tmp_path / "nothing").code == 2


def test_texts_of_another_target_are_refused(cli: Cli, measured: Path, tmp_path: Path) -> None:
    other = tmp_path / "run"
    other.mkdir()
    for file in measured.iterdir():
        if file.is_file():
            (other / file.name).write_bytes(file.read_bytes())
    told = json.loads((other / "run.json").read_text())
    told["identity"]["pair"]["target"]["fingerprint"] = "sha256:0"
    (other / "run.json").write_text(json.dumps(told))
    result = cli("replay", other, "--budget", "0")
    assert result.code == 2
    assert "wrote these texts" in result.err

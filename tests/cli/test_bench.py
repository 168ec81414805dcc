"""``spsbench bench`` end to end: a real pair, configurations alone, forced acceptance, bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commandline import SMALL, Cli

QUICK = ("--seconds", "0.1", "--context", "16", "--threads", "1")


def config(folder: Path, **changes: int) -> Path:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    content = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 300}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(content | sizes | changes))
    return folder / "config.json"


def test_the_mini_pair(cli: Cli) -> None:
    result = cli("bench", *QUICK, "--k", "2,4", "--alpha", "0.8", "--json")
    assert result.code == 0, result.err
    facts = json.loads(result.out)
    assert [row["rows"] for row in facts["forwards"]["target"]] == list(range(1, 10))
    assert all(row["low"] <= row["ratio"] <= row["high"] for row in facts["forwards"]["target"])
    assert list(facts["payoff"]["costs"]) == ["2", "4"]
    forced = facts["forced"]
    assert forced["synthetic_acceptance"] is True
    assert [arm["k"] for arm in forced["arms"]] == [0, 2, 4]
    assert forced["arms"][2]["speedup"]["low"] is not None
    assert not facts["target"]["random_weights"]
    assert facts["environment"]["cpu"]


def test_configurations_alone(cli: Cli, tmp_path: Path) -> None:
    target = config(tmp_path / "target", num_hidden_layers=4)
    draft = config(tmp_path / "draft", vocab_size=310)
    arguments = ("--target-config", target, "--draft-config", draft.parent)
    result = cli("bench", *QUICK, *arguments, "--k", "1..3", "--dtype", "bfloat16")
    assert result.code == 0, result.err
    assert "random weights" in result.out
    assert "bfloat16" in result.out
    assert "pays from" in result.out
    assert "Speculation can" in " ".join(result.out.split())


def test_acceptance_of_a_run(cli: Cli, tmp_path: Path) -> None:
    assert cli("run", *SMALL, "--out", tmp_path / "run").code == 0
    result = cli("bench", *QUICK, "--k", "2", "--acceptance-from", tmp_path / "run")
    assert result.code == 0, result.err
    assert "SYNTHETIC acceptance" in result.out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--alpha", "1.5"), "no probability"),
        (("--alpha", "x"), "--alpha"),
        (("--k", "0"), "no lookahead"),
        (("--context", "0"), "--context"),
        (("--context", "99999"), "99999 tokens and 57 after them are needed"),
        (("--seconds", "-1"), "--seconds"),
        (("--dtype", "int4"), "Choose from auto"),
        (("--device", "cuda"), "--device"),
        (("--target", "x"), "a pair has two models"),
        (("--target-config", "gone.json", "--draft-config", "gone.json"), "gone.json does not exist"),
        (("--target-config", "gone.json"), "Give both"),
        (("--target-config", "a", "--pair", "mini"), "Leave it out"),
        (("--acceptance-from", "nowhere"), "holds no run"),
        (("--alpha", "0.5", "--acceptance-from", "nowhere"), "Leave one"),
    ],
)
def test_bad_input_loads_nothing(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], said: str
) -> None:
    monkeypatch.setattr("spsbench.models.loading.load", None)
    monkeypatch.setattr("spsbench.models.random_init.random_model", None)
    result = cli("bench", *flags)
    assert result.code in (2, 3), result.err
    assert said in " ".join(result.err.split())


def test_a_model_too_large_is_refused_with_both_numbers(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spsbench.models.random_init.random_model", None)
    huge = config(tmp_path / "huge", hidden_size=65536, intermediate_size=262144, num_hidden_layers=400)
    result = cli("bench", "--target-config", huge, "--draft-config", huge)
    assert result.code == 2
    assert "GiB, but cpu has" in " ".join(result.err.split())

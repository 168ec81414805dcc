"""``spsbench bench`` end to end: a real pair, configurations alone, forced acceptance, bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commandline import BRIEF, SMALL, Cli

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
    arguments = ("--target", target, "--draft", draft)
    result = cli("bench", *QUICK, *arguments, "--k", "1..3", "--dtype", "bfloat16")
    assert result.code == 0, result.err
    assert "random weights" in result.out
    assert "bfloat16" in result.out
    assert "pays from" in result.out
    assert "Speculation can" in " ".join(result.out.split())


@pytest.mark.thorough
def test_several_contexts_give_a_table_by_context(cli: Cli, tmp_path: Path) -> None:
    sizes = {"max_position_embeddings": 3000}
    arguments = [*("--target", config(tmp_path / "target", **sizes))]
    arguments += ["--draft", config(tmp_path / "draft", **sizes), "--k", "2,4", "--seconds", "0.1"]
    arguments += ["--threads", "1", "--context", "64,1k"]
    result = cli("bench", *arguments, "--json")
    assert result.code == 0, result.err
    facts = json.loads(result.out)
    assert [found["context"] for found in facts["contexts"]] == [64, 1024]
    for found in facts["contexts"]:
        assert [row["rows"] for row in found["forwards"]["target"]] == list(range(1, 10))
        assert found["c"]["low"] <= found["c"]["ratio"] <= found["c"]["high"]
        assert len(found["rounds"]["draft"]["seconds"]) == len(found["rounds"]["target"]["seconds"])
    shown = cli("bench", *arguments)
    assert shown.code == 0, shown.err
    for word in ("Forwards by context", "What they read and allow", "t(3)/t(1)", "t(5)/t(1)", "1k"):
        assert word in shown.out
    assert " at alpha 0.8 (best K: " in " ".join(shown.out.split())


def test_a_context_too_long_for_the_memory_is_refused_before_loading(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spsbench.models.loading.random_model", None)
    wide = config(tmp_path / "wide", max_position_embeddings=1 << 40)
    result = cli("bench", "--target", wide, "--draft", wide, "--context", "1k,4000000k")
    assert result.code == 2
    said = " ".join(result.err.split())
    assert "after 4096000000 tokens the models need" in said
    assert "but cpu has" in said


@pytest.mark.thorough
def test_acceptance_of_a_run(cli: Cli, tmp_path: Path) -> None:
    assert cli("run", *BRIEF, *SMALL, "--out", tmp_path / "run").code == 0
    result = cli("bench", *QUICK, "--k", "2", "--alpha", tmp_path / "run")
    assert result.code == 0, result.err
    assert "SYNTHETIC acceptance" in result.out


def test_a_model_too_large_is_refused_with_both_numbers(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spsbench.models.loading.random_model", None)
    huge = config(tmp_path / "huge", hidden_size=65536, intermediate_size=262144, num_hidden_layers=400)
    result = cli("bench", "--target", huge, "--draft", huge)
    assert result.code == 2
    assert "GiB, but cpu has" in " ".join(result.err.split())


@pytest.mark.thorough
def test_batches_are_predicted_and_tried(cli: Cli, tmp_path: Path) -> None:
    folders = [config(tmp_path / role, hidden_size=64) for role in ("target", "draft")]
    pair = ("--target", folders[0], "--draft", folders[1])
    asked = ("bench", *pair, "--batch", "1,3", "--k", "1,2", "--context", "16", "--seconds", "0.1")
    found = json.loads(cli(*asked, "--alpha", "0.8", "--threads", "1", "--json", "--quiet").out)
    cells = {(cell["batch"], cell["k"]): cell for cell in found["cells"]}
    assert set(cells) == {(batch, k) for batch in (1, 3) for k in (1, 2)}
    for (batch, k), cell in cells.items():
        assert cell["measured"]["ratio"] > 0
        step = found["step_ms"][str(batch)]
        loop = cell["draft_ms"] + cell["verify_ms"]
        assert cell["predicted"] == pytest.approx(found["tokens_per_loop"][str(k)] * step / loop)
    assert found["tokens_per_loop"] == {"1": pytest.approx(1.8), "2": pytest.approx(2.44)}
    shown = cli(*asked, "--threads", "1").out
    assert "Forwards by batch size" in shown
    assert "SYNTHETIC" not in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("wanted", [("16",), ("16,32",), ("16", "--batch", "1,2")])
def test_times_that_others_disturbed_are_said_to_be_untrusted(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, wanted: tuple[str, ...]
) -> None:
    """Between the times and what follows from them, of which there is no verdict."""
    monkeypatch.setattr("spsbench.parts.whatif.bench.turns.watch", lambda: lambda: 0.31)
    asked = ("bench", "--seconds", "0.1", "--threads", "1", "--k", "2", "--context", *wanted)
    shown = cli(*asked)
    assert shown.code == 0, shown.err
    said = " ".join(shown.out.split())
    assert said.count("UNTRUSTED: contention took 31% of the time of these forwards") == len(
        wanted[0].split(",")
    )
    before, after = said.split("UNTRUSTED", 1)
    assert "Forwards " in before
    assert "Predicted" not in before
    assert "pays from" not in before
    assert "Predicted speedup" in after or "What they read and allow" in after
    assert all(verdict not in said for verdict in ("Speculation can", "it pays", "at alpha 0.8"))
    facts = json.loads(cli(*asked, "--json").out)
    for place in facts.get("contexts", [facts]):
        assert place["untrusted"].startswith("UNTRUSTED: contention took 31%")

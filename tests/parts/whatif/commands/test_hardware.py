"""``spsbench advise --hardware``: what it prints, the curves it takes, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.commandline import Cli

from spsbench.base.paths import mini_dir

PAIR = ("--target", mini_dir() / "target", "--draft", mini_dir() / "draft" / "config.json")
H100 = ("advise", "--hardware", "h100-sxm", *PAIR)


def a_curve(folder: Path, **changes: Any) -> Path:
    """As ``replay --curve --out`` writes it."""
    length = {1: (1.7, 1.6, 1.8), 4: (2.9, 2.7, 3.1)}
    points = [
        {"k": k, "acceptance_length": dict(zip(("estimate", "low", "high"), each, strict=True))}
        for k, each in length.items()
    ]
    curves = [{"name": name, "category": None, "points": points} for name in ("model", "lookup")]
    curves.append({"name": "model", "category": "chat", "points": []})
    path = folder / "acceptance.json"
    path.write_text(json.dumps({"curves": curves} | changes, indent=2))
    return path


def test_everything_says_that_it_is_predicted(cli: Cli, tmp_path: Path) -> None:
    screen = cli(*H100, "--alpha", a_curve(tmp_path), "--context", "512,1k")
    assert screen.code == 0, screen.err
    assert screen.out.startswith("PREDICTED, not measured: NVIDIA H100 SXM 80GB")
    assert screen.out.count("batch 64") == 2
    assert max(map(len, screen.out.splitlines())) <= 80
    facts = json.loads(cli(*H100, "--alpha", a_curve(tmp_path), "--json").out)
    assert facts["predicted"] is True
    (table,) = facts["tables"]
    assert set(table["predicted_speedup"]) == {"1", "4", "best"}
    estimate, low, high = table["predicted_speedup"]["4"]["8"]
    assert low < estimate < high
    assert facts["hardware"]["peak"]["source"].startswith("https://www.nvidia.com")
    options = cli(*H100, "--alpha", a_curve(tmp_path), "--format", "vllm").out
    assert options.startswith("# K by batch size PREDICTED")
    config = json.loads(re.search("'(.*)'", options)[1])  # type: ignore[index]
    (first, *_, last) = config["num_speculative_tokens_per_batch_size"]
    assert first[0] == 1
    assert last[1] == table["sequences"]

    assert config["model"] == "DRAFT_MODEL"
    assert f"# DRAFT_MODEL: the model that {PAIR[3]} is the configuration of." in options
    folder = PAIR[3].parent
    named = cli(*H100[:-1], folder, "--alpha", a_curve(tmp_path), "--format", "vllm").out
    assert f'"model": "{folder}"' in named


def test_batches_that_do_not_fit_are_named(cli: Cli) -> None:
    out = cli(*H100, "--alpha", "0.8", "--context", "128k", "--batch", "8,1024").out
    assert "Not shown, they do not fit with their caches: batch 1024." in out
    assert "Not shown" not in cli(*H100, "--alpha", "0.8").out


def test_an_interval_of_the_curve_widens_the_band(cli: Cli, tmp_path: Path) -> None:
    yaml = tmp_path / "acceptance.yaml"
    yaml.write_text("acceptance_length:\n  model:\n    1: 1.700\n    4: 2.900\n  lookup:\n    4: 1.5\n")
    found = {}
    for path, drafter in ((a_curve(tmp_path), ()), (yaml, ()), (yaml, ("--drafter", "lookup"))):
        facts = json.loads(cli(*H100, "--alpha", path, "--k", "4", *drafter, "--json").out)
        found[path.suffix, *drafter] = facts["tables"][0]["predicted_speedup"]["4"]["8"]
    whole, means, lookup = found.values()
    assert whole[0] == means[0]
    assert whole[1] < means[1]
    assert whole[2] > means[2]
    assert lookup[0] == pytest.approx(means[0] * 1.5 / 2.9)


def test_without_prompts_acceptance_must_be_given(cli: Cli) -> None:
    result = cli(*H100)
    assert result.code == 2
    assert "--alpha: no prompts are read, so acceptance is unknown. Give a file" in result.err


def test_a_number_stands_for_a_curve(cli: Cli) -> None:
    facts = json.loads(cli(*H100, "--alpha", "0.5", "--k", "2", "--json").out)
    assert facts["tokens_per_loop"] == {"2": {"estimate": 1.75, "low": None, "high": None}}


def test_a_borrowed_figure_is_named(cli: Cli) -> None:
    out = cli("advise", "--hardware", "l4", *PAIR, "--alpha", "0.8").out
    assert "borrowed with a wider band: compute of a40" in out
    assert "borrowed" not in cli(*H100, "--alpha", "0.8").out


def test_where_speculation_never_pays_no_options_are_printed(cli: Cli) -> None:
    out = cli(*H100, "--alpha", "0", "--format", "vllm").out
    assert "none is PREDICTED to be faster" in out
    assert "--speculative-config" not in out


BROKEN = {
    "hidden_size": ({"hidden_size": None}, 2, "--target: hidden_size"),
    "sizes": ({"num_hidden_layers": "many"}, 2, "--target: num_hidden_layers"),
    "experts": ({"model_type": "mixtral"}, 2, "--target: model_type mixtral"),
    "quantised": ({"quantization_config": {"bits": 4}}, 2, "--target: quantization_config"),
    "too large": ({"hidden_size": 65536, "num_hidden_layers": 200}, 2, "--hardware: NVIDIA H100"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_configuration_that_is_not_modelled(cli: Cli, tmp_path: Path, name: str) -> None:
    changes, code, told = BROKEN[name]
    content = json.loads((mini_dir() / "target" / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(content))
    result = cli(*H100, "--target", tmp_path, "--alpha", "0.8")
    assert (result.code, told in result.err) == (code, True), result.err


def test_files_that_are_cut_off(cli: Cli, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{\n  "model_type": "llama",\n')
    result = cli(*H100, "--target", config, "--alpha", "0.8")
    assert result.code == 3
    assert "--target" in result.err
    curve = a_curve(tmp_path)
    for text, code in ((curve.read_text()[:-20], 3), ("{}", 3), ('{"curves": []}', 3)):
        curve.write_text(text)
        result = cli(*H100, "--alpha", curve)
        assert result.code == code, result.err
        assert result.err.startswith("error: --alpha"), result.err
    impossible = a_curve(tmp_path)
    impossible.write_text(impossible.read_text().replace("2.9", "9.2"))
    assert cli(*H100, "--alpha", impossible).code == 3
    assert "--k" in cli(*H100, "--alpha", a_curve(tmp_path), "--k", "3").err
    assert "Choose from model, lookup" in cli(*H100, "--alpha", a_curve(tmp_path), "--drafter", "x").err

"""``--sampling model``: what the target's own file says, on the screen and in the records."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.commandline import BRIEF, SMALL, call

import spsbench

MINI = Path(spsbench.__file__).parent / "mini"
TOLD = {"eos_token_id": 0, "do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}
HINT = "The model recommends temperature 0.6, top_k 20, top_p 0.95: --sampling model\n"
QUICK = ("--no-proof", "--no-score", "--remeasure", "0")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The embedded pair with a recommendation."""
    target = tmp_path_factory.mktemp("models") / "target"
    shutil.copytree(MINI / "target", target)
    (target / "generation_config.json").write_text(json.dumps(TOLD))
    return "--target", str(target), "--draft", str(MINI / "draft")


def _run(out: Path, *arguments: object) -> Any:
    return call("run", "xsum", *BRIEF, *SMALL, *QUICK, "--out", out, *arguments)


@pytest.mark.thorough
def test_the_models_own_sampling_is_run_and_recorded(models: tuple[str, ...], tmp_path: Path) -> None:
    ran = _run(tmp_path / "run", *models, "--sampling", "model")
    assert ran.code == 0, ran.err
    assert "The model's own sampling: temperature 0.6, top_k 20, top_p 0.95\n" in ran.err
    assert "recommends" not in ran.err
    assert "model (T=0.6, top-k 20, top-p 0.95)" in (tmp_path / "run/report.md").read_text()
    told = json.loads((tmp_path / "run/run.json").read_text())
    wanted = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "greedy": False}
    assert [arm["params"] for arm in told["arms"]] == [wanted] * 2


@pytest.mark.thorough
def test_another_recommendation_is_another_run(models: tuple[str, ...], tmp_path: Path) -> None:
    target = tmp_path / "target"
    shutil.copytree(models[1], target)
    own = ("--target", target, *models[2:], "--sampling", "model", "--arms", "ars")
    assert _run(tmp_path / "run", *own).code == 0
    assert call("run", "--resume", tmp_path / "run").code == 0
    (target / "generation_config.json").write_text(json.dumps(TOLD | {"temperature": 0.7}))
    again = call("run", "--resume", tmp_path / "run")
    assert again.code == 2
    assert "holds another run" in again.err
    assert "\n  arms[0].sampling.temperature: 0.6 -> 0.7\n" in again.err


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), 1),
        (("--sampling", "nucleus,greedy"), 1),
        (("--temperature", "0.6", "--top-p", "0.95", "--top-k", "20"), 0),
        (("--sampling", "beam"), 0),
        (("--quiet",), 0),
        (("--target", MINI / "target"), 0),
    ],
)
def test_the_recommendation_is_said_where_it_is_not_run(
    models: tuple[str, ...], tmp_path: Path, flags: tuple[object, ...], said: int
) -> None:
    ran = _run(tmp_path / "run", *models, "--arms", "ars", *flags)
    assert ran.code == 0, ran.err
    assert ran.err.count(HINT) == said


def test_a_model_without_one_is_refused(tmp_path: Path) -> None:
    refused = _run(tmp_path / "run", "--sampling", "model")
    assert refused.code == 2
    assert "--sampling: the generation_config.json of target says nothing about sampling." in refused.err
    assert "--temperature, --top-p and --top-k set its values" in refused.err
    assert not (tmp_path / "run").exists()


@pytest.mark.thorough
def test_a_greedy_recommendation_is_named(models: tuple[str, ...], tmp_path: Path) -> None:
    target = tmp_path / "target"
    shutil.copytree(models[1], target)
    (target / "generation_config.json").write_text(json.dumps(TOLD | {"do_sample": False}))
    ran = _run(tmp_path / "run", "--target", target, *models[2:], "--sampling", "model", "--arms", "ars")
    assert ran.code == 0, ran.err
    assert "The model's own sampling: greedy\n" in ran.err
    assert "model (greedy)" in (tmp_path / "run/report.md").read_text()


@pytest.mark.thorough
def test_a_trace_draws_as_the_model_recommends(models: tuple[str, ...]) -> None:
    shown = call("trace", "The council", *models, "--sampling", "model", "--max-new-tokens", 6, "--json")
    assert shown.code == 0, shown.err
    assert call("trace", "The council", "--sampling", "model").code == 2


@pytest.mark.thorough
@pytest.mark.parametrize("weight", [0.25, None])
def test_a_file_that_asks_for_lossy_verification_is_said_beside_hf_assisted(
    models: tuple[str, ...], tmp_path: Path, weight: float | None
) -> None:
    target = tmp_path / "target"
    shutil.copytree(models[1], target)
    (target / "generation_config.json").write_text(json.dumps(TOLD | {"assistant_ensemble_weight": weight}))
    ran = _run(tmp_path / "run", "--target", target, *models[2:], "--engine", "hf-assisted")
    assert ran.code == 0, ran.err
    said = "asks for assistant_ensemble_weight 0.25, which is lossy: hf-assisted runs without it."
    assert (said in " ".join(ran.err.split())) == (weight is not None)

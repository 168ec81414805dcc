from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from support.commandline import ALONE, BRIEF, Cli, Result, call

from spsbench.base.errors import UsageError
from spsbench.base.records import SCHEMA_VERSION
from spsbench.cli import compare
from spsbench.cli.values import share
from spsbench.config import resolve
from spsbench.report.results import compared_screen
from spsbench.stats.comparison import slower, speedup_ratio, undecided


@pytest.fixture
def runs(finished: tuple[Path, Result], tmp_path: Path) -> tuple[Path, Path]:
    """A small run, and the same with every sequence half as fast again."""
    a, b = tmp_path / "a", tmp_path / "b"
    for directory in (a, b):
        shutil.copytree(finished[0], directory)
    _edit_samples(b, lambda line: {"decode_s": 1.5 * line["decode_s"]})
    return a, b


def _edit_samples(directory: Path, changes: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    lines = [json.loads(line) for line in (directory / "samples.jsonl").read_text().splitlines()]
    edited = [line | changes(line) for line in lines]
    (directory / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in edited))


def _edit(directory: Path, **identity: object) -> None:
    run = json.loads((directory / "run.json").read_text())
    run["identity"] |= identity
    (directory / "run.json").write_text(json.dumps(run))


def test_the_ratio_is_shown_and_told_as_json(cli: Cli, runs: tuple[Path, Path]) -> None:
    shown = cli("compare", *runs)
    assert shown.code == 0, shown.err
    assert "1.500" in shown.out
    assert "not interleaved" in " ".join(shown.out.split())
    told = json.loads(cli("compare", *runs, "--json").out)
    assert [arm["time_ratio"]["ratio"] for arm in told["arms"]] == pytest.approx([1.5, 1.5])


def test_the_gate_is_exit_4_and_still_shows_the_table(cli: Cli, runs: tuple[Path, Path]) -> None:
    failed = cli("compare", *runs, "--gate", "2%")
    assert failed.code == 4
    assert "takes 50.0% longer per token" in failed.err
    assert "1.500" in failed.out
    assert cli("compare", *runs, "--gate", "60%").code == 0
    assert cli("compare", *reversed(runs), "--gate", "2%").code == 0


def test_other_rules_are_refused_unless_forced(cli: Cli, runs: tuple[Path, Path]) -> None:
    _edit(runs[1], max_new_tokens=64)
    refused = cli("compare", *runs)
    assert (refused.code, refused.out) == (2, "")
    assert "the length limit differs (8, 64)" in refused.err
    forced = cli("compare", *runs, "--force")
    assert forced.code == 0
    assert "! the length limit differs" in forced.out


def test_another_machine_is_a_warning_but_no_ground_for_a_gate(cli: Cli, runs: tuple[Path, Path]) -> None:
    _edit(runs[1], device="cuda")
    assert "! the device differs (cpu, cuda)" in cli("compare", *runs).out
    gated = cli("compare", *runs, "--gate", "2%")
    assert gated.code == 2
    assert "would judge the machine" in gated.err
    assert cli("compare", *runs, "--gate", "2%", "--force").code == 4


def test_what_is_no_run_or_no_share_is_refused(cli: Cli, runs: tuple[Path, Path], tmp_path: Path) -> None:
    assert cli("compare", runs[0], tmp_path).code == 2
    wrong = cli("compare", *runs, "--gate", "much")
    assert wrong.code == 2
    assert "--gate must be a share from 0 to below 1, got much." in wrong.err


@pytest.mark.parametrize(("text", "found"), [("2%", 0.02), (" 0.5 % ", 0.005), ("0.1", 0.1), ("0", 0.0)])
def test_shares(text: str, found: float) -> None:
    assert share(text, "--gate", zero=True) == pytest.approx(found)


@pytest.mark.parametrize("text", ["", "%", "-1%", "100%", "nan", "inf", "2 percent"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(UsageError):
        share(text, "--gate", zero=True)


def test_the_earliest_differing_token_and_how_close_it_was(cli: Cli, runs: tuple[Path, Path]) -> None:
    same = json.loads(cli("compare", *runs, "--json").out)
    assert [arm["tokens"]["identical"] for arm in same["arms"]] == [1.0, 1.0]
    assert "identical tokens in all 1 outputs" in " ".join(cli("compare", *runs).out.split())

    def change(line: dict[str, Any]) -> dict[str, Any]:
        ids = line["token_ids"]
        return {"token_ids": [*ids[:3], ids[3] + 1, *ids[4:]]} if line["arm"] == "ars-nucleus" else {}

    _edit_samples(runs[1], change)
    found = {arm["arm"]: arm["tokens"] for arm in json.loads(cli("compare", *runs, "--json").out)["arms"]}
    place = found["ars-nucleus"]["first_divergence"]
    assert (place["position"], place["b_token"] - place["a_token"]) == (3, 1)
    assert place["gap"] > 0
    assert found["sps-k4-nucleus"]["first_divergence"] is None
    shown = " ".join(cli("compare", *runs).out.split())
    assert "the earliest difference is token 3 of" in shown
    assert f"the two largest logits there are {place['gap']:.2g} apart (float32)" in shown


def test_without_the_models_the_gap_is_unknown_and_the_rest_is_told(
    cli: Cli, runs: tuple[Path, Path]
) -> None:
    config = runs[0] / "config.yaml"
    config.write_text(config.read_text().replace("embedded:mini/target", "./gone"))
    _edit_samples(runs[1], lambda line: {"token_ids": [7, *line["token_ids"]], "token_evidence": None})
    shown = " ".join(cli("compare", *runs).out.split())
    assert "the gap of the two largest logits there is unknown (./gone is not a model folder)" in shown


def test_other_seeds_write_other_outputs_and_only_greedy_ones_are_compared(
    cli: Cli, runs: tuple[Path, Path]
) -> None:
    _edit(runs[1], seed=1)
    assert [arm["tokens"] for arm in json.loads(cli("compare", *runs, "--json").out)["arms"]] == [None, None]


def test_times_taken_on_a_busy_machine_decide_no_gate(cli: Cli, runs: tuple[Path, Path]) -> None:
    _edit_samples(runs[1], lambda line: {"conditions": {"waited_s": 5.0}})
    gated = cli("compare", *runs, "--gate", "2%")
    assert gated.code == 2
    assert "intervals include CPU contention" in gated.err
    told = json.loads(cli("compare", *runs, "--json").out)
    assert all(arm["time_ratio"]["low"] is None for arm in told["arms"])
    _edit_samples(runs[1], lambda line: {"conditions": {"waited_s": 0.2 * line["decode_s"]}})
    some = json.loads(cli("compare", *runs, "--json").out)
    assert some["machine"] == []  # a wider interval decides a gate as any other
    assert any("intervals include CPU contention" in text for text in some["warnings"])


@pytest.mark.parametrize(("quantiser", "backend"), [("torchao", "torch"), (None, "onnxruntime")])
def test_quantised_weights_are_those_of_the_runs_own_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantiser: str | None, backend: str
) -> None:
    """A run on a GPU has torchao's whatever this machine would choose for itself."""
    (tmp_path / "config.yaml").write_text(resolve({"dtype": "auto+int8"}).to_yaml())
    told = {"schema_version": SCHEMA_VERSION, "identity": {"quantiser": quantiser} if quantiser else {}}
    (tmp_path / "run.json").write_text(json.dumps(told))
    monkeypatch.setattr("spsbench.models.pair.load_pair", lambda source, dtypes, device, asked: asked)
    assert compare._loaded(tmp_path) == backend


@pytest.fixture(scope="module")
def of_two_ks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Runs of K = 2 and K = 4 on the same prompts."""
    base = tmp_path_factory.mktemp("ks")
    for k in ("2", "4"):
        flags = ("--limit", "4", "--max-new-tokens", "16", "--k", k, "--out", base / k)
        done = call("run", "xsum", *BRIEF, *flags, *ALONE)
        assert done.code == 0, done.err
    return base / "2", base / "4"


def test_the_only_sps_arm_of_each_run_is_compared(cli: Cli, of_two_ks: tuple[Path, Path]) -> None:
    told = json.loads(cli("compare", *of_two_ks, "--json").out)
    arms = {arm["arm"]: arm for arm in told["arms"]}
    assert arms.keys() == {"ars-nucleus", "sps-k2-nucleus"}
    found = arms["sps-k2-nucleus"]
    assert (found["b_arm"], told["only_a"], told["only_b"]) == ("sps-k4-nucleus", [], [])
    ratio = found["b_speedup"] / found["a_speedup"]
    assert found["speedup_ratio"]["ratio"] == pytest.approx(ratio)
    assert 1 < found["a_tokens_per_loop"] < found["b_tokens_per_loop"] <= 5
    assert arms["ars-nucleus"]["speedup_ratio"] is None
    assert found["tokens"] is None, "other draws are no difference of the same arm"
    shown = " ".join(cli("compare", *of_two_ks).out.split())
    assert "sps-k2-nucleus | sps-k4-nucleus: speedup of B over that of A" in shown
    gated = cli("compare", *of_two_ks, "--arm", "ars-nucleus=sps-k4-nucleus", "--gate", "0", "--force")
    assert "ars-nucleus | sps-k4-nucleus" in " ".join((gated.out + gated.err).split())


def test_scores_and_gates_name_both_arms_of_two_names() -> None:
    """Scores of two arms stood under the name of A's."""
    score = {"metric": "rouge2", "a": 0.1, "b": 0.2, "difference": 0.1, "low": 0.0, "high": 0.2}
    ratio = {"ratio": 1.5, "low": 1.4, "high": 1.6}
    arm: Any = {"arm": "sps-k2", "b_arm": "sps-k4", "method": "sps", "k": 2, "sampling": "nucleus"}
    arm |= {"engine": "eager", "speedup_ratio": None, "a_tokens_per_loop": None, "b_tokens_per_loop": None}
    arm |= {"metrics": [score], "tokens": None, "time_ratio": ratio, "a_speedup": None, "b_speedup": None}
    arm |= {"a_ms_per_token": 1.0, "b_ms_per_token": 1.5}
    compared: Any = {"a": "a", "b": "b", "prompts": 4, "arms": [arm], "only_a": [], "only_b": []}
    compared |= {"refusals": [], "machine": [], "warnings": [], "unfinished": []}
    file = io.StringIO()
    Console(file=file, width=100).print(compared_screen(compared))
    assert "sps-k2 | sps-k4: ROUGE-2 0.1000 -> 0.2000, +0.1000" in file.getvalue()
    assert [*map(str, slower(compared, 0.02))] == ["sps-k2 | sps-k4 takes 50.0% longer per token"]
    assert undecided(compared, 0.5) == ["sps-k2 | sps-k4"]


def test_arms_are_matched_by_name(cli: Cli, of_two_ks: tuple[Path, Path]) -> None:
    told = json.loads(cli("compare", *of_two_ks, "--arm", "ars-nucleus=sps-k4-nucleus", "--json").out)
    assert [(arm["arm"], arm["b_arm"]) for arm in told["arms"]] == [("ars-nucleus", "sps-k4-nucleus")]
    for asked, said in (
        ("sps-k3=sps-k4-nucleus", "sps-k3 is not an arm of A. A has ars-nucleus, sps-k2-nucleus"),
        (
            "sps-k2-nucleus=sps-k2-nucleus",
            "sps-k2-nucleus is not an arm of B. B has ars-nucleus, sps-k4-nucleus",
        ),
        ("sps-k2-nucleus", "sps-k2-nucleus is not valid. Name an arm of each run"),
    ):
        refused = cli("compare", *of_two_ks, "--arm", asked)
        assert refused.code == 2
        assert f"--arm: {said}" in refused.err


def test_the_ratio_of_speedups_has_an_interval_over_prompts() -> None:
    """Of four made-up prompts: A gains 2x, B 3x, with a little noise."""

    def frame(seconds: list[float]) -> pd.DataFrame:
        rows = [(f"e{i}", 0, 10, 0.0, s, None) for i, s in enumerate(seconds)]
        columns = ["example_id", "sample_index", "new_tokens", "prefill_s", "decode_s", "error"]
        return pd.DataFrame(rows, columns=columns).assign(finish_reason="length")

    ars = frame([1.0, 1.1, 0.9, 1.0])
    found = speedup_ratio((ars, frame([0.5, 0.56, 0.44, 0.5])), (ars, frame([0.33, 0.37, 0.3, 0.34])))
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.ratio == pytest.approx(2.0 / 1.34, rel=1e-3)
    assert 1.3 < found.low < found.ratio < found.high < 1.7


@pytest.mark.parametrize("failed_side", ["a", "b"])
def test_a_gate_is_red_where_an_arm_has_no_times(
    cli: Cli, finished: tuple[Path, Result], tmp_path: Path, failed_side: str
) -> None:
    """An arm that failed has no slower times; the run as it was is the control."""
    for name in ("a", "b"):
        shutil.copytree(finished[0], tmp_path / name)
    assert cli("compare", tmp_path / "a", tmp_path / "b", "--gate", "2%").code == 0
    _edit_samples(
        tmp_path / failed_side,
        lambda line: (
            {"finish_reason": "error", "error": "RuntimeError: the draft is gone"}
            if line["arm"] == "sps-k4-nucleus"
            else {}
        ),
    )
    done = cli("compare", tmp_path / "a", tmp_path / "b", "--gate", "2%")
    assert done.code == 4, done.err
    counts = (0, 1) if failed_side == "b" else (1, 0)
    said = f"sps-k4-nucleus has times of {counts[0]} prompts in B and {counts[1]} in A"
    assert said in " ".join(done.err.split())
    assert "the draft is gone" in done.err
    assert said in " ".join(cli("compare", tmp_path / "a", tmp_path / "b").out.split())

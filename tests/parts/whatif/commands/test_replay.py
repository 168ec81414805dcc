"""``spsbench replay``: what a run of the same arms gives, without running them."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from support.commandline import ALONE, BRIEF, Cli, sampled_run
from support.tiny_heads import save_head
from transformers import AutoModelForCausalLM

from spsbench.base.paths import mini_dir
from spsbench.drafters.registry import Context
from spsbench.models.torch_lm import TorchLM
from spsbench.parts.whatif.replay import reading
from spsbench.parts.whatif.replay.texts import texts_of

pytestmark = [pytest.mark.usefixtures("quick_rehearsals"), pytest.mark.thorough]

DRAFTERS = "model,lookup,union,bigram"
SHORT = ("--max-new-tokens", "42")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ArS and several drafters on some prompts, under the law that leaves most to chance."""
    return sampled_run(tmp_path_factory.mktemp("replay") / "run", "--k", "2,5", "--drafter", DRAFTERS, *SHORT)


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


def test_block_verification_is_predicted_beside_modified_rejection(cli: Cli, measured: Path) -> None:
    asked = ("--drafter", "model,lookup", "--k", "2,5", "--rule", "modified-rejection,block")
    result = cli("replay", measured, *asked, "--budget", "0.1", "--threads", "1", "--json", "--quiet")
    assert result.code == 0, result.err
    cells = {(cell["drafter"], cell["rule"], cell["k"]): cell for cell in json.loads(result.out)["cells"]}
    assert len(cells) == 8
    for k in (2, 5):
        modified, block, copied, copied_block = (
            cells[drafter, rule, k]["tokens_per_loop"]["estimate"]
            for drafter in ("model", "lookup")
            for rule in ("modified-rejection", "block")
        )
        assert block > modified
        assert copied_block == pytest.approx(copied)  # a copy is certain of its token: both rules are one
        assert cells["model", "block", k]["measured_tokens_per_loop"] is None
        assert cells["model", "block", k]["predicted"]["speedup"]["estimate"] > 0
    screen = cli("replay", measured, "--k", "2", "--rule", "block", "--budget", "0", "--threads", "1")
    assert "model, block" in screen.out


def test_another_temperature_for_the_draft_misses_what_was_run(
    cli: Cli, measured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: a draft that is flatter in replay than in the run."""

    def flatter(**given: Any) -> Context:
        return Context(**given | {"sampling": replace(given["sampling"], temperature=4.0)})

    monkeypatch.setattr(reading, "Context", flatter)
    result = cli("replay", measured, "--k", "5", "--budget", "0", "--threads", "1", "--json", "--quiet")
    assert result.code == 0, result.err
    (cell,) = json.loads(result.out)["cells"]
    found, ran = cell["tokens_per_loop"], cell["measured_tokens_per_loop"]
    width = found["high"] - found["low"]
    assert not found["low"] - width < ran < found["high"] + width


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
    run = (
        "run",
        "xsum",
        *BRIEF,
        "--limit",
        "12",
        "--k",
        "3",
        "--drafter",
        ",".join(names),
        "--top-p",
        "1",
        *SHORT,
    )
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
        (("--budget", "-1"), 2, "must be a time"),
        (("--drafter", "suffix:across=true"), 2, "cannot be replayed"),
        (("--drafter", "heads"), 2, "was made for package:smollm2"),
        (("--drafter", "nobody"), 2, "nobody"),
        (("--k", "0"), 2, "--k needs at least one value above 0"),
        (("--draft", "nowhere"), 3, "nowhere"),
        (("--target", "elsewhere"), 2, "records it already"),
        (("--temperature", "0"), 2, "records it already"),
        (("--times", "nowhere.json"), 3, "is not a file"),
        (("--times", __file__), 2, "holds no times"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    cli: Cli, measured: Path, flags: tuple[str, ...], code: int, said: str
) -> None:
    result = cli("replay", measured, "--threads", "1", *flags)
    assert result.code == code, result.err
    assert said in " ".join(result.err.split())


def in_a_file(run: Path, path: Path) -> dict[str, Any]:
    """The run's ArS texts as another engine would hand them over; returns how they were drawn."""
    written = texts_of(run)
    lines = [{"prompt_ids": text.prompt, "completion_ids": text.tokens} for text in written.texts]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return asdict(written.sampling)


def test_texts_of_another_engine_are_replayed_like_those_of_a_run(
    cli: Cli, measured: Path, tmp_path: Path
) -> None:
    drawn = in_a_file(measured, tmp_path / "texts.jsonl")
    asked = (
        "--drafter",
        "model,bigram",
        "--k",
        "2,5",
        "--budget",
        "0",
        "--threads",
        "1",
        "--json",
        "--quiet",
    )
    ours = cli("replay", measured, *asked)
    how = ("--pair", "mini", "--temperature", str(drawn["temperature"]), "--top-p", str(drawn["top_p"]))
    theirs = cli("replay", tmp_path / "texts.jsonl", *how, *asked)
    assert theirs.code == 0, theirs.err
    left_out = {"measured_tokens_per_loop": None}
    cells = [[cell | left_out for cell in json.loads(found.out)["cells"]] for found in (ours, theirs)]
    assert cells[0] == cells[1]
    assert cli("replay", tmp_path / "texts.jsonl", "--sampling", "nucleus").code == 2
    other = cli("replay", tmp_path / "texts.jsonl", "--pair", "mini", "--temperature", "0.3", "--budget", "0")
    assert other.code == 2
    assert "do not fit this target" in " ".join(other.err.split())


def test_a_file_of_several_samplings_is_refused(cli: Cli, tmp_path: Path) -> None:
    lines = [
        {"prompt_ids": [5], "completion_ids": [6] * 150, "sampling": {"temperature": t}} for t in (1.0, 0.5)
    ]
    (tmp_path / "texts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    result = cli("replay", tmp_path / "texts.jsonl", "--pair", "mini")
    assert result.code == 2
    assert "several samplings" in " ".join(result.err.split())


def test_drafts_are_compared(cli: Cli, measured: Path) -> None:
    own, perfect = mini_dir() / "draft", mini_dir() / "target"
    asked = ("--draft", own, "--draft", perfect, "--drafter", "lookup,model", "--k", "2", "--threads", "1")
    result = cli("replay", measured, *asked, "--budget", "0.1", "--json", "--quiet")
    assert result.code == 0, result.err
    cells = {(cell["drafter"], cell["draft"]): cell for cell in json.loads(result.out)["cells"]}
    assert list(cells) == [("lookup", None), ("model", str(own)), ("model", str(perfect))]
    # The target as its own draft is never rejected; only an output's end cuts a loop short.
    assert cells["model", str(perfect)]["tokens_per_loop"]["estimate"] > 2.9
    assert cells["model", str(own)]["tokens_per_loop"]["estimate"] < 2.9
    # The run's own arms had its own draft.
    assert cells["model", str(own)]["measured_tokens_per_loop"] is not None
    assert cells["model", str(perfect)]["measured_tokens_per_loop"] is None
    speedups = [cell["predicted"]["speedup"] for cell in cells.values()]
    assert all(
        each["low"] <= each["estimate"] <= each["high"] for each in speedups
    )  # of so few loops no more


def test_times_of_another_machine(cli: Cli, measured: Path, tmp_path: Path) -> None:
    timed = ("bench", "--k", "2,3", "--seconds", "0.2", "--threads", "1", "--json")
    (tmp_path / "times.json").write_text(cli(*timed).out)
    facts = json.loads((tmp_path / "times.json").read_text())
    asked = ("replay", measured, "--times", tmp_path / "times.json", "--threads", "1")
    result = cli(*asked, "--drafter", "model,lookup", "--k", "2,3", "--json")
    assert result.code == 0, result.err
    rounds = {role: np.array(own["seconds"]) for role, own in facts["rounds"].items()}
    column = facts["rounds"]["target"]["rows"].index
    target, draft = rounds["target"][:, [column(n) for n in (1, 3, 4)]], rounds["draft"][:, 0]
    length = min(len(target), len(draft))
    step, *loops = target[:length].mean(0)
    for cell in json.loads(result.out)["cells"]:
        drafting = cell["k"] * draft[:length].mean() if cell["drafter"] == "model" else 0
        gain = cell["tokens_per_loop"]["estimate"] * step / (loops[cell["k"] - 2] + drafting)
        assert cell["predicted"]["speedup"]["estimate"] == pytest.approx(gain)
    assert "forwards alone" in " ".join(cli(*asked, "--k", "2").out.split())
    for flags, said in (
        (("--k", "9"), "and not for 10"),
        (("--budget", "1"), "nothing is timed here"),
        (("--drafter", "quantised"), "no times of quantised"),
        (("--draft", mini_dir() / "target"), "weights, not"),
    ):
        refused = cli(*asked, *flags)
        assert refused.code == 2, flags
        assert said in " ".join(refused.err.split())


def test_a_run_without_ars_and_no_run_are_refused(cli: Cli, tmp_path: Path) -> None:
    few = ("run", "xsum", *BRIEF, "--limit", "1", "--max-new-tokens", "20", *ALONE)
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


def test_a_curve_is_the_cells_of_a_replay_with_files_that_others_inject(
    cli: Cli, measured: Path, tmp_path: Path
) -> None:
    asked = ("--drafter", "model,lookup", "--k", "2,5", "--threads", "1", "--json", "--quiet")
    cells = json.loads(cli("replay", measured, *asked, "--budget", "0").out)["cells"]
    result = cli("replay", measured, *asked, "--curve", "--out", tmp_path / "curve")
    assert result.code == 0, result.err
    facts = json.loads(result.out)
    points = [point for each in facts["curves"] for point in each["points"]]
    assert facts["synthetic"]
    assert len(points) == len(cells) == 4
    for cell, point in zip(cells, points, strict=True):
        estimate = point["acceptance_length"]["estimate"]
        assert estimate == pytest.approx(cell["tokens_per_loop"]["estimate"], abs=1e-9)
        rates = point["synthetic_acceptance_rates"]
        assert len(rates) == point["k"]
        assert rates == sorted(rates, reverse=True)
        assert 1 + sum(rates) == pytest.approx(estimate)
    written = yaml.safe_load((tmp_path / "curve" / "acceptance.yaml").read_text())
    assert written["acceptance_length"]["model"][5] == pytest.approx(
        points[1]["acceptance_length"]["estimate"], abs=6e-4
    )
    assert len(written["synthetic_acceptance_rates"]["lookup"][5]) == 5
    assert json.loads((tmp_path / "curve" / "acceptance.json").read_text()) == facts
    assert (tmp_path / "curve" / "acceptance.svg").read_text().count("SYNTHETIC") >= 1
    for wrong in (("--tree", "2,1"), ("--policy", "momentum"), ("--budget", "1")):
        refused = cli("replay", measured, "--curve", *wrong)
        assert refused.code == 2
        assert "a curve describes chains" in refused.err
    assert cli("replay", measured, "--out", tmp_path / "none").code == 2
    assert not (tmp_path / "none").exists()

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from support.commandline import BRIEF, SMALL, Cli, Result

import spsbench.runner
from spsbench.base.errors import UnavailableError
from spsbench.base.paths import mini_dir
from spsbench.base.records import Generation, Request, Sample
from spsbench.cli.options import RunOptions
from spsbench.models.onnx_lm import OnnxForward
from spsbench.models.placement import Placement
from spsbench.tasks.catalogue import load_task
from spsbench.tasks.task import Task


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "samples.jsonl").read_text().splitlines()]


def test_a_run_shows_the_table_and_leaves_its_directory(finished: tuple[Path, Result]) -> None:
    directory, result = finished
    assert result.code == 0, result.err
    assert "xsum-mini (synthetic)" in result.out
    for column in ("ArS", "SpS (K=4)", "nucleus", "ROUGE-2", "ms/token", "speedup [95%]", "tokens/loop"):
        assert column in result.out
    assert f"Everything is in {directory}" in result.err
    for name in ("config.yaml", "run.json", "prompts.jsonl", "samples.jsonl", "samples.parquet"):
        assert (directory / name).is_file()
    assert (directory / "report.md").read_text().startswith("# xsum")
    assert {line["arm"] for line in lines(directory)} == {"ars-nucleus", "sps-k4-nucleus"}


def test_architecture_names_the_way_from_the_command_to_the_forward(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every frame of ours under a draft's forward in a turn; what only hands on is a step too many."""
    package, ways = Path(spsbench.__file__).parent, dict[tuple[str, ...], None]()
    forward: Callable[..., Any] = OnnxForward.__call__

    def noted(self: OnnxForward, *given: Any, **named: Any) -> Any:
        frames = traceback.extract_stack()[:-1]
        ways[(*(f.name for f in frames if Path(f.filename).is_relative_to(package)), "__call__")] = None
        return forward(self, *given, **named)

    monkeypatch.setattr(OnnxForward, "__call__", noted)
    assert cli("run", *BRIEF, *SMALL, "--no-score", "--no-proof", "--out", tmp_path / "run").code == 0
    drafting = [way for way in ways if "answers" in way and "draft" in way]
    told = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
    paragraph = told.partition("The way from the command to the model's forward:")[2].partition("\n\n")[0]
    assert drafting == [tuple(re.findall(r"`(\w+)`", paragraph))]


def test_a_run_loads_its_task_once(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def noted(name: str, **options: Any) -> Task:
        loaded.append(name)
        return load_task(name, **options)

    monkeypatch.setattr("spsbench.engines.arms.load_task", noted)
    assert cli("run", "humaneval", *SMALL, "--k", "0", "--no-score", "--quiet").code == 0
    assert loaded == ["humaneval"]


def test_the_default_directory_is_a_fresh_one(cli: Cli, tmp_path: Path) -> None:
    first = cli("run", *BRIEF, *SMALL, "--k", "0", "--no-score", "--quiet")
    second = cli("run", *BRIEF, *SMALL, "--k", "0", "--no-score", "--quiet")
    assert (first.code, second.code) == (0, 0)
    assert first.err == second.err == ""
    assert len(list((tmp_path / "results").iterdir())) == 2


def test_json_is_alone_on_stdout(cli: Cli, tmp_path: Path) -> None:
    result = cli(
        "run", *BRIEF, *SMALL, "--sampling", "nucleus,greedy", "--k", "2", "--json", "--out", tmp_path / "run"
    )
    assert result.code == 0, result.err
    summary = json.loads(result.out)
    assert summary == json.loads((tmp_path / "run/summary.json").read_text())
    assert [(row["method"], row["k"], row["sampling"]) for row in summary["rows"]] == [
        ("ars", 0, "nucleus"),
        ("sps", 2, "nucleus"),
        ("ars", 0, "greedy"),
        ("sps", 2, "greedy"),
    ]
    greedy = [line["token_ids"] for line in lines(tmp_path / "run") if "greedy" in line["arm"]]
    assert greedy[0] == greedy[1]


@pytest.mark.parametrize(("typed", "k"), [([], "0..7"), (["--k", "2,adaptive"], "2,adaptive")])
def test_sweep_k_is_run_with_other_lookaheads_also_in_processes(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, typed: list[str], k: str
) -> None:
    asked: list[RunOptions] = []
    monkeypatch.setattr("spsbench.cli.run.start_run", asked.append)
    assert cli("sweep-k", *typed, "--processes", "2").code == 0
    assert cli("sweep-k", *typed).code == 0
    assert [options.k for options in asked] == [k, k]
    assert [options.processes for options in asked] == ["2", None]


@pytest.mark.thorough
def test_sweep_k_measures_every_k_in_one_run(cli: Cli, tmp_path: Path) -> None:
    result = cli("sweep-k", *BRIEF, *SMALL, "--k", "0..2", "--no-score", "--json", "--out", tmp_path / "run")
    assert result.code == 0, result.err
    assert [row["k"] for row in json.loads(result.out)["rows"]] == [0, 1, 2]


def test_code_runs_in_a_sandbox_or_not_at_all(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = cli("run", "humaneval", *SMALL, "--json", "--k", "0", "--out", tmp_path / "judged")
    assert judged.code == 0, judged.err
    assert "pass@1" in json.loads(judged.out)["rows"][0]["metrics"]
    assert "seccomp" in json.loads((tmp_path / "judged" / "run.json").read_text())["sandbox"]

    from spsbench.parts.judge import isolation

    monkeypatch.setattr(isolation, "_strongest_level", lambda: (None, ("nothing is allowed here",)))
    refused = cli("run", "humaneval", *SMALL)
    assert refused.code == 2
    assert "--unsafe-exec" in refused.err
    assert not (tmp_path / "results").exists()

    generated = cli("run", "humaneval", *SMALL, "--no-score", "--json", "--k", "0")
    assert generated.code == 0, generated.err
    assert json.loads(generated.out)["rows"][0]["metrics"] == {}


def test_ctrl_c_tells_how_to_continue_and_the_continued_run_is_whole(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executing = sys.modules["spsbench.runner.execution"]
    measure = executing.generated_samples

    def interrupted(*arguments: Any, **options: Any) -> Iterator[Sample]:
        for sample in measure(*arguments, **options):
            yield sample
            os.kill(os.getpid(), signal.SIGINT)

    # Who starts the tests in the background of a script starts them deaf to Ctrl-C.
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(executing, "generated_samples", interrupted)
            stopped = cli("run", *BRIEF, *SMALL, "--out", "run one")
    finally:
        signal.signal(signal.SIGINT, heard)
    assert stopped.code == 130
    assert "spsbench run --resume 'run one'" in stopped.err
    assert len(lines(tmp_path / "run one")) == 1

    resumed = cli("run", "--resume", "run one", "--limit", "2", "--json")
    assert resumed.code == 0, resumed.err
    assert [row["sequences"] for row in json.loads(resumed.out)["rows"]] == [2, 2]
    keys = [(line["example_id"], line["arm"]) for line in lines(tmp_path / "run one")]
    assert len(keys) == len(set(keys)) == 4


def test_ctrl_c_before_anything_was_measured_leaves_nothing(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["spsbench.runner.models"], "load_pair", interrupted)
    result = cli("run", *SMALL)
    assert result.code == 130
    assert result.err.endswith(
        f"Interrupted. Start it again with:\n  {shlex.join(['spsbench', 'run', *SMALL])}\n"
    )
    assert list((tmp_path / "results").iterdir()) == []


@pytest.mark.parametrize("made_before", [False, True], ids=["no folder", "an empty folder"])
def test_a_run_that_is_refused_at_loading_leaves_its_named_folder_free(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_before: bool
) -> None:
    """Another command, with other settings, may then be given the same ``--out``."""

    def refused(*_: Any, **__: Any) -> None:
        raise UnavailableError("no weights.", flag="--target")

    with monkeypatch.context() as broken:
        broken.setattr(sys.modules["spsbench.runner.models"], "load_pair", refused)
        if made_before:
            (tmp_path / "run").mkdir()
        assert cli("run", *SMALL, "--out", tmp_path / "run").code == 3
    assert (tmp_path / "run").exists() is made_before
    assert not list(tmp_path.glob("run/*"))
    assert cli("run", *SMALL, "--seed", "8", "--out", tmp_path / "run").code == 0


def test_failed_sequences_are_kept_shown_and_end_with_5(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spsbench.engines.local import EagerEngine

    generate = EagerEngine.generate

    def failing(self: Any, request: Request) -> Generation:
        if self._k == 0:
            return generate(self, request)
        raise RuntimeError("the device caught fire")

    monkeypatch.setattr(EagerEngine, "generate", failing)
    result = cli("run", *BRIEF, *SMALL, "--out", tmp_path / "run", "--fail-on", "incomplete")
    assert result.code == 5
    assert "failed" in result.out
    assert "error: of the sequences 1 failed and 0 are missing; 1 with: " in result.err
    assert [line["error"] for line in lines(tmp_path / "run") if line["error"]] == [
        "RuntimeError: the device caught fire"
    ]
    monkeypatch.setattr(EagerEngine, "generate", generate)
    again = cli("run", "--resume", tmp_path / "run", "--json")
    assert again.code == 0, again.err
    assert [row["failed"] for row in json.loads(again.out)["rows"]] == [0, 0]
    assert [bool(line["error"]) for line in lines(tmp_path / "run")].count(True) == 1  # still told


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (b"", 3, "data.jsonl"),
        (b"{not json\n", 3, "data.jsonl"),
        (b'{"id": "1", "document": "\xff\xfe", "summary": "s"}\n', 3, "data.jsonl"),
        (b'{"id": "1", "summary": "s"}\n', 3, "document"),
        (b'{"id": "1", "document": "", "summary": "s"}\n', 3, "document"),
    ],
    ids=["empty", "no JSON", "no UTF-8", "missing column", "empty article"],
)
def test_bad_data_is_refused_before_a_weight_is_loaded(
    cli: Cli, tmp_path: Path, content: bytes, code: int, said: str
) -> None:
    (tmp_path / "data.jsonl").write_bytes(content)
    result = cli("run", "--data", "data.jsonl")
    assert result.code == code, result.err
    assert said in result.err
    assert "Loading" not in result.err
    assert not (tmp_path / "results").exists()


def test_a_truncated_safetensors_file_is_3_and_leaves_no_run(cli: Cli, tmp_path: Path) -> None:
    for role in ("target", "draft"):
        shutil.copytree(mini_dir() / "draft", tmp_path / role)
    whole = (tmp_path / "draft/model.safetensors").read_bytes()
    (tmp_path / "draft/model.safetensors").write_bytes(whole[: len(whole) // 2])
    result = cli("run", "--target", "./target", "--draft", "./draft", "--data", "mini", *SMALL)
    assert result.code == 3, result.err
    assert "--draft: ./draft cannot be read" in result.err
    assert not (tmp_path / "results").exists()


def test_a_folder_that_is_no_model_is_3(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = cli("run", "--target", "./empty", "--draft", "./empty")
    assert result.code == 3
    assert "config.json" in result.err


def test_a_foreign_directory_is_left_alone(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("precious")
    result = cli("run", *SMALL, "--out", "mine")
    assert result.code == 2
    assert "thesis.tex" in result.err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_a_directory_of_another_run_is_left_alone(cli: Cli, finished: tuple[Path, Result]) -> None:
    directory, _ = finished
    before = (directory / "samples.jsonl").read_bytes()
    result = cli("run", *SMALL, "--seed", "7", "--out", directory)
    assert result.code == 2
    assert "seed" in result.err
    assert (directory / "samples.jsonl").read_bytes() == before


@pytest.mark.thorough_but("flags0")
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--dtype", "int8"), "target rounded to int8, draft rounded to int8"),
        (("--dtype", "auto:draft=int4"), ", draft rounded to int4"),
        (("--dtype", "auto+int4:draft=auto+none"), ", target rounded to int4"),
        (
            ("--dtype", "auto:draft=auto+int8", "--backend", "torch"),
            ", draft quantised to int8 by torchao "
            + metadata.version("torchao")
            + " (weight-only, one scale a row)",
        ),
    ],
)
def test_rounded_weights_are_named_wherever_a_result_is(
    cli: Cli, tmp_path: Path, flags: tuple[str, ...], said: str
) -> None:
    directory = tmp_path / "run"
    done = cli("run", "xsum", *BRIEF, "--k", "4", *SMALL, *flags, "--out", directory)
    assert done.code == 0, done.err
    assert said in " ".join(done.out.split())
    assert said in (directory / "report.md").read_text()
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["task_label"].endswith(said)
    assert summary["losslessness"]["verdict"] != "alarm"
    identity = json.loads((directory / "run.json").read_text())["identity"]
    assert identity.get("quantiser") == ("torchao" if "torchao" in said else None)


def test_a_spread_target_is_recorded(cli: Cli, tmp_path: Path) -> None:
    directory, modules = tmp_path / "run", tmp_path / "map.json"
    modules.write_text(json.dumps({"": "cpu", "model.layers.5": "disk"}))
    done = cli("run", "xsum", *BRIEF, "--k", "4", *SMALL, "--device-map", modules, "--out", directory)
    assert done.code == 0, done.err
    run = json.loads((directory / "run.json").read_text())
    assert run["models"]["target"]["device_map"]["model.layers.5"] == "disk"
    assert run["models"]["target"]["backend"] == "torch"
    assert run["conditions"][-1]["device_map"] == Placement.read(str(modules)).content
    assert json.loads((directory / "summary.json").read_text())["losslessness"]["verdict"] != "alarm"


def test_the_title_says_which_law_is_sampled(cli: Cli, tmp_path: Path) -> None:
    changed = ("--temperature", "0.5", "--process", "min_p=0.1:repetition_penalty=1.2")
    done = cli("run", *SMALL, *changed, "--k", "0", "--no-score", "--no-proof", "--out", tmp_path / "changed")
    law = "T=0.5, min-p 0.1, repetition penalty 1.2 (transformers)"
    assert f"xsum-mini (synthetic), {law}, pair mini" in " ".join(done.out.split())
    assert (tmp_path / "changed/report.md").read_text().startswith(f"# xsum-mini (synthetic), {law}\n")

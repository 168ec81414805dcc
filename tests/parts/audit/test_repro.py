"""What ``audit --repro`` writes: it runs without spsbench, and tells a wrong engine from a right one."""

from __future__ import annotations

import ast
import json
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from scipy import stats
from support import tiny_models
from support.commandline import call
from support.tiny_engine import Folders, Models, in_process, kind_with

from benchmarks.audit_power import STOP, Tables
from spsbench.base.protocol import Described
from spsbench.base.records import SamplingParams
from spsbench.decode.sampling import warp
from spsbench.parts.audit import engine_audit, repro
from spsbench.parts.audit import repro_parts as common
from spsbench.parts.audit.engine_audit import Effort, Row, Setting, SettingResult, Subject, audit_engine
from spsbench.parts.audit.messages.faults import LEAVES_OUT_STOPS
from spsbench.parts.audit.repro import Draws, options_of, reproduce, reproducible, script
from spsbench.parts.external.registry import NAMED
from spsbench.stats.losslessness import ALARM
from spsbench.store.summary_types import ReproFacts

K = 2
LENGTH = 12
FEW = Draws(tried=20, measured=80)


@pytest.fixture(autouse=True)
def _few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An alarm goes on to fewer texts, among which there are contexts enough."""
    monkeypatch.setattr(engine_audit, "TO_LOCATE", 20)


def subject(folders: Folders, models: Models, fault: str | None) -> Subject:
    kind = kind_with(fault, "worker:python -m spsbench.parts.verify.served")
    prompts = [tuple((7 * i + 11 * j) % 250 for j in range(12)) for i in range(4)]
    return Subject(kind, models, folders, prompts, [tiny_models.EOS], 1)


def alarm(asked: Subject, sampling: SamplingParams, k: int, folder: Path) -> Row:
    effort = Effort(1e-9, 160, 60.0, LENGTH)
    (row,) = audit_engine(asked, [Setting(sampling, k)], effort, 0, folder, lambda _: None)
    assert reproducible([row]) is row
    return row


def reproduced(
    folders: Folders,
    models: Models,
    fault: str,
    folder: Path,
    *,
    sampling: SamplingParams = SamplingParams(),
    k: int = K,
    then: str | None = "",
    draws: Draws = FEW,
) -> ReproFacts:
    """The alarm of a faulty engine, looked for in the same one, or in another."""
    asked = subject(folders, models, fault)
    row = alarm(asked, sampling, k, folder)
    asked = asked if then == "" else subject(folders, models, then)
    return reproduce(row, asked, folder, names=("T", "D"), max_new_tokens=LENGTH, seed=0, draws=draws)


@pytest.mark.parametrize(
    ("fault", "sampling", "k"),
    [("reused-seed", SamplingParams(), 0), ("row-off-by-one", SamplingParams(greedy=True), K)],
)
def test_a_prompt_is_found_that_shows_the_fault(
    fault: str, sampling: SamplingParams, k: int, folders: Folders, models: Models, tmp_path: Path
) -> None:
    facts = reproduced(folders, models, fault, tmp_path, sampling=sampling, k=k)
    assert facts["clear"], facts
    assert facts["p_value"] < 1e-3
    assert sum(facts["observed"].values()) <= facts["outputs"]
    assert sum(facts["expected"].values()) + facts["rest"] == pytest.approx(1.0, abs=1e-5)


def test_what_is_not_shown_is_called_so(folders: Folders, models: Models, tmp_path: Path) -> None:
    """The engine is right by the time that it is asked for the script."""
    facts = reproduced(folders, models, "inverted-ratio", tmp_path, then=None, draws=Draws(15, 40))
    assert not facts["clear"]
    assert facts["p_value"] > 1e-3
    assert "no clear deviation" in (tmp_path / "repro.py").read_text()


@pytest.mark.parametrize("law", [LEAVES_OUT_STOPS, "takes the most probable token"])
def test_stops_that_are_left_out_are_looked_for_where_they_are_likely(law: str) -> None:
    """No draft and no other law of rows says where that fault shows, the name of the bet does."""
    tokens = [(7 * n) % 40 for n in range(12)]
    reading = Tables.made(3).reading((1, 2), tokens, SamplingParams())
    found = SettingResult(ALARM, None, 1, None, [], [], 0.0, None, ("every token", law))
    row = Row(Setting(SamplingParams(), 0), Described("engine", "1"), found, None, None)
    likely, best = reading.q[:, STOP].double(), int(reading.q[:, STOP].argmax())
    apart = repro._row_distances(reading, row, [STOP])
    assert best > 0
    if law == LEAVES_OUT_STOPS:
        assert torch.equal(apart, likely)
        (start,) = repro._best_starts(reading, row, (1, 2), [STOP])
        assert start.ids == (1, 2, *tokens[:best])
    else:
        assert not apart.any()


@pytest.mark.thorough
def test_the_script_tells_a_wrong_engine_from_a_right_one(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the real command line, which has the engine in its process; the script runs without any package, and
    starts the engine with ours."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    monkeypatch.setattr(repro, "Draws", lambda: FEW)
    right = f"{sys.executable} -m spsbench.parts.verify.served"
    target, draft = folders
    pair = ("--target", target, "--draft", draft)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"{first} prompt of a few letters\n" for first in "ABCD"))
    small = ("--task", prompts, "--texts", "20", "--max-new-tokens", "12", "--arms", "sps", "--k", "2")
    worker = in_process("inverted-ratio", monkeypatch)
    result = call("audit", "--engine", worker, "--repro", "--out", tmp_path / "out", *pair, *small)
    assert result.code == 4, result.err
    facts = json.loads((tmp_path / "out" / "audit.json").read_text())["repro"]
    assert facts["clear"]
    path = tmp_path / "out" / facts["script"]
    told = "".join(result.out.split())  # a long path may be broken anywhere
    assert "repro.pyshowsit:K=2,T=1,apromptof" in told
    assert "Models: target, drafts by draft." in path.read_text()
    assert str(tmp_path.parent) not in path.read_text()

    def ran(*flags: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", "-S", str(path), *map(str, pair), "--draws", "80"]
        command += map(str, flags)
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    wrong = ran()
    assert (wrong.returncode, "NOT the target's distribution" in wrong.stdout) == (3, True), wrong.stderr
    controlled = ran("--command", right)
    assert controlled.returncode == 0, controlled.stdout + controlled.stderr
    assert "consistent with the target's distribution" in controlled.stdout
    refused = ran("--command", f"{sys.executable} -c pass")
    assert refused.returncode == 1
    assert "describe: the engine ended" in refused.stderr


# --- scripts ------------------------------------------------------------------------------------------


def case(engine: str, **changes: object) -> dict[str, object]:
    facts: dict[str, object] = {
        "prompt_ids": [1, 2, 3],
        "prefix_ids": [],
        "prefix_probability": 1.0,
        "max_new_tokens": 4,
        "stop_ids": [0],
        "sampling": asdict(SamplingParams()),
        "k": K,
        "threads": 1,
        "context": 256,
        "dtype": "float32",
        "vocab_size": 5,
        **options_of(engine),
        "draws": 20,
        "first_seed": 1,
        "held_against": None,
        "expected": {1: 0.5, 2: 0.5},
        "rest": 0.0,
    }
    return facts | changes


@pytest.mark.parametrize("engine", [*NAMED, "openvino@2025.2.0.0", "worker:python 'my engine.py'"])
def test_scripts_of_every_engine_are_whole(engine: str, tmp_path: Path) -> None:
    """They lack no name, import nothing of ours, and say what they take, without any package."""
    path = tmp_path / "repro.py"
    path.write_text(script(engine, "A title.", case(engine)))
    check = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", path]
    found = subprocess.run(check, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout
    imported = [
        name
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    ]
    assert not [name for name in imported if name.startswith("spsbench")]
    assert len(imported) == len(set(imported))
    told = subprocess.run(
        [sys.executable, "-I", "-S", path, "--help"], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    assert "--target" in told.stdout


def test_servers_are_refused() -> None:
    result = call("audit", "--engine", "openai:http://127.0.0.1:8000/v1", "--repro")
    assert (result.code, "--repro: no script is written for servers" in result.err) == (2, True), result.err


# --- statistics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("freedom", [1, 2, 3, 8, 31])
@pytest.mark.parametrize("statistic", [0.1, 3.0, 17.0, 240.0])
def test_the_tail_is_that_of_scipy(statistic: float, freedom: int) -> None:
    assert common.chi_square(statistic, freedom) == pytest.approx(stats.chi2.sf(statistic, freedom), rel=1e-9)


def test_right_tokens_rarely_look_wrong() -> None:
    numbers = random.Random(5)
    expected = {0: 0.6, 1: 0.25, 2: 0.1, 3: 0.04, 4: 0.01}
    found = [
        common.p_value(
            Counter(numbers.choices(list(expected), list(expected.values()), k=200)), (expected, 0.0)
        )
        for _ in range(2000)
    ]
    assert sum(p < 0.05 for p in found) <= 150
    assert sum(p < 0.001 for p in found) <= 8


def test_two_greedy_tokens_that_rounding_may_exchange_are_no_firm_place() -> None:
    greedy = SamplingParams(greedy=True)
    assert not repro._is_firm(torch.tensor([[0.0, 9e-4, -5.0]]), greedy)
    assert repro._is_firm(torch.tensor([[0.0, 2e-3, -5.0]]), greedy)


def test_tokens_of_probability_0_count() -> None:
    row: common.Row = ({1: 0.5, 2: 0.5}, 0.0)
    assert common.p_value({1: 50, 2: 50}, row) == 1.0
    assert common.p_value({1: 50, 2: 48, 3: 2}, row) < 1e-7
    assert common.p_value({1: 50, 2: 48, 3: 2}, ({1: 0.5, 2: 0.48}, 0.02)) > 0.1


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(greedy=True),
        SamplingParams(temperature=0.7, top_p=0.9),
        SamplingParams(temperature=1.5, top_k=6, top_p=0.8),
    ],
)
def test_rows_are_computed_as_ours(sampling: SamplingParams) -> None:
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    ours = warp(logits, sampling)[0]
    theirs = common.warped(logits[0].tolist(), **sampling.record())
    assert theirs == pytest.approx({int(token): float(ours[token]) for token in ours.nonzero()[:, 0]})

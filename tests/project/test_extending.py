"""docs/extending.md is true: its examples draft, ask, score, are proved, and are found by name and file."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.commandline import BRIEF, call

import spsbench
from spsbench.base.axes import identity, label
from spsbench.base.errors import UnavailableError, UsageError
from spsbench.base.records import SamplingParams, Spec
from spsbench.config.resolution import resolve
from spsbench.decode.protocols import Drafter
from spsbench.drafters import registry
from spsbench.drafters.checked import DrafterFault
from spsbench.drafters.registry import Context, DrafterKind, built, drafter_kind
from spsbench.engines.arms import task_and_arms
from spsbench.parts.verify import effort
from spsbench.parts.verify.effort import Sizes
from spsbench.tasks.catalogue import task_kind
from spsbench.testing import assert_lossless, context_of

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/echo_drafter.py"
SUMS = ROOT / "examples/sums_task.py"
FLAGS = ("--limit", "2", "--max-new-tokens", "12", "--threads", "1", "--no-score", "--set", "warmup=false")


TABLES: dict[str, Sizes] = {"tables": ((3, 2),), "wide_tables": ((5, 2),)}
LITTLE = effort.Effort(draws=60, end_to_end=10, contexts=1, prompts=1, outputs=1, **TABLES)


Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a module with entry points where installed packages lie."""

    def installed(source: Path, entry_points: str) -> None:
        site, module = tmp_path / "site", source.stem
        information = site / f"{module}-1.0.dist-info"
        information.mkdir(parents=True)
        (site / source.name).write_text(source.read_text())
        name = module.replace("_", "-")
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(entry_points)
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.delitem(sys.modules, module, raising=False)

    return installed


def test_the_rule_for_trees_of_the_page_is_the_example_and_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    text = (ROOT / "docs/extending.md").read_text()
    section = text.partition("### A rule for trees")[2]
    shown, proof = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[:2]
    assert shown in (ROOT / "examples/tree_rule.py").read_text()
    exec(proof, {})


def test_the_example_is_lossless() -> None:
    assert_lossless(drafter_kind(f"{EXAMPLE}:KIND"), ks=(1, 2), vocab_size=3)


@pytest.mark.thorough
def test_the_commands_of_the_page_run_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setitem(effort.EFFORTS, "reduced", LITTLE)
    text = (ROOT / "docs/extending.md").read_text()
    commands = re.findall(r"^spsbench (run --drafter .*echo_drafter.*)$", text, re.MULTILINE)
    assert len(commands) == 2
    assert "spsbench verify --drafter examples/echo_drafter.py:KIND --k 4\n" in text
    assert call("verify", "--drafter", f"{EXAMPLE}:KIND", "--effort", "reduced", *FLAGS[4:6]).code == 0
    for index, command in enumerate(commands):
        out = tmp_path / str(index)
        result = call(*command.split(), *BRIEF, *FLAGS, "--out", out, "--quiet")
        assert result.code == 0, result.err
        arms = [row["drafter"] for row in json.loads((out / "summary.json").read_text())["rows"]]
        assert any("echo_drafter.py:KIND" in str(drafter) for drafter in arms)


def test_a_drafter_from_a_file_is_shown_by_the_name_that_it_declares(tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(EXAMPLE.read_text())

    def labels(*drafters: str) -> list[str]:
        settings = {"target": "t", "draft": "d", "drafters": drafters, "ks": (4,), "methods": ("sps",)}
        _, arms = task_and_arms(resolve({"task": "xsum", **settings}))
        rows = [identity({"arm": arm.name, **arm.axes()}) for arm in arms]
        assert [row["drafter"] for row in rows] == list(drafters)
        return [label(row) for row in rows]

    echo = f"{EXAMPLE}:KIND"
    assert labels("model", f"{echo}:most=2") == ["SpS (K=4)", "SpS (K=4, echo:most=2)"]
    assert labels(echo, f"{other}:KIND") == ["SpS (K=4, echo_drafter)", "SpS (K=4, other)"]


def test_the_python_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = spsbench.run(
        task="xsum", drafter="model,lookup", k="2", limit=2, max_new_tokens=8, threads=1, score=False
    )
    assert set(run.rows["arm"]) == {"ars-nucleus", "sps-k2-nucleus", "sps-k2-nucleus+lookup"}
    assert {"speedup.ratio", "speedup.low", "speedup.high"} <= set(run.rows.columns)
    assert set(run.loops["arm"]) == set(run.rows["arm"])
    assert len(spsbench.Run(run.directory).samples) == 6
    first, *screen = repr(run).splitlines()
    assert first == f"Run({str(run.directory)!r})"
    assert any(line.split()[-1:] == ["tokens/loop"] for line in screen)


def test_an_installed_package_gives_its_drafter_a_name(tmp_path: Path, install: Install) -> None:
    points = "echo = echo_drafter:KIND\nbroken = no_such_module:KIND\nother = json:dumps\n"
    install(EXAMPLE, f"[spsbench.drafters]\n{points}")
    assert drafter_kind("echo").summary == "Repeats what followed the last time."
    with pytest.raises(UnavailableError, match="broken"):
        drafter_kind("broken")
    with pytest.raises(UsageError, match="not DrafterKind"):
        drafter_kind("other")
    result = call(
        "run", "xsum", *BRIEF, "--drafter", "echo:most=3", *FLAGS, "--out", tmp_path / "run", "--quiet"
    )
    assert result.code == 0, result.err


WRONG = [
    ("Draft(torch.tensor([10**6]), None)", "proposed a token outside the vocabulary"),
    ("Draft(torch.zeros(9, dtype=torch.int64), None)", "proposed 9 tokens where 2 are allowed"),
    ("Draft(torch.tensor([-1]), None)", "proposed a token outside the vocabulary"),
    ("Draft(torch.zeros(1), None)", "not a tensor [n] of int64"),
    ("Draft(torch.zeros(1, 1, dtype=torch.int64), None)", "not a tensor [n] of int64"),
    ("[1, 2]", "answered list, not a Draft"),
    ("Draft(torch.tensor([1]), torch.full((1, 1024), float('nan')))", "a number that is not a probability"),
    ("Draft(torch.tensor([1]), torch.eye(1024)[:1])", "its own row gives no probability"),
    ("Draft(torch.tensor([1]), torch.ones(1, 1024))", "rows that do not add up to 1"),
    ("Draft(torch.tensor([1]), torch.ones(2, 3))", "rows that are not a tensor"),
    ("1 / 0", "raised ZeroDivisionError: division by zero"),
]
"""What a drafter answers, and what is said of it."""


@pytest.fixture(scope="module")
def of_wrong_drafters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str | None]]:
    """The errors of every sequence by arm, in a run of the draft model beside drafters that are all wrong."""
    folder: Path = tmp_path_factory.mktemp("wrong")
    text = "import torch\nfrom spsbench import Draft, DrafterKind\n"
    for index, (answer, _) in enumerate(WRONG):
        text += (
            f"\n\nclass Wrong{index}:\n"
            "    def begin(self, prompt): pass\n    def observe(self, tokens, accepted): pass\n"
            f"    def draft(self, tokens, k, u): return {answer}\n\n\n"
            f"KIND{index} = DrafterKind('wrong', 'Wrong.', lambda options, context: Wrong{index}())\n"
        )
    (folder / "wrong.py").write_text(text)
    drafters = ["model", *(f"{folder / 'wrong.py'}:KIND{index}" for index in range(len(WRONG)))]
    flags = (*FLAGS[:6], "--no-score", "--no-proof", "--set", "warmup=false", "--k", "2", "--quiet")
    result = call("run", "xsum", *BRIEF, "--drafter", ",".join(drafters), *flags, "--out", folder / "run")
    assert result.code == 5, result.err
    errors: dict[str, list[str | None]] = {}
    for line in map(json.loads, (folder / "run/samples.jsonl").read_text().splitlines()):
        errors.setdefault(line["arm"].rpartition("/")[2], []).append(line["error"])
    return errors


@pytest.mark.parametrize("index", range(len(WRONG)), ids=[said for _, said in WRONG])
def test_what_a_drafter_does_wrong_fails_its_sequences_and_not_the_run(
    of_wrong_drafters: dict[str, list[str | None]], index: int
) -> None:
    said = WRONG[index][1]
    errors = of_wrong_drafters[f"wrong.py:KIND{index}"]
    assert len(errors) == 2
    assert all(error is not None and said in error and f"wrong.py:KIND{index}" in error for error in errors)


def test_the_other_arms_of_that_run_are_whole(of_wrong_drafters: dict[str, list[str | None]]) -> None:
    assert len(of_wrong_drafters) == 2 + len(WRONG)
    assert [of_wrong_drafters[arm] for arm in ("ars-nucleus", "sps-k2-nucleus")] == [[None, None]] * 2


MIDDLE = """
import torch
from spsbench import Draft, DrafterKind


class Middle:
    "Copies the last token, until something happens in the middle of the first sequence."

    def __init__(self, what, once):
        self.what, self.once, self.loops, self.sequences = what, once, 0, 0

    def happens(self, where):
        if self.what == where and self.loops > 2 and (self.sequences == 1 or not self.once):
            raise RuntimeError(f"lost in {where}")

    def begin(self, prompt):
        self.sequences, self.loops = self.sequences + 1, 9 if self.what == "begin" else 0
        self.happens("begin")

    def observe(self, tokens, accepted):
        self.happens("observe")

    def draft(self, tokens, k, u):
        self.loops += 1
        self.happens("draft")
        many = k + 1 if self.what == "many" and self.loops > 2 and self.sequences == 1 else k
        return Draft(torch.tensor([tokens[-1]] * many), None)


def build(options, context):
    if options["what"] == "build":
        raise RuntimeError("lost in build")
    return Middle(options["what"], options["once"])


KIND = DrafterKind("middle", "Wrong.", build, {"what": "draft", "once": True})
"""


def run_middle(tmp_path: Path, drafter: str, *flags: str) -> tuple[int, str, list[dict[str, Any]]]:
    """Exit code, messages and the sequences of the drafter's arm, in order."""
    file = tmp_path / "middle.py"
    file.write_text(MIDDLE)
    common = (*FLAGS[:6], "--no-score", "--k", "2", "--quiet", "--out", tmp_path / "run")
    result = call("run", "xsum", *BRIEF, "--drafter", f"model,{file}:KIND:{drafter}", *common, *flags)
    lines = [json.loads(line) for line in (tmp_path / "run/samples.jsonl").read_text().splitlines()]
    assert len(lines) == 6, "every arm wrote both of its sequences"
    assert all(line["error"] is None for line in lines if "middle.py" not in line["arm"])
    return result.code, result.err, [line for line in lines if "middle.py" in line["arm"]]


@pytest.mark.thorough_but("[draft]")
@pytest.mark.parametrize("what", ["draft", "observe", "begin", "many"])
def test_a_fault_in_the_middle_fails_its_sequence_alone(tmp_path: Path, what: str) -> None:
    """The engine keeps a drafter for all of its sequences: those behind the broken one are whole."""
    code, told, (first, second) = run_middle(tmp_path, f"what={what}", "--no-proof", "--set", "warmup=false")
    assert code == 5
    assert "of the sequences 1 failed" in told
    said = "proposed 3 tokens where 2 are allowed" if what == "many" else f"RuntimeError: lost in {what}"
    assert said in first["error"]
    assert "middle.py:KIND" in first["error"]
    assert second["error"] is None


@pytest.mark.thorough_but("[build]")
@pytest.mark.parametrize("what", ["build", "draft", "begin"])
def test_a_drafter_that_always_fails_stops_no_other_arm(tmp_path: Path, what: str) -> None:
    """With warm-up and proof, as a run is by default: each meets the fault before or behind the sequences."""
    code, told, sequences = run_middle(tmp_path, f"what={what}:once=false")
    assert code == 5
    assert "of the sequences 2 failed" in told
    for line in sequences:
        assert f"raised RuntimeError: lost in {what}" in line["error"]
        assert "middle.py:KIND" in line["error"]


def test_a_drafter_under_a_name_of_ours_is_checked_all_the_same() -> None:
    """Inside of a union too."""
    kind = DrafterKind("lookup", "Wrong.", lambda options, context: object())  # type: ignore[arg-type]
    context = context_of(4, SamplingParams())
    with pytest.raises(DrafterFault, match=r"the drafter theirs raised AttributeError"):
        built(kind, Spec("theirs"), context).begin([1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "drafter_kind", lambda name, flag="--drafter": kind)
        member = build_union(context)
    with pytest.raises(DrafterFault, match=r"the drafter echo raised AttributeError"):
        member.begin([1])


def build_union(context: Context) -> Drafter:
    return registry.DRAFTERS["union"].build({"of": "echo", "tree": "chain"}, context)


@pytest.mark.thorough
@pytest.mark.usefixtures("drawn")
def test_two_drafters_at_one_k_are_two_arms_everywhere(tmp_path: Path) -> None:
    result = call(
        *(
            "run",
            "xsum",
            *BRIEF,
            "--drafter",
            "model,lookup",
            "--rule",
            "modified-rejection,lenience",
            "--k",
            "2,3",
        ),
        *(*FLAGS, "--out", tmp_path / "run"),
    )
    assert result.code == 0, result.err
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert len({row["arm"] for row in summary["rows"]}) == 9
    assert len({arm["arm"] for arm in summary["losslessness"]["arms"]}) == 9
    lossy = [arm for arm in summary["losslessness"]["arms"] if arm["rule"] == "lenience"]
    assert {arm["verdict"] for arm in lossy} == {"lossy by design"}
    assert "lossy" in result.out
    report = call("report", tmp_path / "run", "--html")
    assert report.code == 0, report.err
    page = (tmp_path / "run/report.md").read_text()
    for name in ("SpS (K=2, lookup)", "SpS (K=3, lookup, lenience, lossy)"):
        assert name in page


SCORED = tuple(flag for flag in FLAGS if flag != "--no-score")


@pytest.mark.thorough
def test_the_task_of_the_page_runs_with_its_metric_in_every_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs/extending.md").read_text()
    assert SUMS.read_text().partition("\n\n\n")[2].strip() in text
    (command,) = re.findall(r"^spsbench (run examples/sums_task.py.*)$", text, re.MULTILINE)
    run = tmp_path / "run"
    result = call(*command.split(), *SCORED, "--arms", "ars,sps,draft", "--out", run)
    assert result.code == 0, result.err
    assert "sums (synthetic)" in result.out
    assert "distance" in result.out
    summary = json.loads((run / "summary.json").read_text())
    assert all(set(row["metrics"]) == {"distance", "exact_match"} for row in summary["rows"])
    assert summary["parity"]["metric"] == "distance"
    told = json.loads((run / "run.json").read_text())
    assert told["metrics"]["distance"] == {"higher_is_better": False, "margin": 0.5}
    assert call("report", run, "--html", "--quiet").code == 0
    page = (run / "report.md").read_text()
    assert "| arm | sampling | distance | exact_match |" in page
    assert "Parity of distance" in page
    assert "distance" in call("compare", run, run).out


@pytest.mark.thorough
def test_an_installed_package_gives_its_task_and_metric_a_name(tmp_path: Path, install: Install) -> None:
    points = "[spsbench.tasks]\nmypkg-sums = sums_task:KIND\nbroken = sums_task:NOTHING\nother = json:dumps\n"
    install(SUMS, f"{points}[spsbench.metrics]\nmypkg-distance = sums_task:DISTANCE\n")
    named = call("run", "mypkg-sums", *SCORED, "--out", tmp_path / "named", "--quiet")
    assert named.code == 0, named.err
    task = tmp_path / "news.yaml"
    task.write_text(
        (ROOT / "tasks/xsum.yaml")
        .read_text()
        .replace("headline:", "metrics: [mypkg-distance, rouge2]\nheadline:")
    )
    mixed = call("run", task, *BRIEF, *SCORED, "--out", tmp_path / "mixed", "--quiet")
    assert mixed.code == 0, mixed.err
    row = json.loads((tmp_path / "mixed/summary.json").read_text())["rows"][0]
    assert list(row["metrics"]) == ["distance", "rouge2"]
    again = call("run", "--resume", tmp_path / "named", "--limit", "3", "--quiet")
    assert again.code == 0, again.err
    for name, code, said in [
        ("mypkg-sum", 2, "Did you mean mypkg-sums?"),
        ("broken", 3, "broken (sums_task:NOTHING) cannot be imported (AttributeError"),
        ("other", 2, "is function, not TaskKind"),
        ("none.py:KIND", 3, "none.py does not exist"),
        (f"{SUMS}:DISTANCE", 2, "is MetricKind, not TaskKind"),
    ]:
        result = call("run", name, "--out", tmp_path / "refused")
        assert (result.code, said in " ".join(result.err.split())) == (code, True), result.err
        assert not (tmp_path / "refused").exists()


@pytest.mark.thorough
def test_a_metric_that_fails_loses_nothing_that_was_generated(tmp_path: Path) -> None:
    file, run = tmp_path / "mine.py", tmp_path / "run"
    text = SUMS.read_text()
    file.write_text(text.replace("return [abs(", "return [1 / 0 * abs("))
    result = call("run", f"{file}:KIND", *SCORED, "--out", run, "--quiet")
    assert result.code == 1
    assert "the metric distance raised ZeroDivisionError" in result.err
    file.write_text(text)
    mended = call("score", run, "--missing", "--quiet")
    assert mended.code == 0, mended.err
    rows = json.loads((run / "summary.json").read_text())["rows"]
    assert [row["sequences"] for row in rows] == [2, 2]
    assert all(row["metrics"]["distance"] is not None for row in rows)


def test_a_task_without_a_metric_is_measured_all_the_same(tmp_path: Path) -> None:
    file, run = tmp_path / "mine.py", tmp_path / "run"
    file.write_text(SUMS.read_text().replace('metrics=(DISTANCE, "exact_match")', "metrics=()"))
    result = call("run", f"{file}:KIND", *SCORED, "--out", run)
    assert result.code == 0, result.err
    assert json.loads((run / "summary.json").read_text())["parity"] is None
    assert "sums (synthetic)" in result.out


def test_a_file_may_hold_a_dataclass(tmp_path: Path) -> None:
    file = tmp_path / "typed.py"
    text = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    text += "from spsbench import TaskKind\n\n\n@dataclass\nclass Shot:\n    number: int\n\n\n"
    file.write_text(text + "KIND = TaskKind('typed', str(Shot(3)), list, str)\n")
    assert task_kind(f"{file}:KIND").summary == "Shot(number=3)"

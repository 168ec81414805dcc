"""Every way by which a received folder could run something is refused and named, or stays in the sandbox."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commandline import SMALL, Cli, Result, call

from spsbench.base.errors import UsageError
from spsbench.base.paths import data_dir
from spsbench.config.models import RunConfig
from spsbench.config.trust import CODE, code_in, require_typed, untyped_code
from spsbench.parts.judge import isolation

RESUME: tuple[str, ...] = ("run", "--resume", "received")
OUT = ("run", "--out", "received")
CONFIG = ("run", "--out", "new", "--config", "received/config.yaml")
SCORE = ("score", "received")
PAPER = ("paper", "--resume", "received")

THEIRS = "theirs.py:kind"
INTERPRETER = "{here}/interpreter"


@pytest.fixture(autouse=True)
def theirs(tmp_path: Path, cli: Cli) -> None:
    """What strangers sent beside the folder: each leaves a mark when it runs."""
    here = Path("theirs.py")
    here.write_text(f"from pathlib import Path\nPath({str(tmp_path / 'mark')!r}).touch()\n")
    for ending in ("yaml", "yml"):
        shipped = (data_dir("tasks") / "xsum.yaml").read_text()
        Path(f"theirs.{ending}").write_text(f"{shipped}\nmetrics: [{THEIRS}]\n")
    interpreter = Path("interpreter")
    interpreter.write_text(f"#!/bin/sh\ntouch {tmp_path / 'mark'}\n")
    interpreter.chmod(0o755)
    paper = {"name": "theirs", "pair": "mini", "drafts": {"a": {"id": "embedded:mini/draft"}}}
    Path("paper.yaml").write_text(yaml.safe_dump(paper | {"tasks": {"a": THEIRS}}))
    model = {name: {"id": f"embedded:mini/{name}"} for name in ("target", "draft")}
    Path("pair.yaml").write_text(yaml.safe_dump({"name": "theirs", **model, "drafter": THEIRS}))


@dataclass(frozen=True)
class Route:
    """Settings of a folder with which a command would run something, and how that is named."""

    command: tuple[str, ...]
    settings: dict[str, Any]
    named: str
    without: tuple[str, ...] = ()
    marks: bool = True  # before any model is looked for


def routes() -> Iterator[tuple[str, Route]]:
    """All of them, by a name."""
    pair = {name: {"id": f"embedded:mini/{name}"} for name in ("target", "draft")} | {"name": "theirs"}
    values: dict[str, tuple[str, Any, str]] = {
        "task py": ("task", THEIRS, "task: theirs.py:kind"),
        "task dotted": ("task", f"./{THEIRS}", "task: ./theirs.py:kind"),
        "task yaml": ("task", "theirs.yaml", "task: theirs.yaml"),
        "task yml": ("task", "theirs.yml", "task: theirs.yml"),
        "drafter": ("drafters", [THEIRS], "drafter: theirs.py:kind"),
        "drafter in a text": ("drafters", f"lookup , {THEIRS}", "drafter: theirs.py:kind"),
        "drafter with an option": ("drafters", [f"{THEIRS}: x = 1"], "drafter: theirs.py:kind"),
        "member of a union": ("drafters", [f"union:of=lookup+{THEIRS}"], "drafter: union"),
        "member with spaces": ("drafters", [f"union: of =lookup+{THEIRS}"], "drafter: union"),
        "rule": ("rules", ["modified-rejection", THEIRS], "rule: theirs.py:kind"),
        "policy": ("policies", THEIRS, "policy: theirs.py:kind"),
        "interpreter": ("engines", [f"transformers:python={INTERPRETER}"], "engine: transformers"),
        "interpreter after a space": ("engines", [f"transformers: python={INTERPRETER}"], "engine: trans"),
        "interpreter before one": ("engines", [f"vllm:python ={INTERPRETER}"], "engine: vllm"),
        "interpreter after a tab": ("engines", [f"vllm:\tpython={INTERPRETER}"], "engine: vllm"),
        "interpreter second": (
            "engines",
            [f"openvino:speculation=lookup: python={INTERPRETER}"],
            "engine: o",
        ),
        "interpreter in a text": ("engines", f"eager,vllm: python={INTERPRETER}", "engine: vllm"),
        "command": ("engines", ["worker:touch {here}/mark"], "engine: worker:touch"),
        "command quoted": ("engines", 'eager,worker:"touch {here}/mark"', "engine: worker:touch"),
        "server": ("engines", ["openai:http://127.0.0.1:9/v1"], "engine: openai"),
        "no sandbox": ("score", "unsafe", "score: unsafe"),
        "no sandbox as before": ("unsafe_exec", True, "score: unsafe"),
    }
    for command, how in ((RESUME, "--resume"), (CONFIG, "--config")):
        for name, (key, value, named) in values.items():
            late = ("score", "unsafe_exec")
            marks = key not in late and "command" not in name and name != "server"
            yield f"{how}: {name}", Route(command, {key: value}, named, marks=marks)
        yield (
            f"{how}: drafter of a pair",
            Route(command, {"pair": {**pair, "drafter": THEIRS}}, "drafter: ", ("drafters",)),
        )
        yield (
            f"{how}: task of a pair",
            Route(command, {"pair": {**pair, "task": THEIRS}}, "task: ", ("task",)),
        )
    for name in ("task py", "task dotted", "task yaml", "task yml"):
        key, value, named = values[name]
        yield f"score: {name}", Route(SCORE, {key: value}, named)
    yield "score: task of a pair", Route(SCORE, {"pair": {**pair, "task": THEIRS}}, "task: ", ("task",))
    for command in (RESUME, OUT):
        yield (
            f"field: {' '.join(command)}",
            Route(command, {"field": {"task": THEIRS}}, "task: theirs.py:kind"),
        )
    for command in (PAPER, ("paper", "--out", "received")):
        how = " ".join(command)
        yield f"{how}: of", Route(command, {"options": {"of": "{here}/paper.yaml"}}, "task: theirs.py:kind")
        tasks = {"of": "leviathan", "task": [f"a={THEIRS}"]}
        yield f"{how}: task", Route(command, {"options": tasks}, "task: theirs.py:kind")
        yield (
            f"{how}: pair",
            Route(command, {"options": {"pair": "{here}/pair.yaml"}}, "drafter: theirs.py:kind"),
        )
        unsafe = {"options": {"pair": "mini", "unsafe_exec": True}}
        yield f"{how}: no sandbox", Route(command, unsafe, "score: unsafe", marks=False)


ROUTES = dict(routes())


@pytest.fixture
def planted(finished: tuple[Path, Result], tmp_path: Path) -> Callable[[Route], None]:
    """Puts a route's settings into a folder that was received."""

    def plant(route: Route) -> None:
        text = json.dumps(route.settings).replace("{here}", str(tmp_path))
        changes = json.loads(text)
        folder = tmp_path / "received"
        if "options" in changes:
            folder.mkdir()
            (folder / "options.json").write_text(json.dumps(changes["options"]))
            return
        shutil.copytree(finished[0], folder)
        settings = yaml.safe_load((folder / "config.yaml").read_text())
        if "field" in changes:
            (folder / "field").mkdir()
            (folder / "field/gsm8k.yaml").write_text(yaml.safe_dump(settings | changes["field"]))
            return
        for name in route.without:
            del settings[name]
        (folder / "config.yaml").write_text(yaml.safe_dump(settings | changes))

    return plant


@pytest.mark.parametrize("name", ROUTES)
def test_it_is_refused_and_named(
    cli: Cli, tmp_path: Path, planted: Callable[[Route], None], name: str
) -> None:
    route = ROUTES[name]
    planted(route)
    refused = cli(*route.command)
    assert not (tmp_path / "mark").exists()
    assert refused.code == 2, refused.err
    told = re.sub(r"\s+", " ", refused.err)
    assert "error: --trust: the settings of" in told
    assert f"would run {route.named}" in told


@pytest.mark.parametrize("name", [name for name, route in ROUTES.items() if route.marks])
def test_with_trust_it_runs(cli: Cli, tmp_path: Path, planted: Callable[[Route], None], name: str) -> None:
    route = ROUTES[name]
    planted(route)
    trusted = cli(*route.command, "--trust")
    assert "--trust" not in trusted.err
    assert (tmp_path / "mark").exists(), trusted.err


def test_every_setting_is_in_the_table_or_known_to_be_data() -> None:
    """A new setting is looked at: a name that a registry finds, a command or a server is code."""
    data = """
        arms backend batch chat_template data device device_map dtype extract fixed_length id k limit
        max_new_tokens pair process proof protocol remeasure sampling samples seed shard tag temperature
        template_arg tensor_parallel threads top_k top_p trace tree turns until warmup
    """
    fields = {field.title or name for name, field in RunConfig.model_fields.items() if name not in CODE}
    assert fields == {*data.split()}
    assert CODE.keys() < RunConfig.model_fields.keys()


# --- tests are code too ---

PLACES = ("top", "head", "check", "entry point")


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of programs that nobody scored; not to be changed."""
    directory = tmp_path_factory.mktemp("programs") / "run"
    brief = ("--no-score", "--no-proof", "--arms", "ars")
    done = call("run", "humaneval", *SMALL, *brief, "--out", directory)
    assert done.code == 0, done.err
    return directory


def with_a_line(prompt: dict[str, Any], place: str, mark: Path) -> dict[str, Any]:
    """A prompt of the journal, with a line at a place of it that makes a mark."""
    line = f"__import__('os').symlink('there', {str(mark)!r})"
    guarded = f"try:\n    {line}\nexcept OSError:\n    pass\n"
    test, _, call = prompt["reference"].rpartition("\n\ncheck(")
    if place == "top":
        return prompt | {"reference": f"{guarded}{prompt['reference']}"}
    if place == "head":
        return prompt | {"prompt": f"{guarded}{prompt['prompt']}"}
    if place == "check":
        body = "".join(f"    {each}\n" for each in guarded.splitlines())
        return prompt | {"reference": re.sub(r"(def check\(\w+\):\n)", rf"\1{body}", prompt["reference"])}
    name = call.rstrip().removesuffix(")")
    return prompt | {"reference": f"{test}\n\ncheck({name} if {line} else {name})\n"}


@pytest.fixture(params=PLACES)
def spoiled(request: pytest.FixtureRequest, programs: Path, tmp_path: Path) -> Path:
    """A received run whose problems have a line of a stranger's."""
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents[:-2]:  # for the user that a sandbox of root's runs as
        folder.chmod(folder.stat().st_mode | 0o011)
    received = shutil.copytree(programs, tmp_path / "received")
    lines = map(json.loads, (received / "prompts.jsonl").read_text().splitlines())
    changed = [with_a_line(line, request.param, tmp_path / "mark") for line in lines]
    assert "symlink" in json.dumps(changed)
    (received / "prompts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in changed))
    text = (received / "samples.jsonl").read_text()
    answer = re.compile(r'"text":"(?:[^"\\\\]|\\\\.)*"')  # tests run beside a program that starts
    (received / "samples.jsonl").write_text(answer.sub('"text":"    return 0\\\\n"', text))
    return received


def test_tests_of_a_received_run_stay_in_the_sandbox(cli: Cli, spoiled: Path, tmp_path: Path) -> None:
    cli("score", spoiled)
    assert not (tmp_path / "mark").is_symlink()


@pytest.fixture
def no_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which no sandbox holds."""
    level = isolation.IsolationLevel(6, "unsafe (limits)", ("limits",), ("none",))
    monkeypatch.setattr(isolation, "_strongest_level", lambda: (None, ("none",)))
    monkeypatch.setattr(isolation, "_level_without_sandbox", lambda missing: level)


def test_without_one_they_run_where_that_was_typed(
    cli: Cli, spoiled: Path, tmp_path: Path, no_sandbox: None, request: pytest.FixtureRequest
) -> None:
    """What a folder says of it does not count: neither of the file's ways of writing it."""
    settings = yaml.safe_load((spoiled / "config.yaml").read_text())
    (spoiled / "config.yaml").write_text(yaml.safe_dump(settings | {"score": "unsafe"}))
    refused = cli("score", spoiled)
    assert (refused.code, (tmp_path / "mark").is_symlink()) == (2, False)
    assert "--unsafe-exec" in refused.err
    cli("score", spoiled, "--unsafe-exec")
    is_text = "entry point" not in request.node.name  # the name of a function is never code
    assert (tmp_path / "mark").is_symlink() is is_text


def test_tests_of_a_file_of_data_stay_in_the_sandbox(cli: Cli, programs: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    line = (
        f"import os\ntry:\n    os.symlink('there', {str(tmp_path / 'mark')!r})\nexcept OSError:\n    pass\n"
    )
    # Whatever the one token of an answer is, it makes a program that starts.
    row = {"prompt": "def f(x):\n    return x\n#", "canonical_solution": "#", "entry_point": "f"}
    row |= {"test": f"{line}def check(f):\n    assert f(1) == 1\n"}
    Path("data.jsonl").write_text(json.dumps({"task_id": "a/0", **row}) + "\n")
    received = shutil.copytree(programs, tmp_path / "received")
    for name in ("samples.jsonl", "prompts.jsonl", "run.json", "summary.json"):
        (received / name).unlink(missing_ok=True)
    settings = yaml.safe_load((received / "config.yaml").read_text())
    settings |= {"data": "data.jsonl", "score": True, "max_new_tokens": 1}
    (received / "config.yaml").write_text(yaml.safe_dump(settings))
    done = cli(*CONFIG)
    assert done.code == 0, done.err
    assert (tmp_path / "new/scores.jsonl").read_text(), "it was scored"
    assert not (tmp_path / "mark").is_symlink()


def test_the_sandbox_is_left_only_where_that_is_typed_each_time(tmp_path: Path) -> None:
    code = code_in({"score": "unsafe", "engines": ("worker:true",)})
    require_typed(code, tmp_path, trust=True)
    require_typed(code[1:], tmp_path, trust=False)
    with pytest.raises(UsageError, match="would run score: unsafe, which") as refused:
        require_typed(code, tmp_path, trust=False)
    assert "--unsafe-exec again" in str(refused.value.remedy)
    assert "score" in untyped_code(["engine"])
    assert "score" not in untyped_code(["unsafe_exec"])

"""Every example runs as its page says, on the embedded pair."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import pytest
from support.commandline import call
from support.fake_server import serving
from support.mini_server import MiniServer

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PROMPTS = ROOT / "tests/support/short_prompts.txt"
PAIR = ("embedded:mini/target", "embedded:mini/draft")


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_names_every_example() -> None:
    page = (EXAMPLES / "README.md").read_text()
    shown = set(re.findall(r"^\| \[`([\w.-]+)`\]", page, re.MULTILINE))
    assert shown == {path.name for path in EXAMPLES.iterdir() if path.is_file()} - {"README.md"}


@pytest.mark.thorough
def test_own_model_measures_and_names_the_fastest_k(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*PAIR, PROMPTS, "--k", "1,2", "--limit", "2", "--max-new-tokens", "8", "--out", tmp_path / "run"]
    example("own_model").main([str(argument) for argument in given])
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines()[1:4]] == [
        "ars-nucleus",
        "sps-k1-nucleus",
        "sps-k2-nucleus",
    ]
    assert re.search(
        r"^(Use K=|No clear gain: K=|Does not pay here: K=|Probably|UNDECIDED)", said, re.MULTILINE
    )


@pytest.mark.thorough
def test_the_rule_runs_beside_the_papers_and_is_called_lossy(tmp_path: Path) -> None:
    rule = f"{EXAMPLES / 'likely_rule.py'}:KIND"
    small = ("--limit", "2", "--max-new-tokens", "8", "--no-proof", "--quiet", "--json")
    result = call(
        "run", "--rule", f"modified-rejection,{rule}", "--k", "2", *small, "--out", tmp_path / "run"
    )
    assert result.code == 0, result.err
    summary = json.loads(result.out)
    assert [row["lossless"] for row in summary["rows"]] == [True, True, False]
    assert "lossy" in call("report", tmp_path / "run").out


def notebook() -> dict[str, Any]:
    read: dict[str, Any] = json.loads((EXAMPLES / "tables.ipynb").read_text())
    return read


def test_the_notebook_is_kept_without_outputs() -> None:
    code = [cell for cell in notebook()["cells"] if cell["cell_type"] == "code"]
    assert [(cell["outputs"], cell["execution_count"]) for cell in code] == [([], None)] * len(code)


@pytest.mark.thorough
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    names: dict[str, Any] = {}
    try:
        for cell in notebook()["cells"]:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
        drawn = [axes for number in plt.get_fignums() for axes in plt.figure(number).axes]
        assert [axes.get_xlabel() for axes in drawn] == [
            "K",
            "position in the draft",
            "mean time of a loop [ms]",
            "log q(x), target",
        ]
        assert all(axes.has_data() for axes in drawn)
    finally:
        plt.close("all")
    assert list(names["rows"]["k"]) == [1, 2, 4]
    assert all(0 < share <= 1 for share in names["accepted"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [(None, 0, "follows the target"), ("verification-at-temperature-1", 4, "does NOT follow the target")],
)
def test_a_server_is_audited(
    fault: str | None,
    code: int,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = example("audit_server")
    monkeypatch.setattr(script, "subprocess", SimpleNamespace(run=in_this_process, PIPE=subprocess.PIPE))
    asked = ("--pair", "mini", "--task", PROMPTS, "--texts", "20", "--limit", "20", "--max-new-tokens", "24")
    options = ("--bound", "60%", "--temperature", "0.5", "--threads", "1", "--out", tmp_path / "audit")
    with serving(MiniServer(planted=fault)) as url:
        assert script.main([url, *map(str, (*asked, *options))]) == code
    assert f"as served, T=0.5: {said}" in capsys.readouterr().out


def in_this_process(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` gives, without loading torch again."""
    assert command[:3] == [sys.executable, "-m", "spsbench"]
    done = call(*command[3:])
    return subprocess.CompletedProcess(command, done.code, done.out, done.err)


def test_an_audit_without_a_url_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert example("audit_server").main(["--pair", "mini"]) == 2
    assert "http://localhost:8000" in capsys.readouterr().err


TEXT = {"prompt_token_ids": [5, 6], "token_ids": [7, 8, 0]}


def served(*answers: object, **asked: object) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What a server behind the tap is asked, and what the client gets of its answer, a JSON or events."""
    tap, got, sent = example("tap"), {}, []
    body = json.dumps(asked).encode()
    coming = [{"type": "http.request", "body": body[:9], "more_body": True}]
    coming += [{"type": "http.request", "body": body[9:]}]
    stream = bool(asked.get("stream"))

    async def server(scope: dict[str, Any], receive: Any, send: Any) -> None:
        read = (await receive())["body"]
        assert int(dict(scope["headers"])[b"content-length"]) == len(read)
        got.update(json.loads(read))
        await send({"type": "http.response.start", "status": 200})
        for answer in answers:
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            await send({"type": "http.response.body", "body": b"data: %s\n\n" % data if stream else data})

    async def receive() -> dict[str, Any]:
        return coming.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "path": "/v1/completions", "headers": [(b"content-length", b"%d" % len(body))]}
    asyncio.run(tap.Tap(server)(scope, receive, send))
    return got, sent


def test_the_tap_writes_what_a_server_answers_as_follow_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "requests.jsonl"
    monkeypatch.setenv("SPSBENCH_TAP", str(log))
    whole = {"id": "a", "choices": [{"index": 0, "finish_reason": "stop", **TEXT}]}
    got, sent = served(whole, prompt="x", temperature=0.5, top_k=-1, presence_penalty=0.0, stop=None)
    assert got == {"prompt": "x", "temperature": 0.5, "top_k": -1, "presence_penalty": 0, "stop": None} | {
        "return_token_ids": True
    }
    assert [each.get("body") for each in sent] == [None, json.dumps(whole).encode()]
    pieces = [
        {"index": 0, "token_ids": ids, "finish_reason": end} for ids, end in (([7], None), ([8], "length"))
    ]
    events = [
        {"id": "b", "prompt_token_ids": [5, 6], "choices": [pieces[0]]},
        {"id": "b", "choices": [pieces[1]]},
    ]
    served(*events, b"[DONE]", messages=[], stream=True, temperature=0)
    # neither what changes the law, nor what did not end, nor what is an error
    for odd in ({"presence_penalty": 1}, {"tools": [{}]}, {"logit_bias": {"5": 1}}, {"n": 2}):
        got, _ = served(whole, prompt="x", **odd)
        assert "return_token_ids" not in got
    served(events[0], prompt="x", stream=True)
    served({"error": {"message": "no"}}, prompt="x", top_k="five")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["id"], line["prompt_ids"], line["completion_ids"]) for line in lines] == [
        ("a-0", [5, 6], [7, 8, 0]),
        ("b-0", [5, 6], [7, 8]),
    ]
    assert [line["sampling"] for line in lines] == [
        {"temperature": 0.5, "top_p": 1.0, "top_k": 0},
        {"greedy": True},
    ]
    result = call(
        "audit", "--follow", log, "--pair", "mini", "--every", "1", "--budget", "2s", "--quiet", "--json"
    )
    assert result.code == 4, result.err  # tokens that nobody drew

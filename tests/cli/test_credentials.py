"""Credentials in the URL of a server are used, and neither kept nor shown."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
from support.commandline import BRIEF, SMALL, Cli
from support.fake_server import Fake, serving

from spsbench.base.addresses import withheld, withhold
from spsbench.base.environment import describe_environment
from spsbench.base.errors import UsageError
from spsbench.cli.main import main
from spsbench.config import resolve
from spsbench.runner.ranks import among_ranks
from spsbench.store import RunStore

SECRET = "openai:http://me:hush1@host/v1?api_key=hush2:model=m"


def test_a_run_keeps_no_credentials(cli: Cli) -> None:
    fake = Fake()
    with serving(fake) as url:
        typed = f"openai:{url.replace('//', '//me:hush1@')}/v1?api_key=hush2:model=tiny"
        answer = cli("run", "xsum", *BRIEF, *SMALL, "--engine", f"eager,{typed}", "--out", "run")
        again = cli("run", "--resume", "run", "--limit", "2")
    assert {(key or "")[:6] for key in fake.keys} == {"Basic "}
    assert {*fake.queries} == {"api_key=hush2"}
    assert f"openai:{url}/v1:model=tiny" in Path("run/config.yaml").read_text()
    with RunStore.open(Path("run")) as store:
        frames = dataclasses.asdict(store.frames())
    kept = [path.read_text(errors="replace") for path in Path("run").rglob("*") if path.is_file()]
    for text in (*kept, *(frame.to_csv() for frame in frames.values()), *vars(answer).values(), again.err):
        assert "hush" not in str(text)


def test_a_process_does_not_record_those_that_it_was_started_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["spsbench", "run", "xsum", "--engine", SECRET, "--limit", "-1"]
    monkeypatch.setattr(sys, "argv", [*typed])
    assert main() == 2
    command = describe_environment()["command"]
    assert "--engine openai:http://host/v1:model=m" in command
    assert "hush" not in command + capsys.readouterr().err
    assert sys.argv == typed, "which is not spsbench's to change"


def test_a_command_that_is_to_be_typed_does_not_show_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["spsbench", "run", "xsum", "--engine", SECRET])
    alone = resolve({"tensor_parallel": 2, "device": "cpu"})
    with pytest.raises(UsageError, match="this one was started alone") as refused, among_ranks(alone):
        pass
    assert str(refused.value).endswith("-m spsbench run xsum --engine openai:http://host/v1:model=m")


@pytest.mark.parametrize(
    ("typed", "shown", "login", "query"),
    [
        ("openai:http://a:8/v1", "openai:http://a:8/v1", None, ""),
        ("openai:http://u:p%40@b:8/v1/", "openai:http://b:8/v1/", ("u", "p@"), ""),
        ("openai:HTTPS://u:p@q@c", "openai:HTTPS://c", ("u", "p@q"), ""),
        ("openai:https://d/x?key=1%2C2#f:model=m", "openai:https://d/x:model=m", None, "key=1%2C2"),
        ("openai:http://e?k=1,openai:http://e:2", "openai:http://e,openai:http://e:2", None, "k=1"),
        ("engines=['openai:http://t@f']", "engines=['openai:http://f']", ("t", ""), ""),
        ("worker:curl http://u:p@g", "worker:curl http://u:p@g", None, ""),
    ],
)
def test_what_is_taken_out(typed: str, shown: str, login: tuple[str, str] | None, query: str) -> None:
    assert withhold(typed) == shown
    address = shown.partition("openai:")[2].partition(":model=")[0].partition(",")[0].rstrip("]'")
    assert withheld(address) == (login, query)
    if typed.startswith("openai:") and ",openai" not in typed:
        assert resolve({"engine": [typed]}).engines == (shown,)


@pytest.mark.parametrize("option", ["--engine openai:me:hush@host", "--data https://me:hush@host/a.jsonl"])
def test_no_error_shows_a_password(cli: Cli, option: str) -> None:
    refused = cli("run", "xsum", *option.split())
    assert refused.code in (2, 3)
    assert "hush" not in refused.err

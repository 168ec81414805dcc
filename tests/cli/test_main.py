from __future__ import annotations

import errno
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from support.commandline import Cli

import spsbench
from spsbench.base.errors import UnavailableError
from spsbench.cli import main as cli_main
from spsbench.cli.messages import EXIT_CODES


def test_version(cli: Cli) -> None:
    result = cli("--version")
    assert (result.code, result.out) == (0, f"spsbench {spsbench.__version__}\n")


def test_bare_command_shows_the_commands(cli: Cli) -> None:
    result = cli()
    assert result.code == 0
    for name in ("run", "sweep-k", "report", "list", "doctor", "simulate"):
        assert f" {name} " in result.out


@pytest.mark.parametrize("command", ["run", "sweep-k", "report", "list", "doctor", "simulate"])
def test_help_fits_80_columns(cli: Cli, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    result = cli(command, "--help")
    assert result.code == 0
    assert max(map(len, result.out.splitlines())) <= 80


FIRST = ("pair", "target", "draft", "data", "limit", "k", "drafter", "sampling", "seed", "out")


@pytest.mark.parametrize("command", ["run", "sweep-k"])
def test_help_has_an_example_and_the_twelve_options_that_are_needed_and_ends_with_the_way_to_all(
    cli: Cli, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    text = cli(command, "--help").out
    before, _, rest = text.partition("─ Options ")
    assert f"Example: spsbench {command} xsum" in before
    assert tuple(re.findall(r"^│ --([\w-]+)", rest, re.MULTILINE)) == (*FIRST, "engine", "device", "help")
    assert "╭" not in rest
    last = " ".join(rest.rpartition("╯")[2].split())
    assert last.startswith(EXIT_CODES)
    assert last.endswith(f"more options: `spsbench {command} --help-all` shows them.")

    first, *panels, last = re.split("^╭─ .*$", cli(command, "--help-all").out, flags=re.MULTILINE)[2:]
    assert tuple(re.findall(r"^│ --([\w-]+)", first, re.MULTILINE)) == (*FIRST, "help-all", "help")
    assert len(panels) == 4
    assert " ".join(last.rpartition("╯")[2].split()) == EXIT_CODES


def test_sweep_k_takes_every_option_of_run(cli: Cli) -> None:
    options = [
        set(re.findall(r"^│ (--[\w-]+)", cli(name, "--help-all").out, re.M)) for name in ("run", "sweep-k")
    ]
    assert options[0] == options[1]
    assert len(options[0]) > 40


FailWith = Callable[[BaseException], None]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> FailWith:
    """Makes ``spsbench list tasks`` end with an error."""

    def fail_with(error: BaseException) -> None:
        def broken() -> None:
            raise error

        monkeypatch.setattr("spsbench.tasks.catalogue.list_tasks", broken)

    return fail_with


def test_a_typed_error_has_its_sentence_and_code(cli: Cli, failing: FailWith) -> None:
    failing(UnavailableError("it is gone.", flag="--data", remedy="Fetch it."))
    result = cli("list", "tasks")
    assert (result.code, result.err) == (3, "error: --data is gone. Fetch it.\n")


def test_an_unknown_error_is_one_sentence_that_points_to_debug(cli: Cli, failing: FailWith) -> None:
    failing(ZeroDivisionError("by nought\nsecond line"))
    result = cli("list", "tasks")
    assert result.code == 1
    assert result.err == (
        "error: ZeroDivisionError: by nought This is a fault of spsbench; --debug shows where.\n"
    )


@pytest.mark.parametrize("error", [ZeroDivisionError("by nought"), UnavailableError("gone.")])
def test_debug_shows_the_traceback(cli: Cli, failing: FailWith, error: Exception) -> None:
    failing(error)
    assert "Traceback" not in cli("list", "tasks").err
    for typed in (("--debug", "list", "tasks"), ("list", "tasks", "--debug")):
        result = cli(*typed)
        assert "Traceback" in result.err
        assert result.code == (3 if isinstance(error, UnavailableError) else 1)


def test_out_of_memory_names_what_helps(cli: Cli, failing: FailWith) -> None:
    failing(MemoryError())
    result = cli("list", "tasks")
    assert result.code == 1
    assert "--dtype bfloat16" in result.err


def test_ctrl_c_is_130(cli: Cli, failing: FailWith) -> None:
    failing(KeyboardInterrupt())
    assert cli("list", "tasks").code == 130


def test_a_reader_that_leaves_is_no_error(failing: FailWith, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    redirected = []
    monkeypatch.setattr("os.dup2", lambda _, descriptor: redirected.append(descriptor))
    said = []
    monkeypatch.setattr(cli_main, "complain", said.append)
    assert cli_main.main(["list", "tasks"]) == 141
    assert redirected == [1, 2]
    assert said == []


def test_arguments_come_from_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["spsbench", "--version"])
    assert cli_main.main() == 0
    assert spsbench.__version__ in capsys.readouterr().out


@pytest.mark.parametrize(
    ("closed", "typed", "code"), [(">&-", "list pairs", 0), ("<&-", "trace -", 2), ("2>&-", "list pairs", 0)]
)
def test_a_stream_that_the_shell_closed_is_an_empty_one(closed: str, typed: str, code: int) -> None:
    command = f'"{sys.executable}" -m spsbench {typed} {closed}'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "fault of spsbench" not in done.stderr

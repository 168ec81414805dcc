"""Help, over all commands: one sentence, an example that parses, the needed options first, exit codes."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import typer.main
from support.commandline import Cli

from spsbench.cli.main import COMMANDS, PANELS, app, main
from spsbench.cli.messages import EXIT_CODES
from spsbench.cli.options import MANY

GROUP: Any = typer.main.get_command(app)
SHOWN = [name for names in PANELS.values() for name in names]
COMMON = ("--json", "--quiet")


def options_of(name: str) -> list[Any]:
    command = GROUP.commands[name]
    return [each for each in command.params if each.param_type_name == "option"]


def test_the_panels_are_those_of_the_intentions(cli: Cli) -> None:
    text = cli("--help").out
    assert re.findall(r"^╭─ (\w+) ─", text, re.MULTILINE) == ["Options", *PANELS]
    assert sorted(SHOWN) == sorted(COMMANDS)
    shown = text[text.index("─ Measure") :]
    assert re.findall(r"^│ ([a-z-]+) {2,}", shown, re.MULTILINE) == SHOWN
    assert " ".join(text.rpartition("╯")[2].split()) == EXIT_CODES


@pytest.mark.parametrize("name", SHOWN)
def test_one_sentence_and_an_example_that_the_parser_takes(name: str) -> None:
    sentence, example = GROUP.commands[name].help.strip().split("\n\n")
    assert sentence.endswith(".")
    assert sentence.replace("et al. ", "").count(". ") == 0
    assert len(sentence) < 110
    program, command, *arguments = shlex.split(example.removeprefix("Example: "))
    assert program == "spsbench"
    assert command in SHOWN
    assert command == name
    parsed = GROUP.commands[command].make_context(command, list(arguments))
    assert parsed.params


def test_help_has_a_short_name_also_where_a_command_is_parsed_alone() -> None:
    context = GROUP.commands["merge"].make_context("merge", ["shard", "--out", "whole"])
    assert set(GROUP.commands["merge"].get_help_option(context).opts) == {"-h", "--help"}


def test_a_wrong_example_would_be_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        GROUP.commands["run"].make_context("run", ["xsum", "--no-such-option"])


@pytest.mark.parametrize("name", SHOWN)
def test_every_option_has_help(name: str) -> None:
    options = options_of(name)
    assert [each.opts[0] for each in options if not each.help] == []
    assert set(COMMON) <= {each.opts[0] for each in options}
    assert not [each.opts[0] for each in options if each.hidden]


@pytest.mark.parametrize("name", SHOWN)
def test_the_help_of_an_option_names_no_other_that_the_command_lacks(name: str) -> None:
    own = {flag for each in options_of(name) for flag in each.opts}
    texts = [re.sub(r"`[^`]*`|torchrun .*? \.\.\.", "", each.help) for each in options_of(name)]
    assert {flag for text in texts for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)} <= own


def test_a_beam_search_is_offered_where_it_is_taken() -> None:
    offers = [name for name in SHOWN if any("beam:width" in each.help for each in options_of(name))]
    assert offers == ["run", "sweep-k"]


@pytest.mark.parametrize("name", SHOWN)
def test_every_command_takes_debug_which_the_help_of_spsbench_has_alone(name: str, cli: Cli) -> None:
    assert "No such option: --none" in cli(name, "--debug", "--none").err
    assert "--debug" not in cli(name, "--help").out
    assert "--debug" in cli("--help").out


@pytest.mark.parametrize("name", SHOWN)
def test_help_shows_at_most_fifteen_options_and_says_how_many_more_there_are(
    name: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    row = re.compile(r"^│ (?:\*|) *(--[a-z-]+) ", re.MULTILINE)
    all_of_it = {flag for each in options_of(name) for flag in each.opts} - {"--help-all"}
    brief = cli(name, "--help").out
    shown = set(row.findall(brief)) - {"--help"}
    assert shown <= all_of_it
    assert len(shown) <= MANY
    more = f"{len(all_of_it - shown)} more options: `spsbench {name} --help-all` shows them."
    if shown == all_of_it:
        assert "--help-all" not in brief
    else:
        assert GROUP.commands[name].callback.__needed__ <= {each.name for each in GROUP.commands[name].params}
        assert len(shown) <= 12
        assert brief.rstrip().split("\n")[-1].strip() == more
        assert set(row.findall(cli(name, "--help-all").out)) == {*all_of_it, "--help-all", "--help"}


def test_no_type_stands_beside_a_switch_or_an_argument(cli: Cli) -> None:
    for name in ([], ["run"], ["merge"], ["score"]):
        assert not re.search(r"<\w+", cli(*name, "--help").out)


def test_an_option_that_help_does_not_show_is_suggested_where_it_is_mistyped(cli: Cli) -> None:
    assert "--top-p" not in cli("run", "--help").out
    refused = cli("run", "--topp", "0.9")
    assert refused.code == 2
    assert "No such option: --topp" in refused.err
    assert "--top-p" in refused.err


@pytest.mark.parametrize("name", SHOWN)
def test_the_exit_codes_end_it(name: str) -> None:
    assert GROUP.commands[name].epilog == EXIT_CODES


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("name", ["", "run", "audit", "score"])
def test_it_fits_the_terminal(name: str, width: int, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for way in ("--help", "--help-all") if name in ("run", "audit") else ("--help",):
        text = cli(*([name] if name else []), way).out
        assert max(map(len, text.splitlines())) <= width
    words = re.findall(r"--[a-z][a-z-]*", text)
    wanted = {flag for each in options_of(name) for flag in each.opts} if name else {"--version", "--debug"}
    assert wanted <= set(words), wanted - set(words)


def test_an_option_given_twice_is_refused_before_the_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--debug", "--debug", "list"]) == 2
    assert capsys.readouterr().err.endswith("error: --debug is given twice. Give --debug once.\n")


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        *(("verify", flag) for flag in ("--sampling", "--effort", "--target")),
        *(("audit --engine worker:false", flag) for flag in ("--k", "--arms", "--limit", "--out")),
        *(("score samples.jsonl", flag) for flag in ("--n-workers", "--timeout", "--extract", "--k")),
        *(("distill --target a --out b", flag) for flag in ("--threads", "--evaluated")),
        *(("run", flag) for flag in ("--k", "--out", "--set", "--fail-on")),
        ("sweep-k", "--k"),
    ],
)
def test_an_option_with_an_empty_value_is_refused_and_not_taken_as_left_out(
    cli: Cli, command: str, flag: str
) -> None:
    for typed in ([flag, ""], [f"{flag}="]):
        result = cli(*command.split(), *typed)
        assert result.code == 2
        assert f"error: {flag}: the value is empty." in result.err


def test_options_that_collect_may_be_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--set", "limit=1", "--set", "k=99"]) == 2
    assert "twice" not in capsys.readouterr().err


def test_a_suggestion_ends_with_one_mark(cli: Cli) -> None:
    result = cli("rnu")
    assert result.err == "error: No such command 'rnu'. Did you mean 'run'? See `spsbench --help`.\n"

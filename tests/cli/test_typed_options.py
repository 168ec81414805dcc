"""The options of a command as a model: each field is an option."""

from __future__ import annotations

import typing
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer.main

from spsbench.cli.main import COMMANDS, app
from spsbench.cli.options import Common, DrawnOptions, MachineOptions, RunOptions, among, asks, option
from spsbench.config import RunConfig

MODELS = {name: command.__asked__ for name, command in COMMANDS.items() if hasattr(command, "__asked__")}
GROUP: Any = typer.main.get_command(app)


def types(command: Any) -> dict[str, Any]:
    """What a command's parameters are, by name."""
    signature = vars(command)["__signature__"].parameters
    return {
        name: typing.get_args(each.annotation)[0]
        for name, each in signature.items()
        if name not in ("debug", "help_all")
    }


@pytest.mark.parametrize("name", MODELS)
def test_a_field_has_the_type_of_its_row(name: str) -> None:
    model = MODELS[name]
    assert {field.name: typing.get_type_hints(model)[field.name] for field in fields(model)} == types(
        COMMANDS[name]
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_row_is_written_as_its_field_is_typed(name: str) -> None:
    """A switch has no value; what may be repeated is a list; what is in brackets may be left out."""
    model = MODELS[name]
    hints = get_type_hints(model)
    for each in fields(model):
        if (row := each.metadata.get("row")) is None:
            continue
        hint = hints[each.name]
        values = set(typing.get_args(hint)) or {hint}
        assert (bool in values) == (row.spec.startswith("--") and " " not in row.spec), row.spec
        repeated = any(typing.get_origin(value) is list or value is list for value in (hint, *values))
        assert repeated == row.spec.rstrip("]").endswith("..."), row.spec
        assert (type(None) in values or bool in values) == (each.default is not MISSING), row.spec
        assert row.spec.startswith("--") or row.spec.startswith("[") == (type(None) in values), row.spec


def test_run_takes_every_setting_that_has_an_option() -> None:
    hints = get_type_hints(RunOptions)
    rows = RunConfig.rows()
    assert RunConfig.model_fields.keys() - rows.keys() == {"trace", "warmup"}  # by --set alone
    for row in rows.values():
        kind = bool if row.is_switch else list[str] | None if row.spec.endswith("...") else str | None
        assert hints[row.name] == kind, row.spec
        assert getattr(RunOptions(), row.name) is row.left_out


def test_a_command_is_called_with_its_model() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Asked(Common):
        run: Path = option("RUN", "A run.")
        much: str | None = option("--much N", "How much.")
        plain: bool = option("--plain", "Plainly.")
        needed: str = option("--needed N", "Always.", required=True)
        seed: str | None

    seen: list[Asked] = []

    @asks(Asked)
    def command(asked: Asked) -> None:
        """Do it."""
        seen.append(asked)

    app = typer.Typer(add_completion=False)
    app.command()(command)
    app(["results", "--much", "3", "--needed", "x", "--json"], standalone_mode=False)
    assert seen == [
        Asked(run=Path("results"), much="3", plain=False, needed="x", seed=None, json=True, quiet=False)
    ]
    assert types(command) == get_type_hints(Asked)
    for lacking in (["--needed", "x"], ["results"]):
        with pytest.raises(Exception, match="Missing parameter"):
            app(lacking, standalone_mode=False)


def test_options_are_taken_from_those_of_a_command() -> None:
    options = RunOptions(pair="mini", device="cpu", limit="7", quiet=True)
    assert among(MachineOptions, options) == MachineOptions(pair="mini", device="cpu", quiet=True)
    drawn = DrawnOptions(temperature="2")
    taken = among(RunOptions, drawn, temperature=None, device="cuda", no_score=True)
    assert taken == RunOptions(device="cuda", no_score=True)

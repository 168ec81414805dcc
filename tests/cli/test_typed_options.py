"""The options of a command as a model: a field for each row, of the type that the row says."""

from __future__ import annotations

import typing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import typer.main

from spsbench.cli.main import COMMANDS, app
from spsbench.cli.options import (
    FIRST,
    OF_TEXTS,
    Common,
    DrawnOptions,
    MachineOptions,
    RunOptions,
    among,
    asks,
)

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


def test_a_command_is_called_with_its_model() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Asked(Common):
        run: Path
        much: str | None
        plain: bool

    seen: list[Asked] = []

    @asks(Asked, {FIRST: {"RUN": "A run.", "--much N": "How much.", "--plain": "Plainly."}})
    def command(asked: Asked) -> None:
        """Do it."""
        seen.append(asked)

    app = typer.Typer(add_completion=False)
    app.command()(command)
    app(["results", "--much", "3", "--json"], standalone_mode=False)
    assert seen == [Asked(run=Path("results"), much="3", plain=False, json=True, quiet=False)]
    assert types(command) == {"run": Path, "much": str | None, "plain": bool, "json": bool, "quiet": bool}


@pytest.mark.parametrize("model", [DrawnOptions, MachineOptions])
def test_a_part_of_the_options_has_their_types(model: type[Common]) -> None:
    @asks(model, {FIRST: OF_TEXTS})
    def command(options: Common) -> None:
        """Do it."""

    hints = typing.get_type_hints(model)
    assert {field.name: hints[field.name] for field in fields(model)} == types(command)


def test_options_are_taken_from_those_of_a_command() -> None:
    options = RunOptions(pair="mini", device="cpu", limit="7", quiet=True)
    assert among(MachineOptions, options) == MachineOptions(pair="mini", device="cpu", quiet=True)
    drawn = DrawnOptions(temperature="2")
    taken = among(RunOptions, drawn, temperature=None, device="cuda", no_score=True)
    assert taken == RunOptions(device="cuda", no_score=True)

"""Options that an earlier version wrote otherwise: the error for the old spelling names the new one."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from typing import NamedTuple

from spsbench.base.errors import UsageError


class Moved(NamedTuple):
    """An option's old flag, and what is typed in its place; ``{value}`` is what followed the old one.

    The new one is an option with its value, or an argument (TASK) that the old value is given as. It is for
    the commands that had the old one, where not every command with the new one had it. A number alone was in
    the unit, where that is written now.
    """

    old: str
    new: str
    commands: str = ""
    unit: str = ""


MOVED: Sequence[Moved] = (
    Moved("--acceptance-from", "--alpha {value}", "bench"),
    Moved("--bad-words", "--process bad_words={value}"),
    Moved("--beams", "--sampling beam:width={value}"),
    Moved("--budget", "--until {value}", "run sweep-k", unit="s"),
    Moved("--concentration", "--source dirichlet:concentration={value}"),
    Moved("--controls", "--control all", "verify"),
    Moved("--convention", "--process convention={value}"),
    Moved("--curve", "--alpha {value}", "advise"),
    Moved("--dependence", "--source ngram:dependence={value}"),
    Moved("--draft-beams", "--sampling beam:draft_width={value}"),
    Moved("--draft-config", "--draft {value}"),
    Moved("--draft-placement", "--tensor-parallel N:draft={value}"),
    Moved("--draft-dtype", "--dtype auto:draft={value}", "run sweep-k verify"),
    Moved("--draft-quantise", "--dtype auto:draft=auto+{value}", "run sweep-k verify"),
    Moved("--draft-revision", "--draft MODEL@{value}"),
    Moved("--draft-temperature", "--source temperature:draft_temperature={value}"),
    Moved("--frequency-penalty", "--process frequency_penalty={value}"),
    Moved("--grammar", "--process grammar={value}"),
    Moved("--greedy", "--temperature 0", "audit replay"),
    Moved("--heads", "--kind medusa:heads={value}", "distill"),
    Moved("--layers", "--kind model:layers={value}", "distill"),
    Moved("--length-penalty", "--sampling beam:penalty={value}"),
    Moved("--logit-bias", "--process logit_bias={value}"),
    Moved("--memory", "--choose mean:memory={value}"),
    Moved("--min-new-tokens", "--process min_new_tokens={value}"),
    Moved("--min-p", "--process min_p={value}"),
    Moved("--objective", "--choose {value}"),
    Moved("--presence-penalty", "--process presence_penalty={value}"),
    Moved("--prompts", "TASK"),
    Moved("--quantise", "--dtype auto+{value}"),
    Moved("--quantize", "--dtype auto+{value}"),
    Moved("--repetition-penalty", "--process repetition_penalty={value}"),
    Moved("--revision", "--target MODEL@{value}"),
    Moved("--samples-dtype", "--dtype auto:samples={value}"),
    Moved("--sharpness", "--source NAME:sharpness={value}", "simulate"),
    Moved("--siblings", "--tree SHAPE:siblings={value}", "simulate"),
    Moved("--stay", "--source NAME:stay={value}", "simulate"),
    Moved("--table", "--source {value}", "simulate"),
    Moved("--target-config", "--target {value}"),
    Moved("--trace", "--set trace={value}", "run sweep-k"),
    Moved("--typical-p", "--process typical_p={value}"),
    Moved("--variation", "--source NAME:variation={value}", "simulate"),
    Moved("--vocabulary", "--source NAME:vocabulary={value}", "simulate"),
    Moved("--vocabulary", "--kind KIND:vocabulary={value}", "distill"),
)


def refuse_moved(command: str, arguments: Sequence[str], known: Collection[str]) -> None:
    """Refuse an old spelling where the command knows only the new one.

    ``known`` holds the command's flags, and what its arguments are called.
    """
    typed = [*arguments[: arguments.index("--")]] if "--" in arguments else [*arguments]
    for place, argument in enumerate(typed):
        flag, equals, value = argument.partition("=")
        if flag in known or (row := _written_now(command, flag, known)) is None:
            continue
        option, space, rest = row.new.partition(" ")
        after = typed[place + 1] if place + 1 < len(typed) else ""
        value = value if equals else "VALUE" if after.startswith("--") or not after else after
        value += row.unit * (value[-1:].isdecimal())
        spelled = shlex.quote((rest if space else "{value}").format(value=value))
        words = f"{option} {spelled}" if option.startswith("--") else f"{spelled} as {option}"
        raise UsageError("it is written otherwise now.", flag=flag, remedy=f"Give {words}.")


def _written_now(command: str, flag: str, known: Collection[str]) -> Moved | None:
    """Return the new spelling of a command's old flag; None if the command knows neither."""
    for row in MOVED:
        if (
            row.old == flag
            and row.new.partition(" ")[0] in known
            and (not row.commands or command in row.commands.split())
        ):
            return row
    return None

"""The entry point: commands, exit codes, and errors as sentences."""

from __future__ import annotations

import copy
import errno
import gc
import os
import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import spsbench
from spsbench.base.addresses import withhold
from spsbench.base.cluster import require_alone
from spsbench.base.environment import typed_arguments
from spsbench.base.errors import SpsbenchError, UsageError, as_typed, first_line
from spsbench.base.parts import of_part
from spsbench.cli.compare import compare
from spsbench.cli.console import Transfers, broken_pipe, complain, harmless
from spsbench.cli.doctor import doctor, get
from spsbench.cli.interruption import INTERRUPTED, Interruption, listening
from spsbench.cli.listing import list_
from spsbench.cli.messages import EXIT_CODES, OUT_OF_MEMORY, OWN_FAULT
from spsbench.cli.options import HELP_ALL
from spsbench.cli.report import report
from spsbench.cli.run import merge, run, sweep_k
from spsbench.cli.score import score
from spsbench.cli.trace import trace
from spsbench.config.together import refuse_together
from spsbench.models.fetch.cache import watched_by

DEBUG = "debug"
"""The option of ``spsbench`` that every command takes; ``main`` looks for it itself."""

LIST = "LIST"
"""The metavar of options whose value is a list: ``--k 2,4``."""


def refuse_slips(command: Any, context: Any, arguments: Sequence[str]) -> None:
    """Refuse an option without a value, and one that is given twice unless its values add up.

    The parser would keep the last value without a word, and a user who types ``--k 2 --k 4`` means both. An
    empty text, as of a variable of the shell that is not set, would count as left out.
    """
    values, _, parsed = command.make_parser(context).parse_args(args=list(arguments))
    for parameter, count in Counter(parsed).items():
        if parameter.param_type_name != "option":
            continue
        flag, listed = parameter.opts[0], ""
        value = values[parameter.name]
        if "" in (value if parameter.multiple else [value]):
            raise UsageError("the value is empty.", flag=flag, remedy="Give a value, or leave it out.")
        if count == 1 or parameter.multiple:
            continue
        if parameter.metavar == LIST:
            typed = [argument.partition("=") for argument in arguments]
            values = [
                value if equals else arguments[place + 1]
                for place, (name, equals, value) in enumerate(typed)
                if name in parameter.opts
            ]
            listed = f": {flag} {','.join(values)}"
        raise UsageError("it is given twice.", flag=flag, remedy=f"Give {flag} once{listed}.")


NARROW = 60
"""Columns below which help is plain text: in a table of panels the names of options would be cut."""


class Fitting:
    """Refuses slips of typing, and has a help that fits the terminal."""

    rich_markup_mode: Any

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as typer does; each option once with a value, and nothing that another option excludes."""
        if not ctx.resilient_parsing:  # completion looks at commands that are half typed
            refuse_slips(self, ctx, args)
        rest: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        if not ctx.resilient_parsing:
            refuse_together(ctx.info_name, ctx.params)
        return rest

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Format as typer does; on a narrow terminal without panels, and of many options only the needed
        ones.

        The command itself keeps all of them, for the parser, its suggestions and completion.
        """
        shown: Any = copy.copy(self)
        parameters = [
            param for param in shown.get_params(ctx) if param in shown.params or param.name != DEBUG
        ]
        shown.params = [_without_type(each) for each in parameters]
        shown.add_help_option = False
        shown.get_params = lambda context: shown.params
        needed = getattr(shown.callback, "__needed__", None)
        if needed is not None and HELP_ALL not in ctx.meta:
            first = [each for each in shown.params if each.name in needed or each.name == "help"]
            for each in first:
                each.rich_help_panel = None
            count = len(shown.params) - len(first) - 1  # without --help-all itself, which is named below
            shown.params = first
            shown.epilog += f"\n\n{count} more options: `{ctx.command_path} {HELP_ALL}` shows them."
        columns = shutil.get_terminal_size().columns
        if columns < NARROW:
            shown.rich_markup_mode, formatter.width = None, columns
            formatter.write_dl = partial(formatter.write_dl, col_max=columns // 3)
        super(Fitting, shown).format_help(ctx, formatter)  # type: ignore[misc]


def _without_type(parameter: Any) -> Any:
    """As help shows it: switches and arguments without a type."""
    shown = copy.copy(parameter)
    if shown.param_type_name == "argument" or shown.is_flag:
        shown.display_type_rich = lambda ctx: None
    return shown


class Command(Fitting, TyperCommand):
    """A command of spsbench."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the command's own parameters, and ``--debug`` of ``spsbench``, shown in its help alone."""
        above = [] if ctx.parent is None else ctx.parent.command.params
        debug = [copy.copy(each) for each in above if each.name == DEBUG]
        for each in debug:
            each.expose_value = False
        return [*super().get_params(ctx), *debug]


class Group(Fitting, TyperGroup):
    """``spsbench`` itself."""


BROKEN_PIPE = 141
"""What shells report of a process whose reader went away (128 + SIGPIPE)."""

GARBAGE_THRESHOLD = 100_000
"""Allocations between two looks for cyclic garbage, of which a command leaves hardly any: a tenth of a
large report's time went into looking, and a look in the middle of a loop is noise in its time."""

IN_SEVERAL = ("run", "sweep-k", "verify")
"""Commands whose target can be split over processes; each looks itself how many it needs."""

ANYWHERE = ("list", "doctor")
"""Commands that only print what there is, which several processes may do at once."""

SETTINGS = {"help_option_names": ["-h", "--help"]}
"""Of every command itself: one that is parsed without the group would keep a ``--help`` without ``-h``."""

app = typer.Typer(name="spsbench", cls=Group, context_settings=SETTINGS)

OWN: dict[str, Callable[..., None]] = {
    "run": run,
    "sweep-k": sweep_k,
    "compare": compare,
    "report": report,
    "trace": trace,
    "list": list_,
    "get": get,
    "score": score,
    "merge": merge,
    "doctor": doctor,
}
"""The core's commands."""

OF_PARTS = {
    "paper": "paper.command:paper",
    "bench": "whatif.commands.bench:bench",
    "replay": "whatif.commands.replay:replay",
    "advise": "whatif.commands.advise:advise",
    "simulate": "whatif.commands.simulate:simulate",
    "verify": "verify.command:verify",
    "audit": "audit.command:audit",
    "distill": "distill.command:distill",
    "export": "export.command:export",
}
"""The commands of the parts; one that is deleted takes its rows with it."""

COMMANDS = OWN | {name: of_part(place) for name, place in OF_PARTS.items()}

_PANELS = {
    "Measure": ("run", "sweep-k", "paper"),
    "Predict": ("bench", "replay", "advise", "simulate"),
    "Prove": ("verify", "audit", "compare"),
    "Look": ("report", "trace", "export"),
    "Make": ("distill",),
    "Manage": ("list", "get", "score", "merge", "doctor"),
}
PANELS = {
    panel: shown
    for panel, names in _PANELS.items()
    if (shown := [name for name in names if name in COMMANDS])
}
"""The commands by what they are for, as `spsbench --help` shows them."""

for panel, names in PANELS.items():
    for name in names:
        app.command(name, cls=Command, rich_help_panel=panel, epilog=EXIT_CODES, context_settings=SETTINGS)(
            COMMANDS[name]
        )


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"spsbench {spsbench.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True, epilog=EXIT_CODES)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; also behind a command.")
    ] = False,
) -> None:
    """Measure speculative sampling (SpS) against autoregressive sampling (ArS).

    Example: spsbench run
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
    elif context.invoked_subcommand not in (*IN_SEVERAL, *ANYWHERE):
        require_alone("command")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; nothing is raised."""
    gc.set_threshold(GARBAGE_THRESHOLD)
    _open_closed_streams()
    typed = typed_arguments() if arguments is None else [withhold(each) for each in arguments]
    with listening(typed) as interruption:
        try:
            # Any command may be the first to need a model that is fetched.
            with watched_by(Transfers(quiet="--quiet" in typed)):
                code = app(typed, prog_name="spsbench", standalone_mode=False)
            sys.stdout.flush()
        except BaseException as error:
            return _reported_exit_code(error, interruption, debug="--debug" in typed)
        if code == INTERRUPTED:  # typer turns every KeyboardInterrupt into it
            return interruption.conclude()
        return code if isinstance(code, int) else 0


def _open_closed_streams() -> None:
    """Put the null device where a shell closed a standard stream (``>&-``).

    Python has None there, and the next file that is opened, a journal say, would get the stream's descriptor.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - until the process ends


def _reported_exit_code(error: BaseException, interruption: Interruption, *, debug: bool) -> int:
    if interruption.caused(error):
        return interruption.conclude()
    if broken_pipe(error):
        return BROKEN_PIPE
    if debug and isinstance(error, Exception):
        sys.stderr.write(harmless("".join(traceback.format_exception(error))))
    error = _error_of_memory_or_device(error)
    match error:
        case SpsbenchError():
            complain(str(error))
            interruption.advise(error)
            return error.exit_code
        case typer.TyperException():  # errors that typer itself finds in the arguments
            command = getattr(getattr(error, "ctx", None), "command_path", "spsbench")
            complain(f"{_with_one_final_mark(error.format_message())} See `{command} --help`.")
            return error.exit_code
        case typer.Abort():
            return INTERRUPTED
        case MemoryError():  # a command that needs no torch raises it
            complain(OUT_OF_MEMORY)
            return 1
        case OSError(errno=errno.ENOSPC | errno.EDQUOT | errno.EROFS | errno.ENAMETOOLONG) if error.filename:
            refusal = _of_a_file(error)
            complain(str(refusal))
            return refusal.exit_code
        case Exception():
            hint = "" if debug else f" {OWN_FAULT}"
            complain(f"{first_line(error, kind=True)}{hint}")
            return 1
    raise error


def _error_of_memory_or_device(error: BaseException) -> BaseException:
    """The error itself where neither caused it."""
    if "torch" not in sys.modules or not isinstance(error, (RuntimeError, MemoryError)):
        return error
    from spsbench.models.faults import refuse_fault

    try:
        refuse_fault(error)
    except SpsbenchError as found:
        return found
    return error


def _of_a_file(error: OSError) -> SpsbenchError:
    from spsbench.base.files import disk_error

    if error.errno == errno.ENAMETOOLONG:
        why = f"{as_typed(str(error.filename))} is longer than a file's name can be."
        return UsageError(why, remedy="Give a shorter one.")
    return disk_error(Path(error.filename), error)


def _with_one_final_mark(message: str) -> str:
    message = message.rstrip(". ")
    return message if message.endswith(("?", "!")) else f"{message}."

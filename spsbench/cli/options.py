"""Every option of the command line, declared once: a field, whose row says how it is typed and what it does.

A setting of a run is declared where it is checked: the field of ``RunConfig`` has the row. What else ``run``
takes is here; the other commands choose among both and add their own. A command's options are the fields of
a dataclass, in the order of its help; one without a row is declared as that of ``run``. Values stay text: the
settings check them, and their errors say what may be written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from spsbench.base.errors import SpsbenchError
from spsbench.base.paths import DataKind, data_dir, results_dir
from spsbench.config.models import RunConfig
from spsbench.config.option import OptionRow
from spsbench.config.option import Panel as Panel
from spsbench.config.processing import PROCESSING

MANY = 15
"""Options of a command above which ``--help`` shows the needed ones, and ``--help-all`` shows all."""

_ROW = "row"


def option(
    spec: str, text: str, panel: str | None = None, *, required: bool = False, names: str | None = None
) -> Any:
    """A field of a command's options, which is the whole declaration of one.

    Args:
        required: an argument always is, but in brackets.
        names: the kind of names that complete it.
    """
    return _field_of(OptionRow(spec, text, panel, names, required))


def option_of(model: type[Common], name: str) -> Any:
    """A field that is declared as the one of another command's options."""
    return _field_of(_own_rows(model)[name])


def _field_of(row: OptionRow) -> Any:
    told = {_ROW: row}
    return field(default=row.left_out, metadata=told) if row.may_be_left_out else field(metadata=told)


def _own_rows(model: type[Common]) -> dict[str, OptionRow]:
    return {each.name: each.metadata[_ROW] for each in fields(model) if _ROW in each.metadata}


@dataclass(frozen=True, kw_only=True)
class Common:
    """The options of every command: JSON on stdout, and nothing but errors."""

    json: bool = option("--json", "Print the result as JSON, and nothing else on stdout.", Panel.OUTPUT)
    quiet: bool = option("--quiet", "Print nothing but errors (and JSON with --json).", Panel.OUTPUT)


NEEDED = "engine device"
"""Beside those without a panel, what ``run --help`` shows."""


@dataclass(frozen=True, kw_only=True)
class RunOptions(Common):
    """The options of ``run`` and ``sweep-k`` as typed; what was not typed is None, False for a switch.

    Those without a row are settings, see ``RunConfig``.
    """

    task: str | None = None
    pair: str | None = None
    target: str | None = option(
        "--target MODEL", "Target model: hub id, perhaps with @REVISION, folder or GGUF file."
    )
    draft: str | None = option("--draft MODEL", "Draft model, in the same forms.")
    data: str | None = None
    limit: str | None = None
    k: str | None = None
    drafter: str | None = None
    sampling: str | None = None
    seed: str | None = None
    out: Path | None = option("--out DIR", "Run directory. Default: a new one in results/.")
    protocol: str | None = None
    id: str | None = None
    tag: list[str] | None = None
    samples: str | None = None
    shard: str | None = None
    until: str | None = None
    remeasure: str | None = None
    arms: str | None = None
    config: Path | None = option(
        "--config FILE", "Settings from YAML, e.g. an earlier run's config.yaml.", Panel.WHAT
    )
    set: list[str] | None = option(
        "--set KEY=VALUE...",
        "A setting of config.yaml, e.g. warmup=false, or trace=8, prompts whose tokens are recorded; "
        "may be repeated.",
        Panel.WHAT,
    )
    no_score: bool = False
    no_proof: bool = False
    unsafe_exec: bool = option(
        "--unsafe-exec", "Run generated programs even without a sandbox; the run records it.", Panel.WHAT
    )
    extract: str | None = None
    turns: str | None = None
    trust: bool = option(
        "--trust",
        "Let the settings of somebody else's run import files, start commands, ask servers and leave the "
        "sandbox.",
        Panel.WHAT,
    )
    temperature: str | None = None
    top_p: str | None = None
    top_k: str | None = None
    max_new_tokens: str | None = None
    fixed_length: bool = False
    chat_template: str | None = None
    template_arg: list[str] | None = None
    process: list[str] | None = None
    rule: str | None = None
    policy: str | None = None
    tree: str | None = None
    engine: str | None = None
    batch: str | None = None
    concurrency: str | None = option(
        "--concurrency LIST",
        "Requests in flight at servers: 1,2,4,8. With --engine openai:URL[,openai:URL].",
        Panel.MACHINE,
    )
    device: str | None = None
    dtype: str | None = None
    device_map: str | None = None
    threads: str | None = None
    backend: str | None = None
    tensor_parallel: str | None = None
    processes: str | None = option(
        "--processes N", "Repeat in N fresh processes; intervals over all of them.", Panel.MACHINE
    )
    on: str | None = option(
        "--on WHERE", "Spread prompts over workers: ray (this machine) or ray://HOST:PORT.", Panel.MACHINE
    )
    resume: Path | None = option(
        "--resume DIR", "Continue the run in DIR with its own settings.", Panel.OUTPUT, names="runs"
    )
    fail_on: str | None = option(
        "--fail-on LIST", "Gates that exit 4 if failed: lossless, parity, untrusted (times).", Panel.OUTPUT
    )
    expect: str | None = option(
        "--expect HASH", "Exit 4 unless the hash of all token ids begins with HASH.", Panel.OUTPUT
    )
    allow_mixed: bool = option(
        "--allow-mixed", "Continue although threads, backend, versions or hardware changed.", Panel.OUTPUT
    )


_OF_RUN = {row.name: row for row in RunConfig.rows().values()} | _own_rows(RunOptions)


@dataclass(frozen=True, kw_only=True)
class PresetOptions(Common):
    """Which law is sampled, of a command that takes no exact search."""

    sampling: str | None = option(
        "--sampling LIST",
        "Presets of the task, e.g. nucleus,greedy; or model, from generation_config.json.",
        names="samplings",
    )


TEMPERATURE_OF_TEXTS = "Temperature of texts that record none; 0 is greedy. Default: 1."


@dataclass(frozen=True, kw_only=True)
class DrawnOptions(Common):
    """How the texts of a file were drawn."""

    temperature: str | None = option("--temperature T", TEMPERATURE_OF_TEXTS, Panel.SAMPLING)
    top_p: str | None = option(
        "--top-p P", "Nucleus mass of texts that record none. Default: 1.", Panel.SAMPLING
    )
    top_k: str | None = option(
        "--top-k N", "Most probable tokens, of texts that record none. Default: all.", Panel.SAMPLING
    )
    process: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class MachineOptions(Common):
    """Which models run, and where."""

    pair: str | None = None
    device: str | None = None
    dtype: str | None = None
    backend: str | None = None
    threads: str | None = None


AskedT = TypeVar("AskedT", bound=Common)


def among(model: type[AskedT], options: Common, /, **fixed: object) -> AskedT:
    """Take the options of ``model`` from those of a command, which lacks what was not typed.

    ``fixed`` overrules what was typed.
    """
    typed = vars(options) | fixed
    kept: dict[str, Any] = {field.name: typed[field.name] for field in fields(model) if field.name in typed}
    return model(**kept)


def asks(
    model: type[AskedT], *, needed: str = ""
) -> Callable[[Callable[[AskedT], None]], Callable[..., None]]:
    """Give a command the options that are the fields of ``model``, in their order, and an instance of it.

    A field without a row of its own is declared as that of ``run``. Where there are more than ``MANY``,
    ``--help`` shows those without a panel and the ``needed`` ones.
    """
    common = [field.name for field in fields(Common)]
    names = [*(field.name for field in fields(model) if field.name not in common), *common]
    rows = _OF_RUN | _own_rows(model)
    types = get_type_hints(model)

    def give(function: Callable[[AskedT], None]) -> Callable[..., None]:
        def command(**params: Any) -> None:
            params.pop(_HELP_ALL.name, None)  # which is for ``main`` alone
            function(model(**params))

        vars(command)["__asked__"] = model
        wanted = [_typer_parameter(name, rows[name], types[name]) for name in names]
        if len(wanted) > MANY:
            first = {name for name in names if rows[name].panel is None}
            vars(command)["__needed__"] = first | set(needed.split())
            wanted.append(_HELP_ALL)
        return _with_help_and_signature(command, function.__doc__, wanted)

    return give


def _help_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.meta[HELP_ALL] = True
        typer.echo(context.get_help(), color=context.color)
        raise typer.Exit


HELP_ALL = "--help-all"
_HELP_ALL = Parameter(
    "help_all",
    Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option(
            HELP_ALL, is_eager=True, callback=_help_all, show_default=False, help="Show every option."
        ),
    ],
)


def _with_help_and_signature(
    command: Callable[..., None], text: str | None, wanted: Iterable[Parameter]
) -> Callable[..., None]:
    command.__doc__ = text
    vars(command)["__signature__"] = Signature([*wanted])
    return command


def _typer_parameter(name: str, row: OptionRow, of_type: Any) -> Parameter:
    given: dict[str, Any] = {
        "help": row.text,
        "show_default": False,
        "autocompletion": _completer(row),
        "rich_help_panel": row.panel,
    }
    if row.spec.startswith("--"):
        flag, _, metavar = row.spec.removesuffix("...").partition(" ")
        info: Any = typer.Option(flag, metavar=metavar, **given)
    else:
        info = typer.Argument(metavar=row.spec.strip("[.]"), **given)
    return Parameter(
        name,
        Parameter.KEYWORD_ONLY,
        default=row.left_out if row.may_be_left_out else Parameter.empty,
        annotation=Annotated[of_type, info],
    )


def _completer(row: OptionRow) -> Callable[[typer.Context, str], list[str]] | None:
    """Complete what was typed, or the last part of a list that is typed as ``a,b``."""
    choices = re.match(r"(?:[a-z0-9:]+, )+[a-zN0-9:]+ or [a-z0-9]+\.", row.text)  # that the help begins with
    listed = row.spec.partition(" ")[2] if "|" in row.spec else choices[0] if choices else ""
    words = [word for word in re.findall(r"[\w:]+", listed) if word.islower() and word != "or"]
    kind = row.names
    mark = ":" if "=" in row.spec else ","
    if not (words or kind):
        return None

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        before, between, last = ("", "", incomplete) if kind == "runs" else incomplete.rpartition(mark)
        try:
            names = words if kind is None else _names(kind, incomplete, context.params.get("task"))
            found = [name for name in names if name.startswith(last) and name not in before.split(mark)]
        except SpsbenchError:  # completion has nowhere to report it
            return []
        return [f"{before}{between}{name}" for name in found]

    return complete


def _run_directories(begun: str) -> list[str]:
    """Those in ``results/``, and those that the typed path leads to."""
    here, typed = Path.cwd(), Path(begun)
    # Of an absolute path, too: a pattern is looked for below the folder that has been typed whole.
    above = typed if begun.endswith("/") else typed.parent
    prefix = "" if begun.endswith("/") else typed.name
    led_to = [path for path in above.glob("*/run.json") if begun and path.parent.name.startswith(prefix)]
    found = [*results_dir().glob("*/run.json"), *led_to]
    folders = (path.parent for path in found)
    return sorted({str(path.relative_to(here) if path.is_relative_to(here) else path) for path in folders})


def _names(kind: str, begun: str, task: str | None) -> Iterable[str]:
    """Names of one kind, those of installed packages included; neither torch nor a model is loaded."""
    if kind in _FOLDERS:
        return sorted(path.stem for folder in _FOLDERS[kind] for path in data_dir(folder).glob("*.yaml"))
    match kind:
        case "runs":
            return _run_directories(begun)
        case "processing":
            return [f"{name}=" for name in PROCESSING]
        case "drafters" | "rules" | "policies":
            from spsbench.drafters import registry

            found: Mapping[str, str] = getattr(registry, kind.upper()).names()
            return found
        case "engines":
            from spsbench.engines.arms import ENGINES

            return [*ENGINES, *_names("external engines", begun, None)]
    from spsbench.base.axes import BEAM, RECOMMENDED
    from spsbench.tasks.spec import read_spec

    tasks = list(_names("tasks", begun, None))
    chosen = [task] if task in tasks else tasks  # the task that was typed before, else any
    specs = [read_spec(data_dir("tasks") / f"{name}.yaml") for name in chosen]
    return dict.fromkeys([*(name for spec in specs for name in spec.samplings), RECOMMENDED, BEAM])


_FOLDERS: Mapping[str, Sequence[DataKind]] = {
    "tasks": ("tasks",),
    "pairs": ("configs/pairs",),
    "protocols": ("configs/protocols",),
    "external engines": ("configs/engines",),
    "pairs and external engines": ("configs/pairs", "configs/engines"),
}
"""Where the files lie whose names are offered."""

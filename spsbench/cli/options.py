"""Every option of the command line, declared once: a field, whose row says how it is typed and what it does.

Rows are written as in a usage text: ``--seed N``, ``--no-score``, ``--set KEY=VALUE...`` (may be repeated),
``[TASK]``, ``SHARD...``. Those of ``run`` are here; the other commands choose among them and add their own.
An option of ``run`` that is a setting has the name of a field of ``RunConfig``, or is the field's ``title``.
Values stay text: the settings check them, and their errors say what may be written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, get_type_hints

import typer

from spsbench.base.errors import SpsbenchError
from spsbench.base.paths import DataKind, data_dir, results_dir
from spsbench.config.processing import PROCESSING

EXIT_CODES = (
    "Exit codes: 0 success, 1 failure while running, 2 usage error, 3 data or model unavailable, "
    "4 a gate failed, 5 some sequences failed or are missing, 129, 130 or 143 interrupted."
)
"""The last lines of a command's help."""

MANY = 15
"""Options of a command above which ``--help`` shows the needed ones, and ``--help-all`` shows all."""

# Panels of a command's help; typer shows those without one first.
FIRST = None
WHAT = "What to measure"
SAMPLING = "Sampling"
DRAFTING = "Drafting and acceptance"
MACHINE = "Machine and models"
OUTPUT = "Output"


class OptionRow(NamedTuple):
    """How an option is typed, what it does, and its panel in the help."""

    spec: str
    text: str
    panel: str | None


def option(spec: str, text: str, panel: str | None = FIRST, *, required: bool = False) -> Any:
    """A field of a command's options, which is the whole declaration of one.

    Args:
        required: an argument always is, but in brackets.
    """
    told = {_ROW: OptionRow(spec, text, panel)}
    if required or not spec.startswith(("--", "[")):
        return field(metadata=told)
    return field(default=None if " " in spec or spec.startswith("[") else False, metadata=told)


def option_of(model: type[Common], name: str) -> Any:
    """A field that is declared as the one of another command's options."""
    _, row, _, _ = _declared(model)[name]
    return option(*row)


_ROW = "row"


def _declared(model: type[Common]) -> Mapping[str, tuple[str, OptionRow, Any, Any]]:
    """Name, row, type and default of each field that has a row, by name."""
    types = get_type_hints(model)
    return {
        each.name: (each.name, each.metadata[_ROW], types[each.name], each.default)
        for each in fields(model)
        if _ROW in each.metadata
    }


@dataclass(frozen=True, kw_only=True)
class Common:
    """The options of every command: JSON on stdout, and nothing but errors."""

    json: bool = option("--json", "Print the result as JSON, and nothing else on stdout.", OUTPUT)
    quiet: bool = option("--quiet", "Print nothing but errors (and JSON with --json).", OUTPUT)


NEEDED = "engine device"
"""Beside those without a panel, what ``run --help`` shows."""


@dataclass(frozen=True, kw_only=True)
class RunOptions(Common):
    """The options of ``run`` and ``sweep-k`` as typed; what was not typed is None, False for a switch."""

    task: str | None = option(
        "[TASK]",
        "A name of `spsbench list tasks`; a file of prompts or of a task's data (.jsonl, .json, "
        ".parquet, .txt); a task's YAML file; or file.py:attribute. Default: the pair's task, else "
        "xsum.",
    )
    pair: str | None = option(
        "--pair NAME", "Target and draft by name, see `spsbench list pairs`. Default: mini."
    )
    target: str | None = option(
        "--target MODEL", "Target model: hub id, perhaps with @REVISION, folder or GGUF file."
    )
    draft: str | None = option("--draft MODEL", "Draft model, in the same forms.")
    data: str | None = option(
        "--data SOURCE", "official, mini or a file. Default: mini with a synthetic pair, else official."
    )
    limit: str | None = option(
        "--limit N", "Number of prompts, or a range of them: 10-20. Default: the protocol's."
    )
    k: str | None = option(
        "--k LIST",
        "Lookahead K: 4, 0,2,4 or 0..7; 0 is ArS; adaptive leaves it to a policy. Default: 4; sweep-k: 0..7.",
    )
    drafter: str | None = option("--drafter LIST", "What proposes tokens, e.g. model,lookup. Default: model.")
    sampling: str | None = option(
        "--sampling LIST",
        "Presets of the task, e.g. nucleus,greedy; model, from generation_config.json; beam:width=4.",
    )
    seed: str | None = option("--seed N", "Random seed. Default: 0.")
    out: Path | None = option("--out DIR", "Run directory. Default: a new one in results/.")
    protocol: str | None = option(
        "--protocol NAME", "Limits by name, see `spsbench list protocols`. Default: quick.", WHAT
    )
    id: str | None = option(
        "--id LIST", "Only the prompts with these ids, e.g. HumanEval/3,HumanEval/8.", WHAT
    )
    tag: list[str] | None = option(
        "--tag KEY=VALUE...", "A note that run.json and every table carry, e.g. gpu=a; may be repeated.", WHAT
    )
    samples: str | None = option("--samples N", "Sequences per prompt and arm.", WHAT)
    shard: str | None = option(
        "--shard I/N", "Only the I-th of N parts, e.g. 1/4; `spsbench merge` combines them.", WHAT
    )
    until: str | None = option(
        "--until ci=X%,TIME",
        "Stop when every speedup's 95% interval, valid at every look, is within X% of it: ci=5%; after "
        "so much measuring, at the end of a prompt: 5min; at the first of both: ci=5%,5min.",
        WHAT,
    )
    remeasure: str | None = option(
        "--remeasure TIME",
        "Time again what contention disturbed (above 2% of a timing), for at most this long; 0: not at "
        "all. Default: as long as the measuring took, 30s for a short run.",
        WHAT,
    )
    arms: str | None = option("--arms LIST", "Methods: ars, sps, draft. Default: ars,sps.", WHAT)
    config: Path | None = option(
        "--config FILE", "Settings from YAML, e.g. an earlier run's config.yaml.", WHAT
    )
    set: list[str] | None = option(
        "--set KEY=VALUE...",
        "A setting of config.yaml, e.g. warmup=false, or trace=8, prompts whose tokens are recorded; "
        "may be repeated.",
        WHAT,
    )
    no_score: bool = option("--no-score", "Generate only; compute no metric.", WHAT)
    no_proof: bool = option("--no-proof", "Skip the extra sequences of the losslessness test.", WHAT)
    unsafe_exec: bool = option(
        "--unsafe-exec", "Run generated programs even without a sandbox; the run records it.", WHAT
    )
    extract: str | None = option(
        "--extract auto|none|fence",
        "How code is read from chat answers: begun for the model (auto), as it is, or from its fence.",
        WHAT,
    )
    turns: str | None = option(
        "--turns WHICH",
        "Of a user's turns ask first, last, all (after the file's answers), or own: each after the arm's "
        "own. Default: last of `messages`; own of mt-bench, which only `run` asks.",
        WHAT,
    )
    trust: bool = option(
        "--trust",
        "Let the settings of somebody else's run import files, start commands, ask servers and leave the "
        "sandbox.",
        WHAT,
    )
    temperature: str | None = option(
        "--temperature T", "Temperature, above 0. Default: the sampling's.", SAMPLING
    )
    top_p: str | None = option("--top-p P", "Nucleus mass, above 0 to 1. Default: the sampling's.", SAMPLING)
    top_k: str | None = option(
        "--top-k N", "Keep the N most probable tokens; 0 keeps all. Default: the sampling's.", SAMPLING
    )
    max_new_tokens: str | None = option(
        "--max-new-tokens N", "Most new tokens of an output. Default: the task's.", SAMPLING
    )
    fixed_length: bool = option(
        "--fixed-length", "Ignore EOS and stop strings, so that all outputs have the same length.", SAMPLING
    )
    chat_template: str | None = option(
        "--chat-template auto|none", "Whether to use the tokenizer's chat template. Default: auto.", SAMPLING
    )
    template_arg: list[str] | None = option(
        "--template-arg NAME=VALUE...",
        "A variable of the chat template, e.g. enable_thinking=false; may be repeated.",
        SAMPLING,
    )
    process: list[str] | None = option(
        "--process NAME=VALUE...",
        "Change logits before a token is drawn, e.g. min_p=0.1:typical_p=0.9; may be repeated. "
        f"Names: {', '.join(PROCESSING)}.",
        SAMPLING,
    )
    rule: str | None = option(
        "--rule LIST",
        "What accepts draft tokens. Default: modified-rejection; of trees recursive-rejection.",
        DRAFTING,
    )
    policy: str | None = option(
        "--policy LIST", "How many tokens a loop drafts, up to K. Default: fixed, always K.", DRAFTING
    )
    tree: str | None = option(
        "--tree SHAPES",
        "How drafts branch: chain; siblings by depth, e.g. 4,2,1 (K is its depth); dynamic:N, the N most "
        "probable nodes down to K; or several, as in chain+4,2,1. Default: chain.",
        DRAFTING,
    )
    engine: str | None = option(
        "--engine LIST",
        'What runs the loops, see `spsbench list engines`; any program as worker:"COMMAND"; a server as '
        "openai:URL. Default: eager; on CUDA graphed, if every arm can be captured.",
        MACHINE,
    )
    batch: str | None = option("--batch LIST", "Batch sizes, each arm at each: 1,2,4,8. Default: 1.", MACHINE)
    concurrency: str | None = option(
        "--concurrency LIST",
        "Requests in flight at servers: 1,2,4,8. With --engine openai:URL[,openai:URL].",
        MACHINE,
    )
    device: str | None = option("--device NAME", "auto, cpu, cuda, cuda:N or mps. Default: auto.", MACHINE)
    dtype: str | None = option(
        "--dtype NAME",
        "auto, float32, bfloat16, float16, int8 or int4. With a + how weights are quantised and what is "
        "computed in: bfloat16+int8. Another one for the draft: auto:draft=int8. Default: auto.",
        MACHINE,
    )
    device_map: str | None = option(
        "--device-map MAP",
        "A target larger than one device: auto, balanced, sequential, or a JSON file of modules and devices.",
        MACHINE,
    )
    threads: str | None = option(
        "--threads auto|N",
        "CPU threads. Default: auto, by the target's size and the CPUs that others leave.",
        MACHINE,
    )
    backend: str | None = option(
        "--backend NAME",
        "auto, onnxruntime, torch or inductor. Default: onnxruntime on a CPU where it covers the models.",
        MACHINE,
    )
    tensor_parallel: str | None = option(
        "--tensor-parallel N",
        "Split the target over N processes: torchrun --nproc-per-node N -m spsbench run ... The draft is "
        "in the first; with N:draft=replicated in all.",
        MACHINE,
    )
    processes: str | None = option(
        "--processes N", "Repeat in N fresh processes; intervals over all of them.", MACHINE
    )
    on: str | None = option(
        "--on WHERE", "Spread prompts over workers: ray (this machine) or ray://HOST:PORT.", MACHINE
    )
    resume: Path | None = option("--resume DIR", "Continue the run in DIR with its own settings.", OUTPUT)
    fail_on: str | None = option(
        "--fail-on LIST", "Gates that exit 4 if failed: lossless, parity, untrusted (times).", OUTPUT
    )
    expect: str | None = option(
        "--expect HASH", "Exit 4 unless the hash of all token ids begins with HASH.", OUTPUT
    )
    allow_mixed: bool = option(
        "--allow-mixed", "Continue although threads, backend, versions or hardware changed.", OUTPUT
    )


_OF_RUN = _declared(RunOptions)


@dataclass(frozen=True, kw_only=True)
class PresetOptions(Common):
    """Which law is sampled, of a command that takes no exact search."""

    sampling: str | None = option(
        "--sampling LIST", "Presets of the task, e.g. nucleus,greedy; or model, from generation_config.json."
    )


TEMPERATURE_OF_TEXTS = "Temperature of texts that record none; 0 is greedy. Default: 1."


@dataclass(frozen=True, kw_only=True)
class DrawnOptions(Common):
    """How the texts of a file were drawn."""

    temperature: str | None = option("--temperature T", TEMPERATURE_OF_TEXTS, SAMPLING)
    top_p: str | None = option("--top-p P", "Nucleus mass of texts that record none. Default: 1.", SAMPLING)
    top_k: str | None = option(
        "--top-k N", "Most probable tokens, of texts that record none. Default: all.", SAMPLING
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
    declared = {**_OF_RUN, **_declared(model)}

    def give(function: Callable[[AskedT], None]) -> Callable[..., None]:
        def command(**params: Any) -> None:
            params.pop(_HELP_ALL.name, None)  # which is for ``main`` alone
            function(model(**params))

        vars(command)["__asked__"] = model
        wanted = [_parameter(*declared[name]) for name in names]
        if len(wanted) > MANY:
            first = {each.name for each in wanted if each.annotation.__metadata__[0].rich_help_panel is FIRST}
            vars(command)["__needed__"] = first | set(needed.split())
            wanted.append(_HELP_ALL)
        return _described(command, function.__doc__, wanted)

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


def _described(
    command: Callable[..., None], text: str | None, wanted: Iterable[Parameter]
) -> Callable[..., None]:
    """The command with its help and the signature that typer reads."""
    command.__doc__ = text
    vars(command)["__signature__"] = Signature([*wanted])
    return command


def _parameter(name: str, row: OptionRow, of_type: Any, default: Any) -> Parameter:
    """What typer makes an option or an argument of."""
    given: dict[str, Any] = {
        "help": row.text,
        "show_default": False,
        "autocompletion": _completer(row.spec, row.text),
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
        default=Parameter.empty if default is MISSING else default,
        annotation=Annotated[of_type, info],
    )


_RUN_DIRECTORIES = ("--alpha A|RUN", "--resume DIR", "A", "B", "RUN or SAMPLES", "SHARD", "RUN")
_NAMED = {
    "[TASK]": "tasks",
    "--pair NAME": "pairs",
    "--protocol NAME": "protocols",
    "--drafter LIST": "drafters",
    "--rule LIST": "rules",
    "--policy LIST": "policies",
    "--sampling LIST": "samplings",
    "--process NAME=VALUE...": "processing",
    "--engine LIST": "engines",
    "--engine NAME": "external engines",
    "NAME": "pairs and external engines",
}
"""What completes an option."""


def _completer(spec: str, text: str) -> Callable[[typer.Context, str], list[str]] | None:
    """Complete what was typed, or the last part of a list that is typed as ``a,b``."""
    choices = re.match(r"(?:[a-z0-9:]+, )+[a-zN0-9:]+ or [a-z0-9]+\.", text)  # that the help begins with
    listed = spec.partition(" ")[2] if "|" in spec else choices[0] if choices else ""
    words = [word for word in re.findall(r"[\w:]+", listed) if word.islower() and word != "or"]
    runs, mark = spec.strip("[.]") in _RUN_DIRECTORIES, ":" if "=" in spec else ","
    if not (words or runs or spec in _NAMED):
        return None

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        before, between, last = ("", "", incomplete) if runs else incomplete.rpartition(mark)
        try:
            names = words or (_runs(incomplete) if runs else _names(_NAMED[spec], context.params.get("task")))
            found = [name for name in names if name.startswith(last) and name not in before.split(mark)]
        except SpsbenchError:  # completion has nowhere to report it
            return []
        return [f"{before}{between}{name}" for name in found]

    return complete


def _runs(begun: str) -> list[str]:
    """Run directories: those in ``results/``, and those that the typed path leads to."""
    here, typed = Path.cwd(), Path(begun)
    # Of an absolute path, too: a pattern is looked for below the folder that has been typed whole.
    above = typed if begun.endswith("/") else typed.parent
    prefix = "" if begun.endswith("/") else typed.name
    led_to = [path for path in above.glob("*/run.json") if begun and path.parent.name.startswith(prefix)]
    found = [*results_dir().glob("*/run.json"), *led_to]
    folders = (path.parent for path in found)
    return sorted({str(path.relative_to(here) if path.is_relative_to(here) else path) for path in folders})


def _names(kind: str, task: str | None) -> Iterable[str]:
    """Names of one kind, those of installed packages included; neither torch nor a model is loaded."""
    if kind in _FOLDERS:
        return sorted(path.stem for folder in _FOLDERS[kind] for path in data_dir(folder).glob("*.yaml"))
    match kind:
        case "processing":
            return [f"{name}=" for name in PROCESSING]
        case "drafters" | "rules" | "policies":
            from spsbench.drafters import registry

            found: Mapping[str, str] = getattr(registry, kind.upper()).names()
            return found
        case "engines":
            from spsbench.engines.arms import ENGINES

            return [*ENGINES, *_names("external engines", None)]
    from spsbench.base.axes import BEAM, RECOMMENDED
    from spsbench.tasks.spec import read_spec

    tasks = list(_names("tasks", None))
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

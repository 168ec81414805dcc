"""Every option of the command line, declared once: a row says how it is typed and what it does.

Rows are written as in a usage text: ``--seed N``, ``--no-score``, ``--set KEY=VALUE...`` (may be repeated),
``[TASK]``, ``SHARD...``. Those of ``run`` are here; the other commands choose among them and add their own.
An option of ``run`` that is a setting has the name of a field of ``RunConfig``, or is the field's ``title``.
Values stay text: the settings check them, and their errors say what may be written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, TypeVar

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

Panels = Mapping[str | None, Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class Common:
    """The options of every command: JSON on stdout, and nothing but errors."""

    json: bool = False
    quiet: bool = False


RUN: Panels = {
    FIRST: {
        "[TASK]": (
            "A name of `spsbench list tasks`; a file of prompts or of a task's data (.jsonl, .json, "
            ".parquet, .txt); a task's YAML file; or file.py:attribute. Default: the pair's task, else "
            "xsum."
        ),
        "--pair NAME": "Target and draft by name, see `spsbench list pairs`. Default: mini.",
        "--target MODEL": "Target model: hub id, perhaps with @REVISION, folder or GGUF file.",
        "--draft MODEL": "Draft model, in the same forms.",
        "--data SOURCE": "official, mini or a file. Default: mini with a synthetic pair, else official.",
        "--limit N": "Number of prompts, or a range of them: 10-20. Default: the protocol's.",
        "--k LIST": (
            "Lookahead K: 4, 0,2,4 or 0..7; 0 is ArS; adaptive leaves it to a policy. Default: 4; sweep-k: "
            "0..7."
        ),
        "--drafter LIST": "What proposes tokens, e.g. model,lookup. Default: model.",
        "--sampling LIST": (
            "Presets of the task, e.g. nucleus,greedy; model, from generation_config.json; beam:width=4."
        ),
        "--seed N": "Random seed. Default: 0.",
        "--out DIR": "Run directory. Default: a new one in results/.",
    },
    WHAT: {
        "--protocol NAME": "Limits by name, see `spsbench list protocols`. Default: quick.",
        "--id LIST": "Only the prompts with these ids, e.g. HumanEval/3,HumanEval/8.",
        "--tag KEY=VALUE...": "A note that run.json and every table carry, e.g. gpu=a; may be repeated.",
        "--samples N": "Sequences per prompt and arm.",
        "--shard I/N": "Only the I-th of N parts, e.g. 1/4; `spsbench merge` combines them.",
        "--until ci=X%,TIME": (
            "Stop when every speedup's 95% interval, valid at every look, is within X% of it: ci=5%; after "
            "so much measuring, at the end of a prompt: 5min; at the first of both: ci=5%,5min."
        ),
        "--remeasure TIME": (
            "Time again what contention disturbed (above 2% of a timing), for at most this long; 0: not at "
            "all. Default: as long as the measuring took, 30s for a short run."
        ),
        "--arms LIST": "Methods: ars, sps, draft. Default: ars,sps.",
        "--config FILE": "Settings from YAML, e.g. an earlier run's config.yaml.",
        "--set KEY=VALUE...": (
            "A setting of config.yaml, e.g. warmup=false, or trace=8, prompts whose tokens are recorded; "
            "may be repeated."
        ),
        "--no-score": "Generate only; compute no metric.",
        "--no-proof": "Skip the extra sequences of the losslessness test.",
        "--unsafe-exec": "Run generated programs even without a sandbox; the run records it.",
        "--extract auto|none|fence": (
            "How code is read from chat answers: begun for the model (auto), as it is, or from its fence."
        ),
        "--turns WHICH": (
            "Of a user's turns ask first, last, all (after the file's answers), or own: each after the arm's "
            "own. Default: last of `messages`; own of mt-bench, which only `run` asks."
        ),
        "--trust": (
            "Let the settings of somebody else's run import files, start commands, ask servers and leave the "
            "sandbox."
        ),
    },
    SAMPLING: {
        "--temperature T": "Temperature, above 0. Default: the sampling's.",
        "--top-p P": "Nucleus mass, above 0 to 1. Default: the sampling's.",
        "--top-k N": "Keep the N most probable tokens; 0 keeps all. Default: the sampling's.",
        "--process NAME=VALUE...": (
            "Change logits before a token is drawn, e.g. min_p=0.1:typical_p=0.9; may be repeated. "
            f"Names: {', '.join(PROCESSING)}."
        ),
        "--max-new-tokens N": "Most new tokens of an output. Default: the task's.",
        "--fixed-length": "Ignore EOS and stop strings, so that all outputs have the same length.",
        "--chat-template auto|none": "Whether to use the tokenizer's chat template. Default: auto.",
        "--template-arg NAME=VALUE...": (
            "A variable of the chat template, e.g. enable_thinking=false; may be repeated."
        ),
    },
    DRAFTING: {
        "--rule LIST": (
            "What accepts draft tokens. Default: modified-rejection; of trees recursive-rejection."
        ),
        "--policy LIST": "How many tokens a loop drafts, up to K. Default: fixed, always K.",
        "--tree SHAPES": (
            "How drafts branch: chain; siblings by depth, e.g. 4,2,1 (K is its depth); dynamic:N, the N most "
            "probable nodes down to K; or several, as in chain+4,2,1. Default: chain."
        ),
    },
    MACHINE: {
        "--engine LIST": (
            'What runs the loops, see `spsbench list engines`; any program as worker:"COMMAND"; a server as '
            "openai:URL. Default: eager; on CUDA graphed, if every arm can be captured."
        ),
        "--batch LIST": "Batch sizes, each arm at each: 1,2,4,8. Default: 1.",
        "--concurrency LIST": (
            "Requests in flight at servers: 1,2,4,8. With --engine openai:URL[,openai:URL]."
        ),
        "--device NAME": "auto, cpu, cuda, cuda:N or mps. Default: auto.",
        "--dtype NAME": (
            "auto, float32, bfloat16, float16, int8 or int4. With a + how weights are quantised and what is "
            "computed in: bfloat16+int8. Another one for the draft: auto:draft=int8. Default: auto."
        ),
        "--device-map MAP": (
            "A target larger than one device: auto, balanced, sequential, or a JSON file of modules and "
            "devices."
        ),
        "--threads auto|N": (
            "CPU threads. Default: auto, by the target's size and the CPUs that others leave."
        ),
        "--backend NAME": (
            "auto, onnxruntime or torch. Default: onnxruntime on a CPU where it covers the models."
        ),
        "--tensor-parallel N": (
            "Split the target over N processes: torchrun --nproc-per-node N -m spsbench run ... The draft is "
            "in the first; with N:draft=replicated in all."
        ),
        "--processes N": "Repeat in N fresh processes; intervals over all of them.",
        "--on WHERE": "Spread prompts over workers: ray (this machine) or ray://HOST:PORT.",
    },
    OUTPUT: {
        "--resume DIR": "Continue the run in DIR with its own settings.",
        "--fail-on LIST": "Gates that exit 4 if failed: lossless, parity, untrusted (times).",
        "--expect HASH": "Exit 4 unless the hash of all token ids begins with HASH.",
        "--allow-mixed": "Continue although threads, backend, versions or hardware changed.",
        "--json": "Print the result as JSON, and nothing else on stdout.",
        "--quiet": "Print nothing but errors (and JSON with --json).",
    },
}

NEEDED = "engine device"
"""Beside those without a panel, what ``run --help`` shows."""


@dataclass(frozen=True, kw_only=True)
class RunOptions(Common):
    """The options of ``run`` and ``sweep-k`` as typed; what was not typed is None, False for a switch."""

    task: str | None = None
    pair: str | None = None
    target: str | None = None
    draft: str | None = None
    data: str | None = None
    limit: str | None = None
    k: str | None = None
    drafter: str | None = None
    sampling: str | None = None
    seed: str | None = None
    out: Path | None = None
    protocol: str | None = None
    id: str | None = None
    tag: list[str] | None = None
    samples: str | None = None
    shard: str | None = None
    until: str | None = None
    remeasure: str | None = None
    arms: str | None = None
    config: Path | None = None
    set: list[str] | None = None
    no_score: bool = False
    no_proof: bool = False
    unsafe_exec: bool = False
    extract: str | None = None
    turns: str | None = None
    trust: bool = False
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
    concurrency: str | None = None
    device: str | None = None
    dtype: str | None = None
    device_map: str | None = None
    threads: str | None = None
    backend: str | None = None
    tensor_parallel: str | None = None
    processes: str | None = None
    on: str | None = None
    resume: Path | None = None
    fail_on: str | None = None
    expect: str | None = None
    allow_mixed: bool = False


OF_SAMPLES = {
    "--sampling LIST": "Presets of the task, e.g. nucleus,greedy; or model, from generation_config.json."
}
"""Which law is sampled, of a command that takes no exact search."""

OF_TEXTS = {
    "--temperature T": "Temperature of texts that record none; 0 is greedy. Default: 1.",
    "--top-p P": "Nucleus mass of texts that record none. Default: 1.",
    "--top-k N": "Most probable tokens, of texts that record none. Default: all.",
}
"""How the texts of a file were drawn."""


@dataclass(frozen=True, kw_only=True)
class DrawnOptions(Common):
    """How texts were drawn: the options of ``OF_TEXTS``, and ``--process``."""

    temperature: str | None = None
    top_p: str | None = None
    top_k: str | None = None
    process: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class MachineOptions(Common):
    """Which models run, and where."""

    pair: str | None = None
    device: str | None = None
    dtype: str | None = None
    backend: str | None = None
    threads: str | None = None


_PATHS = ("DIR", "FILE", "FOLDER", "RUN")
_PATH_ARGUMENTS = ("A", "B", "FOLDER", "RUN", "RUN or SAMPLES", "SAMPLES", "SHARD")
"""Values that are paths."""


def takes(
    names: str, own: Panels | None = None, *, required: str = ""
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of these names, in this order: its own, else those of ``run``.

    Every command has ``--json`` and ``--quiet``. An option is optional but ``required``, an argument is
    required but in brackets.
    """
    known = _known(own, required)

    def give(function: Callable[..., None]) -> Callable[..., None]:
        def command(**params: Any) -> None:
            function(**_of_the_command(params))

        listed = (*names.split(), "json", "quiet")
        return _described(command, function.__doc__, [known[name] for name in listed])

    return give


AskedT = TypeVar("AskedT", bound=Common)


def among(model: type[AskedT], options: Common, /, **fixed: object) -> AskedT:
    """Take the options of ``model`` from those of a command, which lacks what was not typed.

    ``fixed`` overrules what was typed.
    """
    typed = vars(options) | fixed
    kept: dict[str, Any] = {field.name: typed[field.name] for field in fields(model) if field.name in typed}
    return model(**kept)


def asks(
    model: type[AskedT], own: Panels | None = None, *, required: str = "", needed: str = ""
) -> Callable[[Callable[[AskedT], None]], Callable[..., None]]:
    """Give a command the options that are the fields of ``model``, in their order, and an instance of it.

    As ``takes`` for the rest; a field has the type that its row says, which a test holds. Where there are
    more than ``MANY``, ``--help`` shows those without a panel and the ``needed`` ones.
    """
    known = _known(own, required)
    common = [field.name for field in fields(Common)]
    names = [*(field.name for field in fields(model) if field.name not in common), *common]

    def give(function: Callable[[AskedT], None]) -> Callable[..., None]:
        def command(**params: Any) -> None:
            function(model(**_of_the_command(params)))

        vars(command)["__asked__"] = model
        wanted = [known[name] for name in names]
        if len(wanted) > MANY:
            first = {each.name for each in wanted if each.annotation.__metadata__[0].rich_help_panel is FIRST}
            vars(command)["__needed__"] = first | set(needed.split())
            wanted.append(_HELP_ALL)
        return _described(command, function.__doc__, wanted)

    return give


def _known(own: Panels | None, required: str) -> dict[str, Parameter]:
    """Every option by its name: those of ``run``, and a command's own instead."""
    parameters = (
        _parameter(spec, text, panel, required)
        for panels in (RUN, own or {})
        for panel, rows in panels.items()
        for spec, text in rows.items()
    )
    return {parameter.name: parameter for parameter in parameters}


def _of_the_command(params: Mapping[str, Any]) -> dict[str, Any]:
    """What was typed, without what is for ``main`` alone."""
    return {name: value for name, value in params.items() if name != "help_all"}


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


def _parameter(spec: str, text: str, panel: str | None, required: str) -> Parameter:
    """What typer makes an option or an argument of."""
    flag, _, metavar = spec.removesuffix("...").partition(" ") if spec.startswith("--") else ("", "", spec)
    name = re.sub(r"\W+", "_", flag.lstrip("-") or metavar.strip("[.]").lower())
    repeated, plain = spec.rstrip("]").endswith("..."), metavar.strip("[.]")
    value: Any = Path if plain in (_PATHS if flag else _PATH_ARGUMENTS) else str
    value = bool if flag and not metavar else list[value] if repeated else value
    given: dict[str, Any] = {
        "help": text,
        "show_default": False,
        "autocompletion": _completer(spec, text),
        "rich_help_panel": panel,
    }
    if flag:
        info: Any = typer.Option(flag, metavar=metavar, **given)
        default = False if value is bool else Parameter.empty if name == required else None
    else:
        info = typer.Argument(metavar=metavar.strip("[.]"), **given)
        default = None if metavar.startswith("[") else Parameter.empty
    annotation: Any = Annotated[value | None if default is None else value, info]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


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

"""What may not be asked together: one table, checked on what was typed and again on settings from files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spsbench.base.axes import BEAM
from spsbench.base.errors import UsageError


@dataclass(frozen=True, slots=True)
class Clash:
    """Options that are refused beside others.

    Attributes:
        commands: where; ``settings`` is every run's, from the command line or Python.
        names: the options, by their names in Python, that the error is about; ``--x`` is a part of x.
        beside: any of these beside them is refused; ``texts``, ``samples``: what an argument names.
        without: they are refused unless one of these is beside them.
        why: may contain {value} (of the option), {other} (the flag beside it) and {beside} (its value).
    """

    commands: tuple[str, ...]
    names: tuple[str, ...]
    beside: tuple[str, ...]
    why: str
    remedy: str
    without: tuple[str, ...]


def _clash(
    commands: str,
    names: str,
    beside: str = "",
    *,
    why: str = "{value} is given together with {other}.",
    remedy: str = "Leave one of the two out.",
    without: str = "",
) -> Clash:
    """A row whose names are written with spaces between."""
    return Clash(
        tuple(commands.split()),
        tuple(names.split()),
        tuple(beside.split()),
        why,
        remedy,
        tuple(without.split()),
    )


_RUN = "run sweep-k"

TABLE = (
    _clash(_RUN, "tensor_parallel", "processes concurrency on"),
    _clash(_RUN, "on", "processes concurrency"),
    _clash(
        _RUN,
        "remeasure",
        "on",
        why="{value} is given together with --on {beside}, whose workers time every sequence once.",
        remedy="Leave it out, or measure without --on.",
    ),
    _clash(_RUN, "concurrency", "processes"),
    _clash(
        _RUN,
        "resume",
        "processes",
        remedy="Give --out with the same directory: what is finished there is kept.",
    ),
    _clash(
        _RUN,
        "until",
        "processes",
        why="{value} is given together with --processes, which must all run the same prompts.",
        remedy="Give --limit in its place, or leave --processes out.",
    ),
    _clash(
        _RUN,
        "k drafter rule policy tree draft arms backend dtype device threads device_map batch tag "
        "resume fail_on expect until remeasure shard allow_mixed",
        "concurrency",
        why="{value} has no effect on a server that is running already.",
        remedy="Leave it out, or leave --concurrency out.",
    ),
    _clash(
        _RUN,
        "out config",
        "resume",
        remedy="A continued run has its own directory and settings: leave one of the two out.",
    ),
    _clash(
        _RUN,
        "protocol",
        "resume",
        why="{value} is given together with {other}, and {beside} keeps the limits that it was begun with.",
        remedy="Give the limits themselves: --limit, --samples.",
    ),
    _clash(
        _RUN,
        "expect",
        "until",
        why="with --until times decide how many prompts are run, and the hash is of all of them.",
        remedy="Give --limit in its place.",
    ),
    _clash(_RUN, "id", "limit shard"),
    _clash(
        "field",
        "id shard processes concurrency on tensor_parallel expect config",
        "field",
        why="{value} is for the run of a single task, and {beside} is several.",
        remedy="Leave it out, or run the tasks one by one.",
    ),
    _clash(
        "settings leviathan", "target draft", "pair", remedy="Give either --pair, or --target and --draft."
    ),
    _clash(
        "settings",
        "until",
        "shard",
        why="{value} is given together with shard {beside}; shards end at the same prompt.",
        remedy="Give --limit in its place, or run without --shard.",
    ),
    _clash(
        "settings",
        "--until",
        "batch",
        why="{value} is judged prompt by prompt, and batches are measured in waves of several.",
        remedy="Stop by --limit or after a time, as --until 5min, or leave --batch out.",
    ),
    _clash(
        "settings",
        "batch",
        BEAM,
        why="{value} sequences at once: a beam search takes one prompt.",
        remedy=f"Leave --sampling {BEAM} out, or --batch.",
    ),
    _clash(
        "settings",
        "temperature top_p top_k process",
        BEAM,
        why="{value} changes a distribution, and a beam search samples from none.",
        remedy=f"Leave it out, or measure {BEAM} in a run of its own.",
    ),
    _clash(
        "verify",
        "drafter rule policy",
        "control",
        remedy="Faults are planted in the paper's own sampler: leave one of the two out.",
    ),
    _clash(
        "verify",
        "drafter rule policy control effort sampling chat_template temperature top_p top_k backend "
        "tensor_parallel dtype process",
        "engine",
        why="it changes how the built-in sampler is tested; of {beside} only the form of its answers is "
        "checked.",
        remedy="Leave it out.",
    ),
    _clash(
        "audit",
        "process",
        "repro",
        why="{value} is given together with --repro, whose scripts know temperature, top-k and top-p.",
    ),
    _clash(
        "audit",
        "arms k",
        "server",
        why="{value} is given, and a server has its own models and lookahead.",
        remedy="Leave it out; audit a server with speculation and one without.",
    ),
    _clash(
        "audit",
        "k arms weights in_flight prefix_cache contexts bound texts task limit max_new_tokens "
        "template_arg threads evidence repro releases",
        "samples follow",
        why="it is for texts that are drawn from an engine, and {beside} is a file of them.",
        remedy="Leave it out.",
    ),
    _clash("audit", "budget out", "samples", why="{beside} holds all of its texts.", remedy="Leave it out."),
    _clash(
        "audit",
        "in_flight prefix_cache weights",
        "contexts",
        why="the contexts of {other} are for one request at a time, which draws its tokens in float32.",
    ),
    _clash("audit", "keep", remedy="Leave it out.", without="releases"),
    _clash("audit", "evidence", "releases"),
    _clash(
        "audit",
        "every webhook",
        why="{value} is for a log that is followed.",
        remedy="Add --follow FILE, or leave it out.",
        without="follow",
    ),
    _clash(
        "audit",
        "evidence",
        "weights",
        why="{value} is given together with {other}, and others have the weights before they are converted.",
    ),
    _clash(
        "audit",
        "dtype",
        "engine",
        why="it is for a file of texts; those of {beside} are re-scored in float32.",
        remedy="Leave it out.",
    ),
    _clash(
        "replay",
        "tree policy budget times",
        "curve",
        why="a curve describes chains of a fixed K, and nothing is timed for it.",
    ),
    _clash("replay", "curve", "explain"),
    _clash(
        "advise",
        "alpha batch context",
        why="{value} is for hardware that is not here.",
        remedy="Give --hardware.",
        without="hardware",
    ),
    _clash("advise", "times", why="{value} has K by batch size for an engine.", without="format"),
    _clash("replay", "out", why="{value} is where a curve is written.", without="curve"),
    _clash("replay", "budget", "times", why="with --times nothing is timed here."),
    _clash("replay", "tree", "policy", why="a static tree has its own depth, which no policy ends."),
    _clash(
        "replay",
        "sampling",
        "texts",
        why="{beside} is a file of texts, whose sampling has no name.",
        remedy="Give --temperature, --top-p.",
    ),
    _clash(
        "replay",
        "pair target device dtype backend temperature top_p top_k",
        "recorded",
        why="{beside} records it already.",
        remedy="Leave it out: it is for a file of texts.",
    ),
    _clash(
        "score",
        "out k problem_file ignore_missing",
        "run",
        why="it is an option for a file of samples, and {beside} is a run.",
        remedy="Leave it out.",
    ),
    _clash(
        "score",
        "missing trust",
        "samples",
        why="it is an option for a run, and {beside} holds samples.",
        remedy="Leave it out.",
    ),
    *(
        _clash("report", one, others, why="it is given together with {other}.", remedy="Give one of them.")
        for one, others in (("csv", "latex json"), ("latex", "json"))
    ),
    _clash("report", "out", why="{value} is given without --html.", remedy="Add --html.", without="html"),
    _clash(
        "simulate",
        "source rule fault tokens seed out contexts operations temperature top_p top_k tree",
        "formula",
        why="{value} is for a simulation.",
        remedy="Leave it or --formula out.",
    ),
    _clash(
        "simulate",
        "alpha contexts",
        "table",
        why="the table says what both models are.",
        remedy="Leave it out.",
    ),
    _clash("paper", "out", "resume"),
    *(
        _clash(
            "paper",
            names,
            paper,
            why="it has no meaning for the tables of {beside}.",
            remedy="Leave it out, or choose another paper with --of.",
        )
        for names, paper in (
            ("target draft task", "chen"),
            ("samples no_score unsafe_exec extract", "leviathan"),
        )
    ),
)


def refuse_together(command: str, options: Mapping[str, object]) -> None:
    """Refuse ``options`` (by their names in Python) that the table forbids together."""
    for row in TABLE:
        name = next((name for name in row.names if is_given(options.get(name))), None)
        if command not in row.commands or name is None:
            continue
        others = row.without or row.beside
        other = next((other for other in others if is_given(options.get(other))), None)
        if (other is None) == bool(row.without):
            value = options[name]
            value = ":".join(map(str, value)) if isinstance(value, list) else value
            value = "it" if value is True else value  # a switch has none
            known = {"value": value, "other": _flag(other or ""), "beside": options.get(other or "")}
            raise UsageError(row.why.format(**known), flag=_flag(name), remedy=row.remedy)


def is_given(value: object) -> bool:
    """Return whether an option was typed: a typed 0 counts, a flag left out and an empty list do not."""
    return value is not None and value is not False and value != [] and value != ()


def _flag(name: str) -> str:
    return name if name.startswith("-") else f"--{name.replace('_', '-')}"

"""The settings of a run as types: models, precision, limits, K, backends.

Every field's description says what may be written there; it becomes the remedy of the error. Numbers are
strict, because ``limit: true`` or ``k: 4.0`` is a slip and not a number.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from spsbench.base.addresses import withhold
from spsbench.base.axes import BEAM, CHAIN, EAGER, Method
from spsbench.base.errors import UsageError
from spsbench.base.records import LEAST_TEMPERATURE, Spec, seconds_of
from spsbench.config.option import ROW, OptionRow, Panel, setting
from spsbench.config.processing import PROCESSING, ProcessingSettings

AUTO, NONE = "auto", "none"
UNSAFE = "unsafe"
"""Of ``score``: programs run even where no sandbox holds."""
Turns = Literal["first", "last", "all", "own"]
"""Of what a user says in a conversation, which turns are asked and after whose answers."""
QUANTISED = {"int8": 8, "int4": 4}
"""Bits of quantised weights, by name."""


class Precision(str):
    """A dtype that the model computes in (``auto``: the checkpoint's own), and ``int8`` or ``int4`` where
    weights are quantised: ``float32+int8``, or ``int8`` alone in the checkpoint's own dtype."""

    __slots__ = ()

    @classmethod
    def of(cls, dtype: str, quantise: str | None) -> Precision:
        """Write both as one text, ``auto`` only where it stands alone."""
        if quantise is None:
            return cls(dtype)
        return cls(quantise if dtype == AUTO else f"{dtype}+{quantise}")

    @property
    def dtype(self) -> str:
        """What is computed in."""
        return AUTO if self in QUANTISED else self.rpartition("+")[0] or str(self)

    @property
    def quantise(self) -> str | None:
        """How weights are quantised; None if they are not."""
        if self in QUANTISED:
            return str(self)
        dtype, _, quantise = self.rpartition("+")
        return quantise if dtype else None

    @property
    def bits(self) -> int | None:
        """Of a quantised weight; None if they are not quantised."""
        return None if self.quantise is None else QUANTISED[self.quantise]


FIRST, REPLICATED = "first", "replicated"
"""Where the draft of a split target runs: in the first process alone, or in every one."""

MAX_K = 64
"""Beyond this no pair gains anything, and a typing error is likelier than an intention."""

REMEDY = f"Write whole numbers from 0 to {MAX_K}: one (4), a list (0,2,4) or a range (0..7)."

_PART = re.compile(r"([0-9]{1,4})(?:\.\.([0-9]{1,4}))?")


def parse_ks(text: str) -> tuple[int, ...]:
    """Read ``4``, ``0,2,4`` or ``0..7`` (ends included); the order stays, doubles go."""
    try:
        return split_ks(text)
    except ValueError as problem:
        raise UsageError(f"{problem}.", flag="--k", remedy=REMEDY) from None


def split_ks(text: str) -> tuple[int, ...]:
    """As ``parse_ks``, with a ValueError instead, for use inside validators."""
    ks: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{text.strip() or 'an empty text'} is not a lookahead")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"{part.strip()} is an empty range")
        if last > MAX_K:
            raise ValueError(f"{last} is more than the largest lookahead, {MAX_K}")
        ks.extend(range(first, last + 1))
    return tuple(dict.fromkeys(ks))


ONNXRUNTIME, TORCH, INDUCTOR = "onnxruntime", "torch", "inductor"
BACKENDS = (AUTO, ONNXRUNTIME, TORCH, INDUCTOR)
VARIABLE = "SPSBENCH_BACKEND"


def chosen_backend(typed: str | None = None) -> str:
    """Return what was typed, else what the environment variable says, else ``auto``."""
    flag, name = ("--backend", typed) if typed is not None else (VARIABLE, os.environ.get(VARIABLE) or AUTO)
    if name not in BACKENDS:
        raise UsageError(f"{name} is unknown.", flag=flag, remedy=f"Choose from {', '.join(BACKENDS)}.")
    return name


def _split_list(value: Any) -> Any:
    """Let a list be written as ``a,b``, as on the command line."""
    if not isinstance(value, str):
        return value
    return [part.strip() for part in value.split(",")]


BETWEEN_TREES = "+"
"""A comma stands within a tree: ``chain+4,2,1``."""


def _split_trees(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return [part.strip() for part in value.split(BETWEEN_TREES)]


_COMMAS = re.compile(r""",(?=(?:[^"']|"[^"]*"|'[^']*')*$)""")
_QUOTED = re.compile(r"""(worker:)(["'])(.*)\2""", re.DOTALL)


def _engines(value: Any) -> Any:
    """Let engines be written as ``a,b``, and commas stand within the quotes of a worker's command."""
    if isinstance(value, str):
        value = [part.strip() for part in _COMMAS.split(value)]
    if not isinstance(value, (list, tuple)):
        return value
    return [withhold(_unquoted(part)) if isinstance(part, str) else part for part in value]


def _unquoted(engine: str) -> str:
    """A worker's command without quotes around all of it, which a shell would have removed."""
    match = _QUOTED.fullmatch(engine)
    return engine if match is None or match[2] in match[3] else match[1] + match[3]


def _ks(value: Any) -> Any:
    """Let Ks be written as on the command line, or as a single number."""
    if isinstance(value, str):
        return split_ks(value)
    return [value] if type(value) is int else value


MAX_BATCH = 1024
"""Beyond this a batch is a typing error rather than an intention."""

MAX_BEAMS = 10_000
"""Likewise; what a vocabulary cannot fill is refused when it is known."""


def _batches(value: Any) -> Any:
    """Let batch sizes be written as on the command line, or as a single number."""
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",")]
        return [int(part) if re.fullmatch(r"[0-9]{1,6}", part) else part for part in parts]
    return [value] if type(value) is int else value


_UNTIL = re.compile(r"ci=([0-9]{1,2}(?:\.[0-9]{1,6})?)%")
WIDEST_PERCENT = 50
"""The widest half-width that ``until`` may ask for; beyond it an interval says next to nothing."""


def _read_until(text: str) -> tuple[float | None, float | None]:
    """Read where a run ends: (half-width in percent, seconds of measuring), None for what is not given.

    Raises:
        ValueError: something else is said, or one of them twice; a time without a unit may be meant as X.
    """
    percent: float | None = None
    time_s: float | None = None
    for part in text.split(","):
        if match := _UNTIL.fullmatch(part):
            if percent is not None or not 0 < float(match[1]) <= WIDEST_PERCENT:
                raise ValueError("no such precision")
            percent = float(match[1])
        else:
            if time_s is not None or not part[-1:].isalpha() or not seconds_of(part) > 0:
                raise ValueError("no such time")
            time_s = seconds_of(part)
    return percent, time_s


def _until(value: Any) -> Any:
    """Let ``ci=X%``, a time or both pass; X is above 0 and at most ``WIDEST_PERCENT``."""
    if isinstance(value, str):
        value = value.replace(" ", "")
        _read_until(value)
    return value


def _unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))


def _shard(value: str) -> str:
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", value)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError("no such shard")
    return value


def _range(value: str) -> str:
    """Let ``10-20`` pass: the 10th to the 20th prompt."""
    match = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", value.replace(" ", ""))
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError("no such range")
    return match[0]


_RANKS = re.compile(r"([0-9]{1,4}):draft=(first|replicated)")


def _ranks(value: int | str) -> int | str:
    """Let ``N`` and ``N:draft=WHERE`` pass; with WHERE, N is at least 2."""
    if isinstance(value, int):
        return value
    match = _RANKS.fullmatch(value)
    if match is None or int(match[1]) < 2:
        raise ValueError("no such split")
    return value if match[2] == REPLICATED else int(match[1])


Count = Annotated[int, Field(strict=True, ge=1)]

MOST_SAMPLES = 100_000
"""Of one prompt; pass@100 takes 200. What is beyond is a typing error rather than an intention."""
MOST_TOKENS = 10_000_000
"""Of one output, and more than any context window."""
MOST_PROMPTS = 100_000_000
MOST_THREADS = 4_096
MOST_ARMS = 1_000
"""Of a run: each is a row of every table, and each value of an axis at least one."""
LONGEST_NAME = 4_096
"""Characters of a name, which may be a path, or a worker's command."""
LONGEST_NOTES = 10_000
"""Characters of what is said of a pair or a protocol: some pages."""


def _up_to(most: int) -> str:
    return f"a whole number from 1 to {most:,}"


Samples = Annotated[int, Field(strict=True, ge=1, le=MOST_SAMPLES)]
Tokens = Annotated[int, Field(strict=True, ge=1, le=MOST_TOKENS)]
Prompts = Annotated[int, Field(strict=True, ge=1, le=MOST_PROMPTS)]
Notes = Annotated[str, Field(max_length=LONGEST_NOTES)]
Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME, pattern=r"^\S(.*\S)?$")]
Flag = Annotated[bool, Field(strict=True)]
K = Annotated[int, Field(strict=True, ge=0, le=MAX_K)]
Ks = Annotated[tuple[K, ...], Field(min_length=1), BeforeValidator(_ks), AfterValidator(_unique)]
Batches = Annotated[
    tuple[Annotated[int, Field(strict=True, ge=1, le=MAX_BATCH)], ...],
    Field(min_length=1),
    BeforeValidator(_batches),
    AfterValidator(_unique),
]
Ranks = Annotated[Count | str, AfterValidator(_ranks)]
Names = Annotated[
    tuple[Name, ...],
    Field(min_length=1, max_length=MOST_ARMS),
    BeforeValidator(_split_list),
    AfterValidator(_unique),
]
Ids = Annotated[tuple[Name, ...], Field(min_length=1), BeforeValidator(_split_list), AfterValidator(_unique)]
Trees = Annotated[
    tuple[Name, ...], Field(min_length=1), BeforeValidator(_split_trees), AfterValidator(_unique)
]
Engines = Annotated[tuple[Name, ...], Field(min_length=1), BeforeValidator(_engines), AfterValidator(_unique)]
Methods = Annotated[
    tuple[Method, ...], Field(min_length=1), BeforeValidator(_split_list), AfterValidator(_unique)
]
_FLOAT = "auto|float32|bfloat16|float16"
_BITS = "|".join(QUANTISED)
_DTYPE = rf"(({_FLOAT})(\+({_BITS}))?|{_BITS})"
Dtype = Annotated[str, Field(pattern=rf"^{_DTYPE}$")]
DRAFT = ":draft="
"""Between the target's dtype and what is said of the draft alone."""


def _same_draft(value: str) -> str:
    """Drop the draft's own dtype where it is empty."""
    return value.removesuffix(f"{DRAFT}{AUTO}")


Dtypes = Annotated[
    str,
    Field(pattern=rf"^{_DTYPE}({DRAFT}(({_FLOAT})(\+({_BITS}|{NONE}))?|{_BITS}))?$"),
    AfterValidator(_same_draft),
]
_DTYPES = "auto, float32, bfloat16, float16, int8 or int4, or a float and weights as float32+int8"


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


_AT_REVISION = re.compile(r"(\w[\w.-]*(?:/[\w.-]+)?)@(\S|\S.*\S)")


class ModelRef(_Settings):
    """A model by hub id, directory or GGUF file, ``embedded:...`` inside spsbench, or ``package:...``.

    A hub id may have a revision behind an @, as in ``org/name@main``; a path that exists is taken whole.
    """

    @model_validator(mode="before")
    @classmethod
    def _at_revision(cls, model: Any) -> Any:
        """Read ``org/name@revision``, alone or as the id of a mapping without a revision."""
        ref = {"id": model} if isinstance(model, str) else model
        if not isinstance(ref, dict) or "revision" in ref or not isinstance(name := ref.get("id"), str):
            return ref
        match = _AT_REVISION.fullmatch(name)
        if match is None or Path(name).exists():
            return ref
        return ref | {"id": match[1], "revision": match[2]}

    id: Name = Field(description="a hub id, perhaps with @revision, a directory or a GGUF file")
    revision: Name | None = Field(
        default=None, description="a commit, tag or branch, quoted if it is all digits"
    )


class PairConfig(_Settings):
    """A target and the draft that proposes for it; ``drafter`` proposes unless a run names others, e.g.
    ``heads``."""

    name: Name = Field(description="a name")
    target: ModelRef = Field(description="a hub id, perhaps with @revision, a directory or a GGUF file")
    draft: ModelRef = Field(description="a hub id, perhaps with @revision, a directory or a GGUF file")
    dtype: Dtype = Field(default="auto", description=_DTYPES)
    drafter: Name | None = Field(default=None, description="the name of a drafter")
    task: Name | None = Field(default=None, description="the name of a task")
    synthetic: Flag = Field(default=False, description="true or false")
    notes: Notes = Field(default="", description=f"text of at most {LONGEST_NOTES:,} characters")


class Limits(_Settings):
    """How much is measured. What is not set stays with the task's own setting."""

    ks: Ks = setting(
        "--k LIST",
        "Lookahead K: 4, 0,2,4 or 0..7; 0 is ArS; adaptive leaves it to a policy. Default: 4; sweep-k: 0..7.",
        f"whole numbers from 0 to {MAX_K} or adaptive, e.g. 4 or 0..7",
        default=(4,),
    )
    samplings: Names | None = setting(
        "--sampling LIST",
        "Presets of the task, e.g. nucleus,greedy; model, from generation_config.json; beam:width=4.",
        "names of samplings that the task knows, or beam",
        names="samplings",
    )
    max_new_tokens: Tokens | None = setting(
        "--max-new-tokens N",
        "Most new tokens of an output. Default: the task's.",
        _up_to(MOST_TOKENS),
        Panel.SAMPLING,
    )
    limit: Prompts | Annotated[str, AfterValidator(_range)] | None = setting(
        "--limit N",
        "Number of prompts, or a range of them: 10-20. Default: the protocol's.",
        f"{_up_to(MOST_PROMPTS)}, or a range from 1 as 10-20",
    )
    samples: Samples | None = setting(
        "--samples N", "Sequences per prompt and arm.", _up_to(MOST_SAMPLES), Panel.WHAT
    )


class ProtocolConfig(Limits):
    """Limits under a name, with exceptions per task."""

    name: Name = Field(description="a name")
    tasks: dict[str, Limits] = Field(default_factory=dict, description="limits per task name")
    notes: Notes = Field(default="", description=f"text of at most {LONGEST_NOTES:,} characters")

    def settings(self, task: str) -> dict[str, Any]:
        """Return what the protocol sets for a task (a name or the path of its YAML)."""
        limits = {*Limits.model_fields}
        common = self.model_dump(include=limits, exclude_unset=True)
        special = self.tasks.get(Path(task).stem)
        return common if special is None else common | special.model_dump(exclude_unset=True)


NGRAMS = ("unigram", "bigram")
"""Drafts of Table 3 that are counted on the target's texts; no model may have one of these names there."""


def _no_ngram(value: str) -> str:
    if value in NGRAMS:
        raise ValueError("the name of a counted draft")
    return value


PartName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
DraftName = Annotated[PartName, AfterValidator(_no_ngram)]


class PaperConfig(_Settings):
    """What the tables of Leviathan et al. 2022 are measured with."""

    name: Name = Field(description="a name")
    pair: Name = Field(description="a name that `spsbench list pairs` shows, or a YAML file")
    drafts: dict[DraftName, ModelRef] = Field(
        min_length=1, description="`NAME: {id: ...}`, at least one, and no NAME unigram or bigram"
    )
    tasks: dict[PartName, Name] = Field(min_length=1, description="`NAME: TASK`, at least one")
    most_k: Annotated[int, Field(strict=True, ge=1, le=MAX_K)] = Field(
        default=10, description=f"a whole number from 1 to {MAX_K}"
    )
    limit: Prompts | None = Field(default=None, description=_up_to(MOST_PROMPTS))
    notes: Notes = Field(default="", description=f"text of at most {LONGEST_NOTES:,} characters")


def prompt_span(limit: int | str | None) -> tuple[int, int | None]:
    """Return a limit's first prompt, from 1, and its last, included; None for all."""
    if isinstance(limit, str):
        first, _, last = limit.partition("-")
        return int(first), int(last)
    return 1, limit


TagName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,39}$")]


class BeamSettings(_Settings):
    """The options of the sampling ``beam``, see ``BeamParams``; a ``draft_width`` left out is 2 more."""

    width: int = Field(  # as T5 and BART
        default=4, ge=1, le=MAX_BEAMS, strict=True, description=_up_to(MAX_BEAMS)
    )
    draft_width: int | None = Field(
        default=None,
        ge=1,
        le=MAX_BEAMS,
        strict=True,
        description=f"a whole number, at least the width and at most {MAX_BEAMS:,}",
    )
    penalty: float = Field(default=1.0, strict=True, description="a number")
    early_stopping: Literal["never"] | Flag = Field(default=False, description="true, false or never")


class RunConfig(Limits):
    """Everything that determines a run, resolved; ``config.yaml`` in the run directory.

    A field's title is the option that sets it, where that has another name. An option whose name is a
    field's or its title is taken over without further ado.

    Attributes:
        methods: the kinds of arm: ``ars`` (baseline), ``sps``, ``draft`` (the draft model alone).
        turns: of the user's turns in a conversation: ask the first, the last (of a task with turns up to the
            last), all after the file's answers, or all after the arm's own.
        ids: of the prompts that run, in place of the first ``limit`` in the seed's order.
        tags: what the user says of a run; it decides nothing, and stands in every table.
        shard: ``i/n``: the i-th (from 1) of n parts of the examples.
        dtype: a ``Precision``: a float, ``auto`` the pair's or the checkpoint's; behind a + how weights are
            quantised; ``int8`` alone computes in the checkpoint's own float. Behind ``:draft=`` the same of
            the draft alone, where ``auto`` is the target's, and ``+none`` leaves its weights as they are.
        tensor_parallel: N processes for the target, ``N:draft=replicated`` if each of them drafts and decides
            alike; else the first does, and tells the others its tokens.
        score: whether outputs are scored; ``unsafe`` runs programs even where no sandbox holds.
        until: ``ci=X%``: stop when every speedup is known to X% of its value; a time: after so much
            measuring; ``ci=X%,5min``: at the first of both.
        remeasure_s: time again for so many seconds what CPU contention disturbed; None: as long as before.
    """

    task: Name = setting(
        "[TASK]",
        "A name of `spsbench list tasks`; a file of prompts or of a task's data (.jsonl, .json, "
        ".parquet, .txt); a task's YAML file; or file.py:attribute. Default: the pair's task, else "
        "xsum.",
        "a name that `spsbench list tasks` shows, or a path",
        names="tasks",
        default="xsum",
    )
    pair: PairConfig = setting(
        "--pair NAME",
        "Target and draft by name, see `spsbench list pairs`. Default: mini.",
        "a name that `spsbench list pairs` shows, or a mapping",
        default=...,
        names="pairs",
    )
    protocol: Name = setting(
        "--protocol NAME",
        "Limits by name, see `spsbench list protocols`. Default: quick.",
        "a name that `spsbench list protocols` shows",
        Panel.WHAT,
        names="protocols",
        default="quick",
    )
    data: Name = setting(
        "--data SOURCE",
        "official, mini or a file. Default: mini with a synthetic pair, else official.",
        "official, mini or a path",
        default=...,
    )
    methods: Methods = setting(
        "--arms LIST",
        "Methods: ars, sps, draft. Default: ars,sps.",
        "one or more of ars, sps, draft",
        Panel.WHAT,
        default=("ars", "sps"),
    )
    temperature: float | None = setting(
        "--temperature T",
        "Temperature, above 0. Default: the sampling's.",
        f"a number from {LEAST_TEMPERATURE:g} (for 0 give --sampling greedy)",
        Panel.SAMPLING,
        ge=LEAST_TEMPERATURE,
        strict=True,
    )
    top_p: float | None = setting(
        "--top-p P",
        "Nucleus mass, above 0 to 1. Default: the sampling's.",
        "a number above 0 and at most 1",
        Panel.SAMPLING,
        gt=0,
        le=1,
        strict=True,
    )
    top_k: int | None = setting(
        "--top-k N",
        "Keep the N most probable tokens; 0 keeps all. Default: the sampling's.",
        "a whole number from 0 to 2**31-1",
        Panel.SAMPLING,
        ge=0,
        lt=2**31,
        strict=True,
    )
    process: ProcessingSettings = setting(
        "--process NAME=VALUE...",
        "Change logits before a token is drawn, e.g. min_p=0.1:typical_p=0.9; may be repeated. "
        f"Names: {', '.join(PROCESSING)}.",
        "settings as in min_p=0.1:frequency_penalty=0.3",
        Panel.SAMPLING,
        names="processing",
        default=ProcessingSettings(),
    )
    fixed_length: Flag = setting(
        "--fixed-length",
        "Ignore EOS and stop strings, so that all outputs have the same length.",
        "true or false",
        Panel.SAMPLING,
        default=False,
    )
    drafters: Names = setting(
        "--drafter LIST",
        "What proposes tokens, e.g. model,lookup. Default: model.",
        "names of drafters",
        names="drafters",
        default=("model",),
    )
    rules: Names = setting(
        "--rule LIST",
        "What accepts draft tokens. Default: modified-rejection; of trees recursive-rejection.",
        "names of rules",
        Panel.DRAFTING,
        names="rules",
        default=("modified-rejection",),
    )
    policies: Names = setting(
        "--policy LIST",
        "How many tokens a loop drafts, up to K. Default: fixed, always K.",
        "names of policies",
        Panel.DRAFTING,
        names="policies",
        default=("fixed",),
    )
    trees: Trees = setting(
        "--tree SHAPES",
        "How drafts branch: chain; siblings by depth, e.g. 4,2,1 (K is its depth); dynamic:N, the N most "
        "probable nodes down to K; or several, as in chain+4,2,1. Default: chain.",
        "chain, siblings by depth (4,2,1) or dynamic:N, with + between",
        Panel.DRAFTING,
        default=(CHAIN,),
    )
    batches: Batches = setting(
        "--batch LIST",
        "Batch sizes, each arm at each: 1,2,4,8. Default: 1.",
        f"whole numbers from 1 to {MAX_BATCH}: one (8) or a list (1,4,16)",
        Panel.MACHINE,
        default=(1,),
    )
    engines: Engines = setting(
        "--engine LIST",
        'What runs the loops, see `spsbench list engines`; any program as worker:"COMMAND"; a server as '
        "openai:URL. Default: eager; on CUDA graphed, if every arm can be captured.",
        "names of engines, or worker:COMMAND",
        Panel.MACHINE,
        names="engines",
        default=(EAGER,),
    )
    device: str = setting(
        "--device NAME",
        "auto, cpu, cuda, cuda:N or mps. Default: auto.",
        "auto, cpu, cuda, cuda:N or mps",
        Panel.MACHINE,
        default="auto",
        pattern=r"^(auto|cpu|mps|cuda(:[0-9]+)?)$",
    )
    dtype: Dtypes = setting(
        "--dtype NAME",
        "auto, float32, bfloat16, float16, int8 or int4. With a + how weights are quantised and what is "
        "computed in: bfloat16+int8. Another one for the draft: auto:draft=int8. Default: auto.",
        f"{_DTYPES}, perhaps with a draft as auto:draft=int8",
        Panel.MACHINE,
        default="auto",
    )
    device_map: Name | None = setting(
        "--device-map MAP",
        "A target larger than one device: auto, balanced, sequential, or a JSON file of modules and devices.",
        "auto, balanced, sequential or a JSON file",
        Panel.MACHINE,
    )
    threads: Literal["auto"] | Annotated[int, Field(strict=True, ge=1, le=MOST_THREADS)] = setting(
        "--threads auto|N",
        "CPU threads. Default: auto, by the target's size and the CPUs that others leave.",
        f"auto or {_up_to(MOST_THREADS)}",
        Panel.MACHINE,
        default="auto",
    )
    backend: Literal["auto", "onnxruntime", "torch", "inductor"] = setting(
        "--backend NAME",
        "auto, onnxruntime, torch or inductor. Default: onnxruntime on a CPU where it covers the models.",
        "auto, onnxruntime, torch or inductor (torch, with compiled layers)",
        Panel.MACHINE,
        default="auto",
    )
    tensor_parallel: Ranks = setting(
        "--tensor-parallel N",
        "Split the target over N processes: torchrun --nproc-per-node N -m spsbench run ... The draft is "
        "in the first; with N:draft=replicated in all.",
        "a whole number from 1, or as 2:draft=replicated (or first) from 2",
        Panel.MACHINE,
        default=1,
    )
    ids: Ids | None = setting(
        "--id LIST",
        "Only the prompts with these ids, e.g. HumanEval/3,HumanEval/8.",
        "ids of the task's prompts",
        Panel.WHAT,
    )
    tags: dict[TagName, Notes] = setting(
        "--tag KEY=VALUE...",
        "A note that run.json and every table carry, e.g. gpu=a; may be repeated.",
        "names that begin with a letter, and texts",
        Panel.WHAT,
        default={},
        max_length=MOST_ARMS,
    )
    seed: int = setting(
        "--seed N",
        "Random seed. Default: 0.",
        "a whole number from 0 to 2**63-1",
        default=0,
        ge=0,
        lt=2**63,
        strict=True,
    )
    trace: int = Field(
        default=8,
        ge=0,
        le=MOST_PROMPTS,
        strict=True,
        description=f"a whole number from 0 to {MOST_PROMPTS:,}",
    )
    score: Flag | Literal["unsafe"] = setting(
        "--no-score", "Generate only; compute no metric.", "true, false or unsafe", Panel.WHAT, default=True
    )
    proof: Flag = setting(
        "--no-proof",
        "Skip the extra sequences of the losslessness test.",
        "true or false",
        Panel.WHAT,
        default=True,
    )
    chat_template: Literal["auto", "none"] = setting(
        "--chat-template auto|none",
        "Whether to use the tokenizer's chat template. Default: auto.",
        "auto or none",
        Panel.SAMPLING,
        default="auto",
    )
    template_args: dict[TagName, bool | int | float | str] = setting(
        "--template-arg NAME=VALUE...",
        "A variable of the chat template, e.g. enable_thinking=false; may be repeated.",
        "names of variables, and what they are: true, a number or a text",
        Panel.SAMPLING,
        default={},
        max_length=MOST_ARMS,
    )
    turns: Turns = setting(
        "--turns WHICH",
        "Of a user's turns ask first, last, all (after the file's answers), or own: each after the arm's "
        "own. Default: last of `messages`; own of mt-bench, which only `run` asks.",
        "first, last, all or own",
        Panel.WHAT,
        default="last",
    )
    extract: Literal["auto", "none", "fence"] = setting(
        "--extract auto|none|fence",
        "How code is read from chat answers: begun for the model (auto), as it is, or from its fence.",
        "auto, none or fence",
        Panel.WHAT,
        default="auto",
    )
    shard: Annotated[str, AfterValidator(_shard)] | None = setting(
        "--shard I/N",
        "Only the I-th of N parts, e.g. 1/4; `spsbench merge` combines them.",
        "i/n with i from 1 to n, e.g. 1/4",
        Panel.WHAT,
    )
    warmup: Flag = Field(default=True, description="true or false")
    until: Annotated[str | None, BeforeValidator(_until)] = setting(
        "--until ci=X%,TIME",
        "Stop when every speedup's 95% interval, valid at every look, is within X% of it: ci=5%; after "
        "so much measuring, at the end of a prompt: 5min; at the first of both: ci=5%,5min.",
        (f"ci=X% with X above 0 and at most {WIDEST_PERCENT}, a time as 90s or 5min, or ci=1%,5min"),
        Panel.WHAT,
    )
    remeasure_s: float | None = setting(
        "--remeasure TIME",
        "Time again what contention disturbed (above 2% of a timing), for at most this long; 0: not at "
        "all. Default: as long as the measuring took, 30s for a short run.",
        "a time, 0 for none: seconds, or with a unit as in 5min",
        Panel.WHAT,
        ge=0,
        strict=True,
    )

    @classmethod
    def rows(cls) -> dict[str, OptionRow]:
        """The row of each field that an option sets, by the field's name."""
        extras: dict[str, Any] = {name: field.json_schema_extra for name, field in cls.model_fields.items()}
        return {name: extra[ROW] for name, extra in extras.items() if extra is not None}

    @property
    def beam(self) -> BeamSettings | None:
        """Return the options of the beam search among the samplings; None if there is none."""
        specs = (Spec.parse(name) for name in self.samplings or ())
        options = next((dict(spec.options) for spec in specs if spec.name == BEAM), None)
        return None if options is None else BeamSettings.model_validate(options)

    @property
    def precision(self) -> float | None:
        """Return the half-width that ``until`` asks for, as a share of the estimate."""
        percent = None if self.until is None else _read_until(self.until)[0]
        return None if percent is None else percent / 100.0

    @property
    def until_ci(self) -> str | None:
        """Return ``ci=X%``, the precision part of ``until``."""
        return next((part for part in (self.until or "").split(",") if _UNTIL.fullmatch(part)), None)

    @property
    def budget_s(self) -> float | None:
        """Return the seconds of measuring after which ``until`` ends the run."""
        return None if self.until is None else _read_until(self.until)[1]

    @property
    def unsafe_exec(self) -> bool:
        """Return whether generated programs run even without a sandbox."""
        return self.score == UNSAFE

    @property
    def shard_index(self) -> tuple[int, int]:
        """Return (index from 0, number of shards); (0, 1) if the run is not divided."""
        index, count = (self.shard or "1/1").split("/")
        return int(index) - 1, int(count)

    @property
    def target_dtype(self) -> str:
        """Return the target's part of the dtype."""
        return self.dtype.partition(DRAFT)[0]

    @property
    def draft_dtype(self) -> str:
        """Return the draft's own part of the dtype; ``auto`` for none."""
        return self.dtype.partition(DRAFT)[2] or AUTO

    @property
    def model_dtype(self) -> str:
        """Return what to load the target in: the run's dtype, else the pair's; a ``Precision``."""
        typed = self.target_dtype
        precision, pair = Precision(typed), Precision(self.pair.dtype)
        if typed == AUTO:
            return str(Precision.of(pair.dtype, pair.quantise))
        # int8 alone is a dtype of its own; in auto+int8 the pair may say what is computed in.
        inherits = precision.dtype == AUTO and typed not in QUANTISED
        return str(Precision.of(pair.dtype if inherits else precision.dtype, precision.quantise))

    @property
    def draft_model_dtype(self) -> str:
        """Return what to load the draft in: its own dtype, else the target's; a ``Precision``."""
        draft, target = Precision(self.draft_dtype), Precision(self.model_dtype)
        if self.draft_dtype in QUANTISED:
            return str(draft)
        is_short = (self.pair.dtype if self.target_dtype == AUTO else self.target_dtype) in QUANTISED
        inherited = None if is_short and draft.dtype != AUTO else target.quantise
        kept = inherited if draft.quantise is None else None if draft.quantise == NONE else draft.quantise
        return str(Precision.of(target.dtype if draft.dtype == AUTO else draft.dtype, kept))

    @property
    def cpu_threads(self) -> int | None:
        """Return the number of threads on a CPU; None for as many as suit the target."""
        return None if self.threads == AUTO else int(self.threads)

    @property
    def ranks(self) -> int:
        """Return how many processes the target is split over."""
        return int(str(self.tensor_parallel).partition(":")[0])

    @property
    def draft_placement(self) -> str:
        """Return where the draft of a split target runs: ``FIRST`` or ``REPLICATED``."""
        return REPLICATED if str(self.tensor_parallel).endswith(REPLICATED) else FIRST

    def to_yaml(self) -> str:
        """Return the text of ``config.yaml``; given to ``--config`` it yields this configuration again.

        The engine is left out where none was named: which one is usual depends on the device.
        """
        settings = self.model_dump(mode="json", exclude={"engines"} - self.model_fields_set)
        return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)

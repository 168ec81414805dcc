"""The options that several commands share, each described once.

Numbers are taken as text: the configuration checks them, and its errors say what may be written.
The ten that are needed first have no panel of their own: typer shows those first.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from spsbench.cli import completion

EXIT_CODES = (
    "Exit codes: 0 success, 1 failure while running, 2 usage error, 3 data or model unavailable, "
    "4 a gate failed, 5 some sequences failed or are missing, 129, 130 or 143 interrupted."
)
"""The last lines of a command's help."""

FIRST = None
WHAT = "What to measure"
SAMPLING = "Sampling"
DRAFTING = "Drafting and acceptance"
MACHINE = "Machine and models"
OUTPUT = "Output"


def option(
    flag: str, metavar: str, panel: str | None, text: str, complete: Callable[..., list[str]] | None = None
) -> Any:
    """An option whose help says its default itself."""
    return typer.Option(
        flag, metavar=metavar, rich_help_panel=panel, help=text, show_default=False, autocompletion=complete
    )


def argument(metavar: str, text: str, complete: Callable[..., list[str]] | None = None) -> Any:
    """An argument whose help says its default itself."""
    return typer.Argument(metavar=metavar, help=text, show_default=False, autocompletion=complete)


_PAIRS = completion.named(completion.pair_names)
_PROTOCOLS = completion.named(completion.protocol_names)
_DRAFTERS = completion.listed(completion.drafter_names)
_RULES = completion.listed(completion.rule_names)
_POLICIES = completion.listed(completion.policy_names)
_ENGINES = completion.listed(completion.engine_names)
_DEVICES = completion.choices("auto", "cpu", "cuda", "mps")
_FLOATS = completion.choices("auto", "float32", "bfloat16", "float16")
_DTYPES = completion.choices("auto", "float32", "bfloat16", "float16", "int8", "int4")

Task = Annotated[
    str | None,
    argument(
        "TASK",
        "A name of `spsbench list tasks`; a file of prompts or of a task's data (.jsonl, .json, .parquet, "
        ".txt); a task's YAML file; or file.py:attribute. Default: the pair's task, else xsum.",
        completion.named(completion.task_names),
    ),
]
Prompts = Annotated[
    str | None, option("--prompts", "FILE", WHAT, "A prompts file; the same as giving it as TASK.")
]
Run = Annotated[
    Path | None, argument("RUN", "Run directory. Default: the latest in results/.", completion.runs)
]

Pair = Annotated[
    str | None,
    option(
        "--pair", "NAME", FIRST, "Target and draft by name, see `spsbench list pairs`. Default: mini.", _PAIRS
    ),
]
Target = Annotated[
    str | None, option("--target", "MODEL", FIRST, "Target model: hub id, folder or GGUF file.")
]
Draft = Annotated[str | None, option("--draft", "MODEL", FIRST, "Draft model: hub id, folder or GGUF file.")]
Revision = Annotated[str | None, option("--revision", "REV", WHAT, "Revision of the target.")]
DraftRevision = Annotated[str | None, option("--draft-revision", "REV", WHAT, "Revision of the draft.")]
Protocol = Annotated[
    str | None,
    option(
        "--protocol",
        "NAME",
        WHAT,
        "Limits by name, see `spsbench list protocols`. Default: quick.",
        _PROTOCOLS,
    ),
]
Data = Annotated[
    str | None,
    option(
        "--data",
        "SOURCE",
        FIRST,
        "official, mini or a file. Default: mini with a synthetic pair, else official.",
    ),
]
Limit = Annotated[str | None, option("--limit", "N", FIRST, "Number of prompts. Default: the protocol's.")]
Samples = Annotated[str | None, option("--samples", "N", WHAT, "Sequences per prompt and arm.")]
Shard = Annotated[
    str | None,
    option("--shard", "I/N", WHAT, "Only the I-th of N parts, e.g. 1/4; `spsbench merge` combines them."),
]
Until = Annotated[
    str | None,
    option(
        *("--until", "ci=X%", WHAT),
        "Stop when every speedup's 95% interval is within X% of it, e.g. ci=5%; the interval allows for "
        "repeated looks.",
    ),
]
Budget = Annotated[
    str | None,
    option(
        *("--budget", "TIME", WHAT),
        "Stop after this much measuring, at the end of a prompt: 300, 90s, 5min, 2h.",
    ),
]
Arms = Annotated[str | None, option("--arms", "LIST", WHAT, "Methods: ars, sps, draft. Default: ars,sps.")]
K = Annotated[
    str | None,
    option(
        *("--k", "LIST", FIRST),
        "Lookahead K: 4, 0,2,4 or 0..7; 0 is ArS; adaptive leaves it to a policy. Default: 4; sweep-k: 0..7.",
    ),
]
Config = Annotated[
    Path | None, option("--config", "FILE", WHAT, "Settings from YAML, e.g. an earlier run's config.yaml.")
]
Set = Annotated[
    list[str] | None,
    option("--set", "KEY=VALUE", WHAT, "A setting of config.yaml, e.g. warmup=false; may be repeated."),
]
NoScore = Annotated[bool, option("--no-score", "", WHAT, "Generate only; compute no metric.")]
NoProof = Annotated[
    bool, option("--no-proof", "", WHAT, "Skip the extra sequences of the losslessness test.")
]
UnsafeExec = Annotated[
    bool,
    option("--unsafe-exec", "", WHAT, "Run generated programs even without a sandbox; the run records it."),
]
Trust = Annotated[
    bool,
    option(
        "--trust",
        "",
        WHAT,
        "Let the settings of somebody else's run import files, start commands and ask servers.",
    ),
]
Extract = Annotated[
    str | None,
    option(
        *("--extract", "auto|none|fence", WHAT),
        "How code is read from chat answers: begun for the model (auto), as it is, or from its fence.",
    ),
]

Sampling = Annotated[
    str | None,
    option(
        "--sampling",
        "LIST",
        FIRST,
        "The task's samplings by name: nucleus,greedy; or beam.",
        completion.samplings,
    ),
]
Temperature = Annotated[
    str | None, option("--temperature", "T", SAMPLING, "Temperature, above 0. Default: the sampling's.")
]
TopP = Annotated[
    str | None, option("--top-p", "P", SAMPLING, "Nucleus mass, above 0 to 1. Default: the sampling's.")
]
TopK = Annotated[
    str | None,
    option(
        "--top-k", "N", SAMPLING, "Keep the N most probable tokens; 0 keeps all. Default: the sampling's."
    ),
]
Beams = Annotated[
    str | None,
    option("--beams", "N", SAMPLING, "Width of --sampling beam, an exact beam search. Default: 4."),
]
DraftBeams = Annotated[
    str | None,
    option("--draft-beams", "N", SAMPLING, "Width of the draft's own beam search. Default: beams + 2."),
]
LengthPenalty = Annotated[
    str | None,
    option(
        *("--length-penalty", "P", SAMPLING),
        "Outputs of a beam search are ranked by log-probability / length^P. Default: 1.",
    ),
]
MaxNewTokens = Annotated[
    str | None,
    option("--max-new-tokens", "N", SAMPLING, "Most new tokens of an output. Default: the task's."),
]
FixedLength = Annotated[
    bool,
    option(
        "--fixed-length",
        "",
        SAMPLING,
        "Ignore EOS and stop strings, so that all outputs have the same length.",
    ),
]
ChatTemplate = Annotated[
    str | None,
    option(
        "--chat-template",
        "auto|none",
        SAMPLING,
        "Whether to use the tokenizer's chat template. Default: auto.",
    ),
]
Turns = Annotated[
    str | None,
    option(
        *("--turns", "last|all", WHAT),
        "Of the user's turns in `messages` ask the last, or each as a prompt of its own. Default: last.",
    ),
]
Seed = Annotated[str | None, option("--seed", "N", FIRST, "Random seed. Default: 0.")]

Drafter = Annotated[
    str | None,
    option("--drafter", "LIST", FIRST, "What proposes tokens, e.g. model,lookup. Default: model.", _DRAFTERS),
]
Rule = Annotated[
    str | None,
    option("--rule", "LIST", DRAFTING, "What accepts draft tokens. Default: modified-rejection.", _RULES),
]
Policy = Annotated[
    str | None,
    option(
        *("--policy", "LIST", DRAFTING),
        "How many tokens a loop drafts, up to K. Default: fixed, always K.",
        _POLICIES,
    ),
]

Engine = Annotated[
    str | None,
    option(
        *("--engine", "LIST", MACHINE),
        "What runs the loops, see `spsbench list engines`; any program as "
        'worker:"COMMAND"; a server as openai:URL. Default: eager.',
        _ENGINES,
    ),
]
Batch = Annotated[
    str | None, option(*("--batch", "LIST", MACHINE), "Batch sizes, each arm at each: 1,2,4,8. Default: 1.")
]
Concurrency = Annotated[
    str | None,
    option(
        *("--concurrency", "LIST", MACHINE),
        "Requests in flight at servers: 1,2,4,8. With --engine openai:URL[,openai:URL].",
    ),
]
Device = Annotated[
    str | None,
    option("--device", "NAME", MACHINE, "auto, cpu, cuda, cuda:N or mps. Default: auto.", _DEVICES),
]
Dtype = Annotated[
    str | None,
    option(
        "--dtype", "NAME", MACHINE, "auto, float32, bfloat16, float16, int8 or int4. Default: auto.", _DTYPES
    ),
]
UnroundedDtype = Annotated[
    str | None,
    option("--dtype", "NAME", MACHINE, "auto, float32, bfloat16 or float16. Default: auto.", _FLOATS),
]
Threads = Annotated[
    str | None, option("--threads", "auto|N", MACHINE, "CPU threads. Default: auto, by the target's size.")
]
DraftDtype = Annotated[
    str | None, option("--draft-dtype", "NAME", MACHINE, "Dtype of the draft alone. Default: as --dtype.")
]
Quantise = Annotated[
    str | None,
    option(
        "--quantise",
        "BITS",
        MACHINE,
        "Quantise weights to int8 or int4; --dtype is the dtype of the computation.",
    ),
]
DraftQuantise = Annotated[
    str | None,
    option(
        *("--draft-quantise", "BITS", MACHINE),
        "The same for the draft alone: int8, int4 or none. Default: as --quantise.",
    ),
]
DeviceMap = Annotated[
    str | None,
    option(
        *("--device-map", "MAP", MACHINE),
        "A target larger than one device: auto, balanced, sequential, or a JSON file of modules and devices.",
    ),
]
Backend = Annotated[
    str | None,
    option(
        *("--backend", "NAME", MACHINE),
        "auto, onnxruntime or torch. Default: onnxruntime on a CPU where it covers the models.",
        completion.choices("auto", "onnxruntime", "torch"),
    ),
]

TensorParallel = Annotated[
    str | None,
    option(
        *("--tensor-parallel", "N", MACHINE),
        "Split the target over N processes: torchrun --nproc-per-node N -m spsbench run ...",
    ),
]
DraftPlacement = Annotated[
    str | None,
    option(
        *("--draft-placement", "WHERE", MACHINE),
        "With --tensor-parallel: the draft in the first process (first) or in all (replicated).",
    ),
]

Processes = Annotated[
    str | None,
    option("--processes", "N", MACHINE, "Repeat in N fresh processes; intervals over all of them."),
]

On = Annotated[
    str | None,
    option("--on", "WHERE", MACHINE, "Spread prompts over workers: ray (this machine) or ray://HOST:PORT."),
]

Out = Annotated[Path | None, option("--out", "DIR", FIRST, "Run directory. Default: a new one in results/.")]
Resume = Annotated[
    Path | None,
    option("--resume", "DIR", OUTPUT, "Continue the run in DIR with its own settings.", completion.runs),
]
Trace = Annotated[
    str | None, option("--trace", "N", OUTPUT, "Record every token of the first N prompts. Default: 8.")
]
FailOn = Annotated[
    str | None,
    option("--fail-on", "LIST", OUTPUT, "Gates that exit 4 if failed: lossless, parity, untrusted (times)."),
]
Expect = Annotated[
    str | None,
    option("--expect", "HASH", OUTPUT, "Exit 4 unless the hash of all token ids begins with HASH."),
]
AllowMixed = Annotated[
    bool,
    option("--allow-mixed", "", OUTPUT, "Continue although threads, backend, versions or hardware changed."),
]
Json = Annotated[bool, option("--json", "", OUTPUT, "Print the result as JSON, and nothing else on stdout.")]
Quiet = Annotated[bool, option("--quiet", "", OUTPUT, "Print nothing but errors (and JSON with --json).")]
Debug = Annotated[bool, option("--debug", "", OUTPUT, "Show the traceback of an error.")]

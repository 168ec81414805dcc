"""The options that several commands share, each told once.

Numbers are taken as text: the configuration checks them, and its errors say what may be written.
The ten that are needed first have no panel of their own: typer shows those first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

EXIT_CODES = (
    "Exit codes: 0 done, 1 failure while running, 2 usage, 3 data or model not to be had, 4 a gate failed, "
    "5 some sequences failed or are missing, 130 interrupted."
)
"""The last lines of a command's help."""

FIRST = None
WHAT = "What is measured"
SAMPLING = "How it samples"
MACHINE = "On what machine"
OUTPUT = "Output"


def option(flag: str, metavar: str, panel: str | None, text: str, *, hidden: bool = False) -> Any:
    """An option whose help says its default itself; ``metavar`` is empty of a switch."""
    return typer.Option(
        flag, metavar=metavar, rich_help_panel=panel, help=text, show_default=False, hidden=hidden
    )


Task = Annotated[
    str | None,
    typer.Argument(
        metavar="TASK",
        help="See `spsbench list tasks`; or prompts (.jsonl, .json, .parquet, .txt), a YAML file, or "
        "file.py:attribute. Default: the pair's, else xsum.",
        show_default=False,
    ),
]
Prompts = Annotated[
    str | None, option("--prompts", "FILE", WHAT, "A prompts file; the same as giving it as TASK.")
]
Run = Annotated[
    Path | None,
    typer.Argument(
        metavar="RUN", help="Directory of a run. Default: the latest in results/.", show_default=False
    ),
]

Pair = Annotated[
    str | None,
    option("--pair", "NAME", FIRST, "Both models by name, see `spsbench list pairs`. Default: mini."),
]
Target = Annotated[str | None, option("--target", "MODEL", FIRST, "Target: a hub id, folder or GGUF file.")]
Draft = Annotated[str | None, option("--draft", "MODEL", FIRST, "Draft: a hub id, folder or GGUF file.")]
Revision = Annotated[str | None, option("--revision", "REV", WHAT, "Revision of the target.")]
DraftRevision = Annotated[str | None, option("--draft-revision", "REV", WHAT, "Revision of the draft.")]
Protocol = Annotated[
    str | None,
    option("--protocol", "NAME", WHAT, "Limits by name, see `spsbench list protocols`. Default: quick."),
]
Data = Annotated[
    str | None,
    option("--data", "SOURCE", FIRST, "official, mini or a file. Default: mini with the mini pair."),
]
Limit = Annotated[str | None, option("--limit", "N", FIRST, "Only so many prompts. Default: the protocol's.")]
Samples = Annotated[str | None, option("--samples", "N", WHAT, "Sequences per prompt and arm.")]
Shard = Annotated[
    str | None,
    option("--shard", "I/N", WHAT, "Only the I-th of N parts; `spsbench merge` puts them together."),
]
Until = Annotated[
    str | None,
    option(
        *("--until", "ci=X%", WHAT),
        "Stop when the 95% interval of every speedup is within X% of it; valid although the run looks on.",
    ),
]
Budget = Annotated[
    str | None,
    option(
        *("--budget", "TIME", WHAT),
        "Stop after so much measuring, behind a whole prompt: 300, 90s, 5min, 2h.",
    ),
]
Arms = Annotated[str | None, option("--arms", "LIST", WHAT, "Of ars, sps, draft. Default: ars,sps.")]
K = Annotated[
    str | None,
    option(
        *("--k", "LIST", FIRST),
        "Lookahead: 4, 0,2,4 or 0..7; 0 is ArS, adaptive is up to a policy. Default: 4; sweep-k: 0..7.",
    ),
]
Config = Annotated[
    Path | None,
    option("--config", "FILE", WHAT, "Settings from YAML, e.g. an earlier run's config.yaml."),
]
Set = Annotated[
    list[str] | None, option("--set", "KEY=VALUE", WHAT, "One setting of config.yaml; may be repeated.")
]
NoScore = Annotated[bool, option("--no-score", "", WHAT, "Generate only, compute no metric.")]
NoProof = Annotated[
    bool, option("--no-proof", "", WHAT, "Draw no sequences for the proof of losslessness alone.")
]
AllowCodeExec = Annotated[
    bool, option("--allow-code-exec", "", WHAT, "Without effect: programs are sandboxed.", hidden=True)
]
UnsafeExec = Annotated[
    bool, option("--unsafe-exec", "", WHAT, "Run programs even where no sandbox holds; it is recorded.")
]
Extract = Annotated[
    str | None,
    option(
        *("--extract", "auto|none|fence", WHAT),
        "In a chat: a free answer, and the code in its fence, or as it is. Default: auto, begin the answer.",
    ),
]

Sampling = Annotated[
    str | None, option("--sampling", "LIST", FIRST, "The task's samplings by name: nucleus,greedy; or beam.")
]
Temperature = Annotated[str | None, option("--temperature", "T", SAMPLING, "In place of the sampling's own.")]
TopP = Annotated[str | None, option("--top-p", "P", SAMPLING, "In place of the sampling's own.")]
TopK = Annotated[str | None, option("--top-k", "N", SAMPLING, "In place of the sampling's own.")]
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
MaxNewTokens = Annotated[str | None, option("--max-new-tokens", "N", SAMPLING, "Length limit of an output.")]
FixedLength = Annotated[
    bool, option("--fixed-length", "", SAMPLING, "Ignore EOS and stop strings: all outputs equally long.")
]
ChatTemplate = Annotated[
    str | None, option("--chat-template", "auto|none", SAMPLING, "Whether to use the models' template.")
]
Seed = Annotated[str | None, option("--seed", "N", FIRST, "Root of every random draw. Default: 0.")]

DRAFTING = "How it drafts and accepts"

Drafter = Annotated[
    str | None,
    option("--drafter", "LIST", FIRST, "What proposes tokens, e.g. model,lookup. Default: model."),
]
Rule = Annotated[
    str | None,
    option("--rule", "LIST", DRAFTING, "What decides which stand. Default: modified-rejection."),
]
Policy = Annotated[
    str | None,
    option(
        "--policy", "LIST", DRAFTING, "What decides how many are drafted, up to K. Default: fixed, K always."
    ),
]

Engine = Annotated[
    str | None,
    option(
        *("--engine", "LIST", MACHINE),
        "eager, graphed (CUDA graphs), hf-generate, hf-assisted, hf-prompt-lookup, or any program as "
        'worker:"COMMAND". Default: eager.',
    ),
]
Batch = Annotated[
    str | None,
    option(
        *("--batch", "LIST", MACHINE),
        "Sequences in a forward, each arm at each size: 1,2,4,8. Default: 1.",
    ),
]
Concurrency = Annotated[
    str | None,
    option(
        *("--concurrency", "LIST", MACHINE),
        "Load on servers, requests in flight: 1,2,4,8. With --engine openai:PLAIN,openai:SPECULATING or one.",
    ),
]
Device = Annotated[str | None, option("--device", "NAME", MACHINE, "auto, cpu, cuda, cuda:N or mps.")]
Dtype = Annotated[
    str | None, option("--dtype", "NAME", MACHINE, "auto, float32, bfloat16, float16, int8 or int4.")
]
UnroundedDtype = Annotated[
    str | None, option("--dtype", "NAME", MACHINE, "auto, float32, bfloat16 or float16.")
]
Threads = Annotated[
    str | None, option("--threads", "auto|N", MACHINE, "CPU threads. Default: auto, by the target's size.")
]
DraftDtype = Annotated[
    str | None, option("--draft-dtype", "NAME", MACHINE, "Of the draft alone. Default: as --dtype.")
]
Quantise = Annotated[
    str | None,
    option("--quantise", "BITS", MACHINE, "Weights of int8 or int4; --dtype is what is computed in."),
]
DraftQuantise = Annotated[
    str | None,
    option(
        "--draft-quantise", "BITS", MACHINE, "int8, int4 or none, of the draft alone. Default: as --quantise."
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
        *("--draft-placement", "first|replicated", MACHINE),
        "Of a split target: the draft in the first process, or in each. Default: first.",
    ),
]

Processes = Annotated[
    str | None,
    option("--processes", "N", MACHINE, "Repeat in N fresh processes; one interval over all of them."),
]

On = Annotated[
    str | None,
    option("--on", "WHERE", MACHINE, "Spread over workers: ray, on this machine; or ray://HOST:PORT."),
]

Out = Annotated[
    Path | None,
    option("--out", "DIR", FIRST, "Run directory. Default: a fresh one in results/."),
]
Resume = Annotated[
    Path | None, option("--resume", "DIR", OUTPUT, "Continue the run in DIR with its own settings.")
]
Trace = Annotated[str | None, option("--trace", "N", OUTPUT, "Keep every token of N prompts. Default: 8.")]
FailOn = Annotated[
    str | None,
    option("--fail-on", "LIST", OUTPUT, "Exit 4 unless passed: lossless, parity. Incomplete exits 5."),
]
Expect = Annotated[
    str | None,
    option("--expect", "HASH", OUTPUT, "Exit 4 unless the hash of all token ids begins so."),
]
AllowMixed = Annotated[
    bool,
    option("--allow-mixed", "", OUTPUT, "Continue under other threads, backends, versions or hardware."),
]
Json = Annotated[bool, option("--json", "", OUTPUT, "Print JSON alone on stdout.")]
Quiet = Annotated[bool, option("--quiet", "", OUTPUT, "No progress and no messages.")]
Debug = Annotated[bool, option("--debug", "", OUTPUT, "Show the traceback of an error.")]

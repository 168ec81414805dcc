"""The options of ``advise`` and ``replay``, as typed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spsbench.cli import Common, option, option_of, options

HARDWARE = "Hardware that is not here"


@dataclass(frozen=True, kw_only=True)
class AdviseOptions(Common):
    """The options of ``advise``; those from ``hardware`` on are of hardware that is not here."""

    task: str | None
    pair: str | None
    target: str | None
    draft: list[str] | None = option(
        "--draft MODEL...", "Draft model; may be repeated, to choose among several."
    )
    data: str | None
    limit: str | None
    k: str | None = option("--k LIST", "Lookaheads to choose from. Default: 1..8.")
    drafter: str | None = option(
        "--drafter LIST", "Drafters to choose from. Default: all that suit the pair.", names="drafters"
    )
    tree: str | None = option(
        "--tree SHAPES",
        "Trees to choose from beside chains, siblings by depth: 4,2,1 or 4,2,1+2,2. Of drafters "
        "model, quantised.",
        options.Panel.DRAFTING,
    )
    sampling: str | None = option_of(options.PresetOptions, "sampling")
    budget: str | None = option(
        "--budget TIME", "Time for everything together, e.g. 10min. Default: 3min.", options.Panel.WHAT
    )
    choose: str | None = option(
        "--choose BY",
        "Minimise mean (time per token) or p99 (time of slow sequences); mean:memory=4GB leaves out "
        "what needs more for weights and caches. Default: mean.",
        options.Panel.WHAT,
    )
    format: str | None = option(
        "--format ENGINE",
        "Print only the options of vllm, sglang, llama-cpp or tensorrt-llm, to paste.",
        options.Panel.WHAT,
    )
    times: Path | None = option(
        "--times FILE",
        "With --format vllm: what `spsbench bench --batch LIST --json` printed, for K by batch size.",
        options.Panel.WHAT,
    )
    out: Path | None
    no_check: bool = option(
        "--no-check", "Predict only; do not run the recommended setting.", options.Panel.WHAT
    )
    turns: str | None
    temperature: str | None
    top_p: str | None
    top_k: str | None
    max_new_tokens: str | None
    template_arg: list[str] | None
    seed: str | None
    device: str | None
    dtype: str | None
    threads: str | None
    backend: str | None
    hardware: str | None = option(
        "--hardware NAME",
        "Predict for an accelerator that is not here, e.g. h100-sxm; runs nothing. Of --target and "
        "--draft only config.json is read, also of a head of ordinary layers.",
        HARDWARE,
    )
    alpha: str | None = option(
        "--alpha A|FILE",
        "Each draft token is accepted with probability A; or acceptance.json or .yaml of `spsbench "
        "replay --curve --out DIR`.",
        HARDWARE,
    )
    batch: str | None = option("--batch LIST", "Batch sizes to show. Default: 1,8,64.", HARDWARE)
    context: str | None = option(
        "--context LIST", "Tokens in the cache: 4k, or 1k,4k for a table of each. Default: 1k.", HARDWARE
    )


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(Common):
    """The options of ``replay``."""

    run: Path | None = option(
        "[RUN]",
        "Run directory, texts as JSON lines (as for `audit`), or a file of vllm bench serve, vLLM, "
        "SGLang, AIPerf, GuideLLM, speed-bench, InferenceX or SpecDecode-Bench. Default: the latest "
        "run.",
        names="runs",
    )
    drafter: str | None
    draft: list[str] | None = option("--draft MODEL...", "Draft model; may be repeated, to compare several.")
    k: str | None = option("--k LIST", "Lookahead: 4, 2,4 or 1..8. Default: 1..8.")
    curve: bool = option(
        "--curve",
        "Acceptance length for every K of --k (default 1..16), its intervals, and what its mean leaves out.",
    )
    explain: bool = option(
        "--explain",
        "Of another tool's file: which definition of acceptance its numbers have, and the others.",
    )
    tree: str | None = option(
        "--tree SHAPES",
        "Trees beside chains, siblings by depth: 4,2,1 or 4,2,1+2,2. Of drafters model, early-exit, "
        "quantised.",
    )
    rule: str | None = option(
        "--rule LIST",
        "modified-rejection, block; of trees one-hot, sample-and-compare, recursive-rejection, "
        "traversal. Default: modified-rejection; of trees recursive-rejection.",
        names="rules",
    )
    policy: str | None
    sampling: str | None = option(
        "--sampling NAME", "The sampling of the run. Default: its first.", options.Panel.SAMPLING
    )
    budget: str | None = option(
        "--budget TIME", "Time to spend on timing loops, e.g. 5min; 0 for none. Default: 30.", "Times"
    )
    times: Path | None = option(
        "--times FILE", "Times of another machine: the output of `spsbench bench --json` there.", "Times"
    )
    out: Path | None = option("--out DIR", "With --curve: write figure, YAML and JSON there.")
    pair: str | None
    target: str | None
    temperature: str | None = option_of(options.DrawnOptions, "temperature")
    top_p: str | None = option_of(options.DrawnOptions, "top_p")
    top_k: str | None = option_of(options.DrawnOptions, "top_k")
    device: str | None
    dtype: str | None
    backend: str | None
    threads: str | None

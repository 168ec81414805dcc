"""``spsbench run``, ``sweep-k`` and ``merge``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from spsbench.cli import completion, options
from spsbench.cluster import require_alone

_PASSED_ON = ("processes", "concurrency")
"""Options that decide who measures."""


def run(
    context: typer.Context,
    task: options.Task = None,
    pair: options.Pair = None,
    target: options.Target = None,
    draft: options.Draft = None,
    data: options.Data = None,
    limit: options.Limit = None,
    k: options.K = None,
    drafter: options.Drafter = None,
    sampling: options.Sampling = None,
    seed: options.Seed = None,
    out: options.Out = None,
    prompts: options.Prompts = None,
    revision: options.Revision = None,
    draft_revision: options.DraftRevision = None,
    protocol: options.Protocol = None,
    samples: options.Samples = None,
    shard: options.Shard = None,
    until: options.Until = None,
    budget: options.Budget = None,
    arms: options.Arms = None,
    config: options.Config = None,
    set: options.Set = None,
    no_score: options.NoScore = False,
    no_proof: options.NoProof = False,
    unsafe_exec: options.UnsafeExec = False,
    extract: options.Extract = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    beams: options.Beams = None,
    draft_beams: options.DraftBeams = None,
    length_penalty: options.LengthPenalty = None,
    max_new_tokens: options.MaxNewTokens = None,
    fixed_length: options.FixedLength = False,
    chat_template: options.ChatTemplate = None,
    turns: options.Turns = None,
    rule: options.Rule = None,
    policy: options.Policy = None,
    engine: options.Engine = None,
    batch: options.Batch = None,
    concurrency: options.Concurrency = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    draft_dtype: options.DraftDtype = None,
    quantise: options.Quantise = None,
    draft_quantise: options.DraftQuantise = None,
    device_map: options.DeviceMap = None,
    threads: options.Threads = None,
    backend: options.Backend = None,
    tensor_parallel: options.TensorParallel = None,
    draft_placement: options.DraftPlacement = None,
    processes: options.Processes = None,
    on: options.On = None,
    resume: options.Resume = None,
    trust: options.Trust = False,
    trace: options.Trace = None,
    fail_on: options.FailOn = None,
    expect: options.Expect = None,
    allow_mixed: options.AllowMixed = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Measure ArS and SpS side by side on a task or on your own prompts.

    Example: spsbench run xsum --k 2,4 --drafter model,lookup
    """
    start(context.params)


def start(params: Mapping[str, Any]) -> None:
    """Measure as the options of ``run`` or ``sweep-k`` say, in this process or in several, or servers."""
    if any(params[name] is not None for name in _PASSED_ON):
        require_alone("measurement")
    if params["concurrency"] is not None:
        from spsbench.cli.load import measure_load

        measure_load(params)
        return
    if params["processes"] is not None:
        from spsbench.cli.measure import measure_processes

        measure_processes(params)
        return
    from spsbench.cli.measure import measure

    measure({name: value for name, value in params.items() if name not in _PASSED_ON})


DEFAULT_KS = "0..7"
"""The lookaheads of Figure 1 in Chen et al. 2023."""


@wraps(run, assigned=("__annotations__",))  # the options of `run`, with a help of its own
def sweep_k(context: typer.Context, **options: Any) -> None:
    """Measure several lookaheads K in one run, interleaved prompt by prompt.

    Example: spsbench sweep-k xsum --k 0,2,4,8
    """
    # A run that is continued knows its lookaheads.
    given = context.params["k"] or context.params["resume"]
    start(context.params if given else context.params | {"k": DEFAULT_KS})


def merge(
    shards: Annotated[
        list[Path],
        options.argument("SHARD...", "Directories of `run --shard 1/N` to `N/N`.", completion.runs),
    ],
    out: Annotated[Path, options.option("--out", "DIR", options.FIRST, "Directory of the merged run.")],
    allow_mixed: options.AllowMixed = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Merge the shards of a run into the run that one process would have made.

    Example: spsbench merge shard-1 shard-2 --out whole
    """
    from spsbench.store.opening import read_run

    for shard in shards:
        read_run(shard, "SHARD")  # refused before torch is imported
    from spsbench.cli.console import say
    from spsbench.cli.measure import show_summary
    from spsbench.runner import finalize
    from spsbench.store import RunStore
    from spsbench.store.merging import merge as put_together

    put_together(shards, out, allow_mixed=allow_mixed)
    with RunStore.open(out, writable=True) as store:
        summary = finalize(store, None)
    show_summary(summary, as_json=json, quiet=quiet)
    say(f"Everything is in {out}", quiet=quiet)

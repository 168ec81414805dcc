"""``spsbench sweep-k``."""

from __future__ import annotations

import typer

from spsbench.cli import options

DEFAULT_KS = "0..7"
"""The lookaheads of Figure 1 in Chen et al. 2023."""


def sweep_k(
    context: typer.Context,
    task: options.Task = None,
    pair: options.Pair = None,
    target: options.Target = None,
    draft: options.Draft = None,
    revision: options.Revision = None,
    draft_revision: options.DraftRevision = None,
    protocol: options.Protocol = None,
    data: options.Data = None,
    limit: options.Limit = None,
    samples: options.Samples = None,
    shard: options.Shard = None,
    arms: options.Arms = None,
    k: options.SweepK = None,
    config: options.Config = None,
    set: options.Set = None,
    no_score: options.NoScore = False,
    no_proof: options.NoProof = False,
    allow_code_exec: options.AllowCodeExec = False,
    unsafe_exec: options.UnsafeExec = False,
    extract: options.Extract = None,
    sampling: options.Sampling = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    max_new_tokens: options.MaxNewTokens = None,
    fixed_length: options.FixedLength = False,
    chat_template: options.ChatTemplate = None,
    seed: options.Seed = None,
    drafter: options.Drafter = None,
    rule: options.Rule = None,
    policy: options.Policy = None,
    engine: options.Engine = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    kernels: options.Kernels = None,
    out: options.Out = None,
    resume: options.Resume = None,
    trace: options.Trace = None,
    fail_on: options.FailOn = None,
    expect: options.Expect = None,
    allow_mixed: options.AllowMixed = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Measure several lookaheads K in one run: all interleaved, the models loaded once."""
    from spsbench.cli.measure import measure

    # A run that is continued knows its lookaheads.
    measure(context.params if k or resume else context.params | {"k": DEFAULT_KS})

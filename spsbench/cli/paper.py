"""``spsbench paper``."""

from __future__ import annotations

from typing import Annotated

import typer

from spsbench.cli import options

WHAT = options.WHAT

Limit = Annotated[
    str | None,
    typer.Option(
        "--limit",
        metavar="N|all",
        rich_help_panel=WHAT,
        help="Prompts of every part. Default: as many as the mini pair does in 20 minutes.",
        show_default=False,
    ),
]
Samples = Annotated[
    str | None,
    typer.Option(
        "--samples",
        metavar="N",
        rich_help_panel=WHAT,
        help="Programs per HumanEval problem; 100 in the paper. Default: 10.",
        show_default=False,
    ),
]


def paper(
    context: typer.Context,
    pair: options.Pair = None,
    data: options.Data = None,
    limit: Limit = None,
    samples: Samples = None,
    no_score: options.NoScore = False,
    allow_code_exec: options.AllowCodeExec = False,
    unsafe_exec: options.UnsafeExec = False,
    extract: options.Extract = None,
    seed: options.Seed = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    kernels: options.Kernels = None,
    out: options.Out = None,
    resume: options.Resume = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Table 1 and Figure 1 of Chen et al. 2023 for one pair, in one directory.

    Table 1: ArS and SpS (K=4) on XSum, nucleus and greedy, and on HumanEval, nucleus. Figure 1: K from
    0 to 7 on both tasks, 128 tokens each.
    """
    from spsbench.cli.reproduction import reproduce

    reproduce(context.params)

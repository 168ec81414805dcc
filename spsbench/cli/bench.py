"""``spsbench bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from spsbench.cli import options

ACCEPTANCE = "Forced acceptance (recorded as synthetic)"


def _option(flag: str, metavar: str, panel: str, text: str) -> Any:
    return typer.Option(flag, metavar=metavar, rich_help_panel=panel, help=text, show_default=False)


TargetConfig = Annotated[
    str | None,
    _option(
        *("--target-config", "CONFIG", options.WHAT),
        "In place of a model: a config.json, folder or hub id; weights are random.",
    ),
]
DraftConfig = Annotated[
    str | None, _option("--draft-config", "CONFIG", options.WHAT, "The same for the draft.")
]
K = Annotated[str | None, _option("--k", "LIST", options.WHAT, "Lookaheads from 1. Default: 1..8.")]
Context = Annotated[str | None, _option("--context", "N", options.WHAT, "Tokens in the cache. Default: 256.")]
Seconds = Annotated[
    str | None, _option("--seconds", "S", options.MACHINE, "How long to time forwards. Default: 20.")
]
Alpha = Annotated[
    str | None,
    _option("--alpha", "A", ACCEPTANCE, "Run the real loops; a draft token is accepted with probability A."),
]
AcceptanceFrom = Annotated[
    Path | None,
    _option("--acceptance-from", "RUN", ACCEPTANCE, "The same, with a run's acceptance by draft position."),
]


def bench(
    context: typer.Context,
    pair: options.Pair = None,
    target: options.Target = None,
    draft: options.Draft = None,
    target_config: TargetConfig = None,
    draft_config: DraftConfig = None,
    k: K = None,
    context_tokens: Context = None,
    alpha: Alpha = None,
    acceptance_from: AcceptanceFrom = None,
    seconds: Seconds = None,
    seed: options.Seed = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    kernels: options.Kernels = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Can speculation pay on this machine? No task: forwards by rows, floors, predicted speedup."""
    from spsbench.cli.benching import bench_pair

    bench_pair(context.params)

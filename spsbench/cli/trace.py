"""``spsbench trace``."""

from __future__ import annotations

from typing import Annotated

import typer

from spsbench.cli import options

Prompt = Annotated[
    str,
    typer.Argument(metavar="PROMPT", help="The text to continue; - reads it from stdin.", show_default=False),
]
K = Annotated[
    str | None,
    typer.Option(
        "--k",
        metavar="K",
        rich_help_panel=options.WHAT,
        help="Lookahead, from 1 on. Default: 4.",
        show_default=False,
    ),
]
Sampling = Annotated[
    str | None,
    typer.Option(
        "--sampling",
        metavar="NAME",
        rich_help_panel=options.SAMPLING,
        help="nucleus (top-p 0.8) or greedy. Default: nucleus.",
        show_default=False,
    ),
]


def trace(
    context: typer.Context,
    prompt: Prompt,
    pair: options.Pair = None,
    target: options.Target = None,
    draft: options.Draft = None,
    revision: options.Revision = None,
    draft_revision: options.DraftRevision = None,
    k: K = None,
    sampling: Sampling = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    max_new_tokens: options.MaxNewTokens = None,
    chat_template: options.ChatTemplate = None,
    seed: options.Seed = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    kernels: options.Kernels = None,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Watch SpS write: accepted, rejected and corrected tokens as they come."""
    from spsbench.cli.tracing import trace_prompt

    trace_prompt(context.params)

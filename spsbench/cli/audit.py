"""``spsbench audit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spsbench.cli import options

SAMPLED = "How SAMPLES were drawn, where its lines do not say"

Samples = Annotated[
    Path,
    typer.Argument(
        metavar="SAMPLES",
        help="JSON lines with prompt_ids and completion_ids, or prompt and completion; .gz too.",
        show_default=False,
    ),
]
Temperature = Annotated[
    str | None,
    typer.Option(
        "--temperature", metavar="T", rich_help_panel=SAMPLED, help="Default: 1.", show_default=False
    ),
]
TopP = Annotated[
    str | None,
    typer.Option("--top-p", metavar="P", rich_help_panel=SAMPLED, help="Default: 1.", show_default=False),
]
TopK = Annotated[
    str | None,
    typer.Option("--top-k", metavar="N", rich_help_panel=SAMPLED, help="Default: all.", show_default=False),
]
Greedy = Annotated[
    bool, typer.Option("--greedy", rich_help_panel=SAMPLED, help="Each token was the most probable one.")
]
SamplesDtype = Annotated[
    str | None,
    typer.Option(
        "--samples-dtype",
        metavar="NAME",
        rich_help_panel=SAMPLED,
        help="Precision of the engine that wrote them. Default: that of the target here.",
        show_default=False,
    ),
]


def audit(
    context: typer.Context,
    samples: Samples,
    pair: options.Pair = None,
    target: options.Target = None,
    draft: options.Draft = None,
    revision: options.Revision = None,
    draft_revision: options.DraftRevision = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    greedy: Greedy = False,
    samples_dtype: SamplesDtype = None,
    seed: options.Seed = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Is text from elsewhere distributed as a target says? Exit 4 if not.

    Each text is read by one forward of the target without a cache. With a draft, how much of it leaked.
    """
    from spsbench.cli.auditing import audit_file

    audit_file(samples, context.params)

"""``spsbench verify``."""

from __future__ import annotations

from typing import Annotated

import typer

from spsbench.cli import options

TESTS = "What is tested"

Control = Annotated[
    str | None,
    typer.Option(
        "--control",
        metavar="NAME",
        rich_help_panel=TESTS,
        help="Plant a sampler that is known to be wrong; the tests must fail.",
        show_default=False,
    ),
]
Controls = Annotated[
    bool,
    typer.Option(
        "--controls", rich_help_panel=TESTS, help="Plant each in turn and print which test caught it."
    ),
]
Effort = Annotated[
    str | None,
    typer.Option(
        "--effort",
        metavar="full|reduced",
        rich_help_panel=TESTS,
        help="How much is drawn. Default: full, with --controls reduced.",
        show_default=False,
    ),
]


def verify(
    context: typer.Context,
    task: options.Task = None,
    pair: options.Pair = None,
    target: options.Target = None,
    draft: options.Draft = None,
    revision: options.Revision = None,
    draft_revision: options.DraftRevision = None,
    data: options.Data = None,
    k: options.K = None,
    drafter: options.Drafter = None,
    rule: options.Rule = None,
    policy: options.Policy = None,
    control: Control = None,
    controls: Controls = False,
    effort: Effort = None,
    sampling: options.Sampling = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    chat_template: options.ChatTemplate = None,
    seed: options.Seed = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    kernels: options.Kernels = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Test whether SpS, or any drafter and rule, has the target's distribution; exit 4 if not."""
    from spsbench.cli.verifying import verify_controls, verify_sampler

    if controls:
        verify_controls(context.params)
    else:
        verify_sampler(context.params)

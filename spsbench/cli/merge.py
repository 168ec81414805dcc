"""``spsbench merge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spsbench.cli import options


def merge(
    shards: Annotated[
        list[Path], typer.Argument(metavar="SHARD...", help="Directories of `run --shard 1/N` to `N/N`.")
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where the whole run goes.", show_default=False)
    ],
    allow_mixed: options.AllowMixed = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Put the shards of a run together: the run that one process would have made."""
    from spsbench.cli.console import say
    from spsbench.cli.measure import show_summary
    from spsbench.runner import finalize
    from spsbench.store import RunStore
    from spsbench.store.merging import merge as put_together

    put_together(shards, out, allow_mixed=allow_mixed)
    with RunStore.open(out, writable=True) as store:
        summary = finalize(store, None)
    show_summary(summary, as_json=json)
    say(f"Everything is in {out}", quiet=quiet)

"""``spsbench merge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from spsbench.cli import completion, options


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

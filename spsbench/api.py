"""The Python face: measure, and read what was measured as pandas tables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base.cluster import require_cluster
from spsbench.base.environment import require_cpus
from spsbench.base.paths import results_dir
from spsbench.cli.progress import watching
from spsbench.config import RunConfig, resolve
from spsbench.report.facts import doubts
from spsbench.report.sections import show
from spsbench.report.tables import SCREEN_WIDTH
from spsbench.report.why import verdicts
from spsbench.store import RunStore, fresh_directory, read_frames, read_summary

if TYPE_CHECKING:
    import pandas as pd

    from spsbench.store import Frames
    from spsbench.store.summary_types import Summary


class Run:
    """A finished run: its tables, its summary and its record.

    Args:
        directory: of the run.

    Raises:
        UsageError: it holds no run.
    """

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        with RunStore.open(self.directory) as store:
            self.info: dict[str, Any] = store.run_info()
        self.summary: Summary = read_summary(self.directory)

    def __repr__(self) -> str:
        """The first screen: the verdict, the table and what must stand beside them."""
        from rich.console import Console

        console = Console(file=StringIO(), width=SCREEN_WIDTH)
        show(self.summary, console)
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        return "\n".join(line.rstrip() for line in [f"Run({str(self.directory)!r})", *lines])

    @cached_property
    def _frames(self) -> Frames:
        return read_frames(self.directory)

    @property
    def arms(self) -> pd.DataFrame:
        """One row per arm: its place on every axis. ``samples.merge(arms, on="arm")`` puts them together."""
        return self._frames.arms

    @property
    def samples(self) -> pd.DataFrame:
        """One row per sequence, see ``spsbench.store.Frames``."""
        return self._frames.samples

    @property
    def loops(self) -> pd.DataFrame:
        """One row per loop."""
        return self._frames.loops

    @property
    def tokens(self) -> pd.DataFrame:
        """One row per drafted or emitted token of the traced examples."""
        return self._frames.tokens

    @property
    def evidence(self) -> pd.DataFrame:
        """One row per emitted token that was read again: log q, log p, rank."""
        return self._frames.evidence

    @property
    def verdict(self) -> list[str]:
        """Does it pay, and with which arm: as on the screen, one text for each sampling and batch size.

        Alarms of losslessness come first, then CPU contention in the times. It is empty where
        nothing was compared with ArS.
        """
        answers = [f"{answer} {beside}".strip() for answer, beside in verdicts(self.summary)]
        return [*doubts(self.summary), *answers]

    @cached_property
    def rows(self) -> pd.DataFrame:
        """One row per arm, as in the table on the screen: axes, metrics, times, speedup with its interval."""
        import pandas as pd

        return pd.json_normalize([dict(row) for row in self.summary["rows"]])


def run(
    config: RunConfig | Mapping[str, Any] | None = None,
    *,
    out: Path | str | None = None,
    quiet: bool = True,
    on: str | None = None,
    **settings: Any,
) -> Run:
    """Measure; what ``spsbench run`` does.

    Args:
        config: settings, or fields of ``RunConfig`` as in ``config.yaml``.
        out: run directory; a fresh one in ``results/`` unless named. One that is there already is continued.
        quiet: no progress on stderr.
        on: spread over workers, as ``--on``: ``ray``, or ``ray://HOST:PORT``.
        settings: further fields, under the command line's names too: ``task="xsum", k="2,4",
            drafter="model,lookup", limit=20``.

    Raises:
        UsageError, UnavailableError: see ``spsbench.base.errors``; before anything is loaded.
    """
    from spsbench.runner import execute, execute_on, plan

    carry_out = execute if on is None else partial(execute_on, require_cluster(on))
    if not isinstance(config, RunConfig):
        config = resolve({**(config or {}), **settings})
    if on is None:
        require_cpus(config.threads)
    ready = plan(config, choose_engine=True, later_turns=True)
    directory = Path(out) if out else fresh_directory(results_dir(), config.task, config.pair.name)
    with watching(quiet=quiet) as watcher:
        carry_out(ready, directory, resume=out is not None, watcher=watcher)
    return Run(directory)

"""The run directory: everything a run leaves behind, appended as it goes; no other room writes its files."""

from __future__ import annotations

from spsbench.base.files import plain
from spsbench.store.opening import differences, fresh_directory, latest, read_summary, write_summary
from spsbench.store.run import RunStore, read_frames
from spsbench.store.tables import Frames
from spsbench.store.timings import Key

__all__ = [
    "Frames",
    "Key",
    "RunStore",
    "differences",
    "fresh_directory",
    "latest",
    "plain",
    "read_frames",
    "read_summary",
    "write_summary",
]

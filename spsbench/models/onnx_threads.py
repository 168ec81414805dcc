"""The threads of ONNX Runtime's sessions: one pool for all models of a process.

Idle threads of a pool spin for a while. Two models with a pool each spin against each other, which costs a
factor of 2 to 4; so every session shares one. One thread needs no pool, as long as there is none.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from spsbench.errors import UsageError

if TYPE_CHECKING:
    from onnxruntime import SessionOptions

# Before its import: it sends usage statistics, and warns on stderr where HOME cannot be written to.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_ERRORS_ONLY = 3
_pool: list[int] = []
"""Threads of this process's pool, once there is one: the runtime makes it once and for all."""


def session_options(threads: int) -> SessionOptions:
    """Options of a session that runs on so many threads, the caller's included."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    if threads == 1 and not _pool:
        options.intra_op_num_threads = 1
        return options
    if not _pool:
        onnxruntime.set_global_thread_pool_sizes(threads, 1)
        _pool.append(threads)
    if _pool[0] != threads:
        raise UsageError(
            f"ONNX Runtime keeps one thread pool a process, and here it has {_pool[0]}, not {threads}.",
            flag="--threads",
            remedy=f"Give {_pool[0]}, or begin a new process.",
        )
    options.use_per_session_threads = False
    return options

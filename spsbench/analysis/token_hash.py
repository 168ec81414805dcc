"""One hash over every token of a run: two runs with the same one wrote the same, token for token."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from spsbench.analysis.speedup import finished

if TYPE_CHECKING:
    import pandas as pd

_KEY = ["example_id", "sample_index", "arm"]


def token_hash(samples: pd.DataFrame) -> str | None:
    """SHA-256 over the ids of all finished sequences, whatever their order in the journal.

    Args:
        samples: rows with ``token_ids``; of several processes, all of one.

    Returns:
        64 hexadecimal digits; None without a finished sequence, and where processes wrote different tokens.
    """
    done = finished(samples)
    if done.empty or "token_ids" not in done:
        return None
    parts = [part for _, part in done.groupby("process")] if "process" in done else [done]
    hashes = {_hash(part) for part in parts}
    return hashes.pop() if len(hashes) == 1 else None


def _hash(done: pd.DataFrame) -> str:
    digest = hashlib.sha256()
    columns = done.sort_values(_KEY)[[*_KEY, "token_ids"]].astype({"sample_index": int})
    for line in columns.to_numpy(dtype=object).tolist():
        digest.update(json.dumps(line, default=int).encode() + b"\n")
    return digest.hexdigest()

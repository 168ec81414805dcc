"""What a run is asked to do: validated settings and where they come from."""

from __future__ import annotations

from spsbench.config.files import (
    is_file_name,
    list_pairs,
    list_protocols,
    load_pair,
    load_paper,
    load_protocol,
)
from spsbench.config.models import MAX_K, NGRAMS, ModelRef, PairConfig, PaperConfig, RunConfig, parse_ks
from spsbench.config.resolve import resolve

__all__ = [
    "MAX_K",
    "NGRAMS",
    "ModelRef",
    "PairConfig",
    "PaperConfig",
    "RunConfig",
    "is_file_name",
    "list_pairs",
    "list_protocols",
    "load_pair",
    "load_paper",
    "load_protocol",
    "parse_ks",
    "resolve",
]

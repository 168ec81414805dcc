"""What a run is asked to do: validated settings and where they come from."""

from __future__ import annotations

from spsbench.config.files import (
    is_file_name,
    list_pairs,
    list_papers,
    list_protocols,
    load_pair,
    load_paper,
    load_protocol,
    read_yaml,
    unknown_name,
)
from spsbench.config.models import (
    MAX_K,
    NGRAMS,
    Limits,
    ModelRef,
    PairConfig,
    PaperConfig,
    ProtocolConfig,
    RunConfig,
    parse_ks,
)
from spsbench.config.resolve import resolve

__all__ = [
    "MAX_K",
    "NGRAMS",
    "Limits",
    "ModelRef",
    "PairConfig",
    "PaperConfig",
    "ProtocolConfig",
    "RunConfig",
    "is_file_name",
    "list_pairs",
    "list_papers",
    "list_protocols",
    "load_pair",
    "load_paper",
    "load_protocol",
    "parse_ks",
    "read_yaml",
    "resolve",
    "unknown_name",
]

"""What a run is asked to do: validated settings and where they come from."""

from __future__ import annotations

from spsbench.config.lookahead import MAX_K, parse_ks
from spsbench.config.models import Limits, ModelRef, PairConfig, ProtocolConfig, RunConfig
from spsbench.config.resolve import resolve
from spsbench.config.shipped import list_pairs, list_protocols, load_pair, load_protocol
from spsbench.config.yamlfile import read_yaml, unknown_name

__all__ = [
    "MAX_K",
    "Limits",
    "ModelRef",
    "PairConfig",
    "ProtocolConfig",
    "RunConfig",
    "list_pairs",
    "list_protocols",
    "load_pair",
    "load_protocol",
    "parse_ks",
    "read_yaml",
    "resolve",
    "unknown_name",
]

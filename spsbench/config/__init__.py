"""What a run is asked to do: validated settings and where they come from."""

from __future__ import annotations

from spsbench.base.addresses import withheld
from spsbench.config.files import (
    is_file_name,
    list_pairs,
    list_protocols,
    load_pair,
    load_paper,
    load_protocol,
    model_name,
    pair_name,
    read_yaml,
    validate,
    with_draft,
)
from spsbench.config.material import MaterialSettings, resolve_material
from spsbench.config.models import (
    MAX_BATCH,
    MAX_K,
    NGRAMS,
    ONNXRUNTIME,
    TORCH,
    ModelRef,
    PairConfig,
    PaperConfig,
    RunConfig,
    chosen_backend,
    parse_ks,
)
from spsbench.config.resolve import resolve
from spsbench.config.together import is_given, refuse_together
from spsbench.config.trust import CODE, code_in, require_typed

__all__ = [
    "CODE",
    "MAX_BATCH",
    "MAX_K",
    "NGRAMS",
    "ONNXRUNTIME",
    "TORCH",
    "MaterialSettings",
    "ModelRef",
    "PairConfig",
    "PaperConfig",
    "RunConfig",
    "chosen_backend",
    "code_in",
    "is_file_name",
    "is_given",
    "list_pairs",
    "list_protocols",
    "load_pair",
    "load_paper",
    "load_protocol",
    "model_name",
    "pair_name",
    "parse_ks",
    "read_yaml",
    "refuse_together",
    "require_typed",
    "resolve",
    "resolve_material",
    "validate",
    "with_draft",
    "withheld",
]

"""llama.cpp in this process, by the wheels of ``xllamacpp``: its server's own loop, requests and answers.

Options are those of ``llama_cpp``, but for ``server``. With ``speculation=lookup`` ``ngram`` is which of
llama.cpp's kinds proposes: ``simple``, ``map-k``, ``map-k4v``, ``mod`` or ``cache``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from spsbench.base import LONGEST_NGRAM, LOOKUP, Described, Load, PeerError
from spsbench.parts.external.messages import NGRAMS_OUTLIVE_REQUESTS
from spsbench.parts.external.serving import float32_only, serve
from spsbench.parts.external.workers.llama_cpp import LlamaCpp, drafts_by, fewest

SIMPLE, MOD = "simple", "mod"
NGRAMS = (SIMPLE, "map-k", "map-k4v", MOD, "cache")
_WARNINGS = 2  # of its log: with more, every request writes lines


class XLlamaCpp(LlamaCpp):
    """A server in this process; requests in flight go to the port on the loopback that it opens itself."""

    name = "xllamacpp"

    def __init__(self, load: Load) -> None:
        float32_only(load)
        library: Any = importlib.import_module("xllamacpp")
        self._load = load
        self._in_process = library.Server(parameters(load, library))
        self._url = self._in_process.listening_address

    def describe(self) -> Described:
        described = super().describe()
        if drafts_by(self._load) != LOOKUP or ngram_of(self._load) != MOD:
            return described
        return replace(described, limits=[*described.limits, NGRAMS_OUTLIVE_REQUESTS])

    def _completed(self, content: dict[str, Any]) -> Mapping[str, Any]:
        # What ``/completion`` answers stands under ``__verbose`` of the answer in OpenAI's form.
        answer = self._in_process.handle_completions(content | {"verbose": True})
        if "error" in answer:
            raise PeerError(str(answer["error"].get("message", answer["error"])))
        completed: Mapping[str, Any] = answer["__verbose"]
        return completed

    def _metrics(self) -> str:
        return str(self._in_process.handle_metrics())

    def _release(self) -> str:
        return version("xllamacpp")  # ends in llama.cpp's build


def parameters(load: Load, library: Any) -> Any:
    """The server's parameters: what ``llama_cpp.flags`` says, in the library's own fields."""
    asked = library.CommonParams()
    asked.model.path = load.target
    asked.n_parallel, asked.n_ctx = load.in_flight, load.context * load.in_flight
    asked.cache_type_k = asked.cache_type_v = library.ggml_type.GGML_TYPE_F32
    asked.flash_attn_type = library.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    asked.fit_params = asked.warmup = asked.ui = False  # memory as asked for, and no page for browsers
    asked.offline = asked.endpoint_metrics = True
    asked.cache_ram_mib, asked.n_threads_http, asked.verbosity = 0, load.in_flight + 1, _WARNINGS
    pools = [asked.cpuparams, asked.cpuparams_batch]
    if load.draft is not None:
        pools += _speculate(asked.speculative, load, library)
    for pool in pools if load.threads is not None else ():
        pool.n_threads = load.threads
    return asked


def ngram_of(load: Load) -> str:
    return str(load.options.get("ngram", SIMPLE))


def _speculate(asked: Any, load: Load, library: Any) -> list[Any]:
    """Set how it drafts; the threads that this takes beside the target's."""
    lookup = drafts_by(load) == LOOKUP
    kind = f"NGRAM_{ngram_of(load)}" if lookup else "DRAFT_SIMPLE"
    name = f"COMMON_SPECULATIVE_TYPE_{kind.upper().replace('-', '_')}"
    asked.types = [getattr(library.common_speculative_type, name)]
    draft = asked.draft
    draft.n_max = load.k
    if lookup:
        for table in (asked.ngram_simple, asked.ngram_map_k, asked.ngram_map_k4v):
            table.size_n, table.size_m = LONGEST_NGRAM, load.k
        asked.ngram_mod.n_match, asked.ngram_mod.n_min, asked.ngram_mod.n_max = LONGEST_NGRAM, 1, load.k
        return []
    draft.mparams.path = load.draft
    draft.n_min, draft.p_min = fewest(load), float(load.options.get("draft_p_min", 0))
    draft.probabilistic = drafts_by(load) == "probabilistic"
    draft.cache_type_k = draft.cache_type_v = library.ggml_type.GGML_TYPE_F32
    if "synth_len" in load.options:
        asked.synth_len = float(load.options["synth_len"])
    return [draft.cpuparams, draft.cpuparams_batch]


if __name__ == "__main__":
    serve(XLlamaCpp)

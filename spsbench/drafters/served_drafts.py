"""What engines make of a trained drafter's folder: where releases read the same files differently.

Each of these keeps the text right and loses acceptance without a word, so that only a measurement under
several readings shows which one a drafter was trained for. Read in the released code in 2026-11; run are what
transformers does not load, and EAGLE-3 and P-EAGLE heads over vLLM 0.32.0 (benchmarks/parity_heads.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from spsbench.base.messages import Message
from spsbench.drafters import messages
from spsbench.models.blocks import VANILLA
from spsbench.models.kinds import (
    AFTER,
    ASSISTANT,
    BLOCKS,
    CONVENTIONS,
    DFLASH2,
    DSPARK,
    EAGLE3,
    MEDUSA,
    MTP,
    NEXT,
    OUTPUT,
    OWN,
    PEAGLE,
    POST,
    PRE,
    SPECULATORS,
    SPSBENCH,
    WRITTEN,
    XPRESS,
)
from spsbench.models.trained import TrainedDraft

VLLM, SGLANG, LLAMA_CPP, TRANSFORMERS = (
    "vLLM 0.33.0",
    "SGLang 0.5.23",
    "llama.cpp b11434",
    "transformers 5.23.0",
)

_COMPARED = ("deepseek_v3", "glm4_moe", "glm_ocr", "qwen3_next", "qwen3_5", "step3", "mimo_v2")
"""Targets whose modules were read in the code of vLLM, SGLang and llama.cpp."""
_ERNIE, _LONGCAT, _NEMOTRON = "ernie4_5_moe", "longcat_flash", "nemotron_h"
_APART = (_ERNIE, _LONGCAT, _NEMOTRON)
_VLLM_BEFORE_NORM = ("glm4_moe", "glm_ocr", "step3")
_HAVE_MTP_LAYERS = ("bailing_hybrid", "deepseek_v3", "glm4_moe", "inkling", "mellum", "step3p7")
_NESTED = "eagle_config"
_IDS = "eagle_aux_hidden_state_layer_ids"
_COUNT, _STATES = "num_aux_hidden_states", 3


@dataclass(frozen=True, slots=True)
class Served:
    """How an engine's release reads a folder.

    Attributes:
        engine: with its release.
        loads: whether it has a reader for this kind.
        says: why it has none, else what it does otherwise than the folder's writer.
        options: the same reading here; None where no options stand for it, or it is the same.
    """

    engine: str
    loads: bool
    says: Message | str
    options: Mapping[str, str] | None = None


def served(draft: TrainedDraft, config: Mapping[str, Any]) -> list[Served]:
    """Return how each engine reads a drafter's folder.

    Args:
        config: what its ``config.json`` says; empty of folders of ``spsbench distill``.
    """
    if draft.writer == SPSBENCH:
        return [Served(each, False, messages.OWN_LAYOUT) for each in (VLLM, SGLANG, LLAMA_CPP, TRANSFORMERS)]
    if draft.kind == EAGLE3:
        return [*_of_eagle3(draft, config)]
    if draft.kind == PEAGLE:
        return [*_of_peagle(draft, config)]
    if draft.kind == MTP:
        return [*_of_modules(draft)]
    if draft.kind == ASSISTANT:
        return [*_of_assistant(draft)]
    if draft.kind in BLOCKS:
        return [*_of_block(draft, config)]
    if draft.kind == XPRESS:
        return [Served(VLLM, True, messages.UNIFORM_ROWS), *_without_reader(SGLANG, LLAMA_CPP, TRANSFORMERS)]
    if draft.kind == MEDUSA:
        return _without_reader(VLLM, SGLANG, LLAMA_CPP, TRANSFORMERS)
    return []


def _without_reader(*engines: str) -> list[Served]:
    return [Served(each, False, messages.NO_READER) for each in engines]


def _of_eagle3(draft: TrainedDraft, config: Mapping[str, Any]) -> Iterator[Served]:
    nested = config.get(_NESTED)
    is_nested = isinstance(nested, dict) and _IDS in nested
    normed = [name for name in ("norm_output", "fc_norm") if config.get(name)]
    layers = int((draft.config or {}).get("num_hidden_layers", 1))

    yield _eagle3_of_vllm(draft, config, is_nested=is_nested)

    reading: dict[str, str] = {}
    says: list[str] = []
    is_ours = True
    if is_nested:
        reading["ids"] = OUTPUT
        says.append(messages.STATE_AFTER_LAYER)
    elif draft.reads is not None:
        is_ours = False
        says.append(messages.IDS_AT_TOP)
    if draft.convention("residual") == POST:
        reading["residual"] = PRE
        says.append(messages.RESIDUAL_UNREAD)
    if layers > 1:
        is_ours = False
        says.append(messages.LATER_NORMS)
    yield _served(SGLANG, draft, reading, says, is_ours=is_ours)

    reading, says = {}, []
    is_ours = True
    if is_nested and _IDS not in config:
        is_ours = False
        says.append(messages.IDS_NESTED)
    if "norm_output" in normed:
        reading["recycle"] = PRE
        says.append(messages.OUTPUT_NORM_UNREAD)
    if "fc_norm" in normed:
        is_ours = False
        says.append(messages.FC_NORM_UNREAD)
    yield _served(LLAMA_CPP, draft, reading, says, is_ours=is_ours)
    yield from _without_reader(TRANSFORMERS)


def _eagle3_of_vllm(draft: TrainedDraft, config: Mapping[str, Any], *, is_nested: bool) -> Served:
    if not is_nested and (fault := _built_otherwise(draft, config)):
        return Served(VLLM, False, fault)
    reading: dict[str, str] = {}
    says: list[str] = []
    is_read = not is_nested or _IDS in config
    if not is_read:
        says.append(messages.IDS_NESTED)
    if draft.writer == SPECULATORS and "norm_before_residual" not in config:
        reading["residual"] = POST
        says.append(messages.RESIDUAL_TRUE)
    return _served(VLLM, draft, reading, says, is_ours=is_read)


def _built_otherwise(draft: TrainedDraft, config: Mapping[str, Any]) -> str:
    """Say why vLLM 0.32.0 builds a head whose tensors the file does not have, if it does."""
    layer = draft.config or {}
    if draft.kind == PEAGLE and config.get("fc_norm"):
        return messages.FC_NORM_DROPPED
    if draft.reads is None or len(draft.reads) == _STATES or layer.get("model_type") != "llama":
        return ""
    is_counted = _COUNT in {**layer, **config}
    nested = config.get(_NESTED)
    reads_one = isinstance(nested, dict) and nested.get("use_aux_hidden_state") is False
    if is_counted or reads_one:
        return ""
    return messages.SIZED_FOR_STATES


def _of_peagle(draft: TrainedDraft, config: Mapping[str, Any]) -> Iterator[Served]:
    if fault := _built_otherwise(draft, config):
        yield Served(VLLM, False, fault)
    else:
        yield _served(VLLM, draft, {}, [], is_ours=True)
    yield from _without_reader(SGLANG, LLAMA_CPP, TRANSFORMERS)


def _of_block(draft: TrainedDraft, config: Mapping[str, Any]) -> Iterator[Served]:
    is_published_apart = draft.writer == SPECULATORS
    is_told = "sample_from_anchor" in config
    markov = draft.extra.get("markov_head_type") or VANILLA
    other_markov = Served("", False, messages.VanillaMarkovOnly(markov))

    if markov != VANILLA:
        yield replace(other_markov, engine=VLLM)
    else:
        reading: dict[str, str] = {}
        says = [messages.BLOCK_OF_K]
        is_causal = is_published_apart and config.get("sliding_window_non_causal") is False
        if is_published_apart and not is_told:
            reading["anchor"] = OWN
            says.append(messages.ANCHOR_FALSE)
        if is_causal:
            says.append(messages.ALL_CAUSAL)
        yield _served(VLLM, draft, reading, says, is_ours=not is_causal)

    if is_published_apart:
        yield Served(SGLANG, False, messages.AUTHORS_IDS_WANTED)
    else:
        reading, says = {}, []
        if draft.kind == DSPARK and not is_told:
            reading["anchor"] = NEXT
        yield _served(SGLANG, draft, reading, says, is_ours=True)

    if draft.kind == DFLASH2:
        yield from _without_reader(LLAMA_CPP)
    elif markov != VANILLA:
        yield replace(other_markov, engine=LLAMA_CPP)
    else:
        yield Served(LLAMA_CPP, True, messages.ANCHOR_OF_CONVERTER)
    yield from _without_reader(TRANSFORMERS)


def _of_modules(draft: TrainedDraft) -> Iterator[Served]:
    """Of the target's own; a folder apart is a format that no engine was found to read."""
    if draft.extra["apart"]:
        yield from _without_reader(VLLM, SGLANG, LLAMA_CPP, TRANSFORMERS)
        return
    model = str((draft.config or {}).get("model_type"))
    modules = int(draft.extra["modules"])
    if model.startswith(_COMPARED):
        says = [messages.MODULES_AGAIN]
        is_one = model.startswith("mimo_v2") and modules > 1
        if is_one:
            says = [messages.FIRST_MODULE]
        before = PRE if model.startswith(_VLLM_BEFORE_NORM) else draft.convention("recycle")
        if before != draft.convention("recycle"):
            says.append(messages.BEFORE_NORM)
        yield _served(VLLM, draft, {"recycle": before}, says, is_ours=not is_one)
        for engine in (SGLANG, LLAMA_CPP):
            yield _served(engine, draft, {}, [], is_ours=True)
    if model in _APART:
        yield from _of_modules_apart(draft, model, modules)
    if not model.startswith(_HAVE_MTP_LAYERS):
        yield Served(TRANSFORMERS, False, messages.NoModuleCount(model))
        return
    says, reading = [messages.AS_MANY_AS_MODULES], {"recycle": POST}
    if draft.convention("recycle") == PRE:
        says.append(messages.AFTER_NORM)
    if draft.extra["own_heads"] and model.startswith("step"):
        says.append(messages.HEAD_OF_TARGET)
    yield _served(TRANSFORMERS, draft, reading, says, is_ours=len(says) < 3)


def _of_modules_apart(draft: TrainedDraft, model: str, modules: int) -> Iterator[Served]:
    """Of targets whose modules each engine reads by code of their own."""
    if model == _ERNIE:
        yield _served(VLLM, draft, {}, [messages.UNNORMED_HALVES], is_ours=False)
        yield _served(SGLANG, draft, {}, [messages.UNNORMED], is_ours=False)
        yield Served(LLAMA_CPP, False, messages.MODULES_LEFT_OUT)
    elif model == _LONGCAT:
        for engine in (VLLM, SGLANG):
            yield _served(engine, draft, {}, [], is_ours=True)
        yield from _without_reader(LLAMA_CPP)
    elif modules > 1:
        for engine in (VLLM, SGLANG, LLAMA_CPP):
            yield Served(engine, False, messages.OneModuleOnly(modules))
    else:
        for engine in (VLLM, SGLANG):
            yield _served(engine, draft, {}, [], is_ours=True)
        yield _served(LLAMA_CPP, draft, {}, [messages.MEAN_SUBTRACTED], is_ours=False)


def _of_assistant(draft: TrainedDraft) -> Iterator[Served]:
    for engine in (VLLM, SGLANG):
        yield _served(engine, draft, {"position": WRITTEN}, [messages.LAST_POSITION], is_ours=True)
    yield _served(LLAMA_CPP, draft, {}, [], is_ours=True)
    yield Served(TRANSFORMERS, False, messages.NO_OWN_KEYS)


def _served(
    engine: str, draft: TrainedDraft, reading: Mapping[str, str], says: list[str], *, is_ours: bool
) -> Served:
    changed = {name: value for name, value in reading.items() if draft.convention(name) != value}
    return Served(engine, True, messages.Differences(tuple(says)), changed if is_ours and changed else None)


def readings(draft: TrainedDraft, of_engines: list[Served], layers: int) -> list[dict[str, str]]:
    """Return the readings that can be told apart by measuring, as options; the first is as written.

    Each convention alone the other way, and those of engines; without what the target has no states for.
    """
    found: list[dict[str, str]] = [{}]
    for each in draft.conventions:
        found += [{each.name: value} for value in CONVENTIONS[each.name] if value != each.value]
    found += [dict(each.options) for each in of_engines if each.options]
    kept: list[dict[str, str]] = []
    for options in found:
        states = draft.read_as("--drafter", **options).states_of(layers)
        same_states = options.get("ids", AFTER) == OUTPUT and draft.reads is None
        if options not in kept and all(-1 <= state <= layers for state in states) and not same_states:
            kept.append(options)
    return kept

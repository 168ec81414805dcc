"""The sampling that a checkpoint's authors recommend, in its ``generation_config.json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from pydantic import ConfigDict, create_model

from spsbench.base.axes import BEAM, RECOMMENDED
from spsbench.base.errors import UsageError, as_typed
from spsbench.base.records import Processing, SamplingParams
from spsbench.config import RunConfig
from spsbench.config.files import validate
from spsbench.config.processing import ProcessingSettings
from spsbench.models.source import ModelSource

FILE = "generation_config.json"
_FLAG = "--sampling"
ENSEMBLE = "assistant_ensemble_weight"
"""A weight of the target below 1 in what transformers' assisted generation verifies against: lossy."""

_DRAWS = ("temperature", "top_k", "top_p")
_CUTS = ("min_p", "typical_p")
_HISTORY = ("repetition_penalty", "min_new_tokens")
_FIELDS: Any = {
    name: (model.model_fields[name].annotation, model.model_fields[name])
    for model, names in ((RunConfig, _DRAWS), (ProcessingSettings, (*_CUTS, *_HISTORY)))
    for name in names
}
_Values: Any = create_model("_Values", __config__=ConfigDict(frozen=True, extra="ignore"), **_FIELDS)
"""What may be written there is what the options of a run take."""


def _none(value: Any) -> bool:
    return value is None or value is False or value in ([], {}, "")


def _not_above_zero(value: Any) -> bool:
    """Whether transformers leaves it out: it looks for a number above 0, so that -1 is off, too."""
    return _none(value) or (type(value) in (int, float) and value <= 0)


def _outside_unit(value: Any) -> bool:
    """Whether transformers leaves it out: it looks for a number between 0 and 1."""
    return _not_above_zero(value) or (type(value) in (int, float) and value >= 1)


def _one(value: Any) -> bool:
    return _none(value) or value == 1


OFF: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("num_beams", "num_beam_groups", "guidance_scale", "encoder_repetition_penalty"), _one),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "min_length"), _not_above_zero),
    **dict.fromkeys(("diversity_penalty", "penalty_alpha", "max_time"), _not_above_zero),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff"), _outside_unit),
    **dict.fromkeys(
        ("top_h", "exponential_decay_length_penalty", "suppress_tokens", "force_words_ids"), _none
    ),
    **dict.fromkeys(("begin_suppress_tokens", "sequence_bias", "constraints", "watermarking_config"), _none),
    **dict.fromkeys(("bad_words_ids", "forced_eos_token_id", "dola_layers"), _none),
    **dict.fromkeys(("stop_strings", "token_healing"), _none),
    ENSEMBLE: _one,
    # Other engines' settings, which transformers keeps without applying them.
    **dict.fromkeys(
        ("presence_penalty", "frequency_penalty", "xtc_probability", "mirostat"), _not_above_zero
    ),
    **dict.fromkeys(("dry_multiplier", "smoothing_factor", "top_a"), _not_above_zero),
}
"""Settings that change what is written and that ``--sampling`` has not: off, or refused by name."""


def recommended(target: ModelSource) -> SamplingParams:
    """Return the sampling of a checkpoint's own file; greedy where it says ``do_sample: false``.

    Every field is taken, off by its own meaning or refused (``OFF``), or none of the sampling.

    Without ``do_sample`` the values of the file are taken, if there are any. Defaults of transformers that no
    file names (its top-k of 50) are nobody's recommendation.

    Raises:
        UsageError: there is no such file, nothing of sampling in it, a wrong value, or one that is not
            supported here.
    """
    settings, name = target.generation, target.title
    remedy = "Name a sampling of the task; --temperature, --top-p and --top-k set its values."
    if settings is None:
        raise UsageError(f"{name} has no {FILE}.", flag=_FLAG, remedy=remedy)
    drawing = [key for key in (*_DRAWS, *_CUTS) if settings.get(key) is not None]
    sampled = settings.get("do_sample", bool(drawing))
    if "do_sample" not in settings and not drawing and settings.get("repetition_penalty") is None:
        raise UsageError(f"the {FILE} of {name} says nothing about sampling.", flag=_FLAG, remedy=remedy)
    if type(sampled) is not bool:
        why = f"the {FILE} of {name} says do_sample {as_typed(sampled)}, which is neither true nor false."
        raise UsageError(why, flag=_FLAG, remedy=remedy)
    for key, off in OFF.items():
        if not off(value := settings.get(key)):
            why = f"the {FILE} of {name} asks for {key} {as_typed(value)}, which {_FLAG} {RECOMMENDED} lacks."
            search = f"A beam search is {_FLAG} {BEAM}. " if key == "num_beams" else ""
            raise UsageError(why, flag=_FLAG, remedy=search + remedy)
    if settings.get("top_k") == -1:  # as vLLM and llama.cpp write that there is none
        settings = {**settings, "top_k": 0}
    checked = validate(_Values, settings, lambda key: f"{FILE} of {name}: {key}")
    values = {key: value for key in _Values.model_fields if (value := getattr(checked, key)) is not None}
    if not sampled:
        values = {key: value for key, value in values.items() if key in _HISTORY}
    process = Processing(
        **{field.name: values[field.name] for field in fields(Processing) if field.name in values}
    )
    return SamplingParams(
        **{key: values[key] for key in _DRAWS if key in values},
        greedy=not sampled,
        process=None if process == Processing() else process,
    )

"""The sampling that a checkpoint's own file recommends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spsbench.base.errors import UsageError
from spsbench.base.records import Processing, SamplingParams
from spsbench.config import resolve
from spsbench.engines.arms import task_and_arms
from spsbench.models.recommended import OFF, recommended

QWEN = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "eos_token_id": [1, 2]}


def of(told: dict[str, Any] | None) -> SamplingParams:
    target: Any = SimpleNamespace(generation=told, title="tiny")
    return recommended(target)


@pytest.mark.parametrize(
    ("told", "sampling"),
    [
        (QWEN, SamplingParams(temperature=0.6, top_p=0.95, top_k=20)),
        ({"temperature": 0.6}, SamplingParams(temperature=0.6)),  # nobody says do_sample
        ({"do_sample": True}, SamplingParams()),
        ({"do_sample": True, "top_k": 64, "num_beams": 1, "eta_cutoff": 0.0}, SamplingParams(top_k=64)),
        ({"do_sample": True, "min_p": 0.1}, SamplingParams(process=Processing(min_p=0.1))),
        ({"do_sample": True, "typical_p": 0.9}, SamplingParams(process=Processing(typical_p=0.9))),
        (
            {"repetition_penalty": 1.05},
            SamplingParams(greedy=True, process=Processing(repetition_penalty=1.05)),
        ),
        ({"do_sample": False}, SamplingParams(greedy=True)),
        (QWEN | {"do_sample": False, "min_p": 0.1}, SamplingParams(greedy=True)),
        (
            QWEN | {"do_sample": False, "repetition_penalty": 1.1},
            SamplingParams(greedy=True, process=Processing(repetition_penalty=1.1)),
        ),
    ],
)
def test_what_a_file_says_is_taken(told: dict[str, Any], sampling: SamplingParams) -> None:
    assert of(told) == sampling


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (None, "tiny has no generation_config.json"),
        ({"eos_token_id": 0}, "the generation_config.json of tiny says nothing about sampling"),
        (QWEN | {"no_repeat_ngram_size": 3}, "asks for no_repeat_ngram_size 3, which --sampling model lacks"),
        (QWEN | {"assistant_ensemble_weight": 0.5}, "asks for assistant_ensemble_weight 0.5"),
        (QWEN | {"num_beams": 4}, "asks for num_beams 4, .* A beam search is --sampling beam"),
        (QWEN | {"bad_words_ids": [[3]]}, "asks for bad_words_ids"),
        (QWEN | {"epsilon_cutoff": 3e-4}, "asks for epsilon_cutoff"),
        (QWEN | {"top_p": 2}, "generation_config.json of tiny: top_p must be a number above 0"),
        (QWEN | {"temperature": 0.0}, r"temperature must be a number from 1e-30 \(for 0 give"),
        (QWEN | {"temperature": "hot"}, "temperature must be a number.*, got hot"),
        (QWEN | {"top_p": "0.9"}, 'top_p must be a number above 0 and at most 1, got the text "0.9"'),
        (QWEN | {"top_k": -2}, "top_k must be a whole number from 0"),
        (QWEN | {"stop_strings": ["\n\n"]}, "asks for stop_strings"),
        (QWEN | {"stop_strings": "END"}, "asks for stop_strings END"),
        (QWEN | {"token_healing": True}, "asks for token_healing true"),
        (QWEN | {"forced_eos_token_id": 0}, "asks for forced_eos_token_id 0"),
        (QWEN | {"presence_penalty": 1.5}, "asks for presence_penalty 1.5"),
        (QWEN | {"max_time": 2.0}, "asks for max_time 2.0"),
        (QWEN | {"no_repeat_ngram_size": "3"}, "asks for no_repeat_ngram_size 3"),
        (QWEN | {"eta_cutoff": 0.5}, "asks for eta_cutoff 0.5"),
        (QWEN | {"top_h": 0.4}, "asks for top_h 0.4"),
        (QWEN | {"do_sample": "yes"}, "says do_sample yes, which is neither true nor false"),
    ],
)
def test_what_cannot_be_taken_is_named(told: dict[str, Any] | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        of(told)


@pytest.mark.parametrize(
    "off",
    [
        {"top_k": -1},
        {"no_repeat_ngram_size": -1, "min_length": -1, "epsilon_cutoff": -1.0, "eta_cutoff": 1.0},
        {"stop_strings": [], "sequence_bias": {}, "bad_words_ids": [], "suppress_tokens": []},
        {"stop_strings": None, "top_h": None, "guidance_scale": None, "forced_eos_token_id": None},
        {"min_p": None, "typical_p": None, "repetition_penalty": None, "min_new_tokens": 0},
        {"assistant_ensemble_weight": 1.0, "num_beams": 1, "guidance_scale": 1.0, "token_healing": False},
        {"presence_penalty": 0.0, "max_time": None, "penalty_alpha": 0, "dry_multiplier": 0},
    ],
)
def test_a_value_that_is_off_by_its_own_meaning_changes_nothing(off: dict[str, Any]) -> None:
    told = {name: value for name, value in QWEN.items() if name not in off}
    assert of(told | off) == of(told)


TAKEN = frozenset(
    (
        "do_sample",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "repetition_penalty",
        "min_new_tokens",
    )
)
ELSEWHERE = {
    "what a run sets": ("max_length", "max_new_tokens", "num_return_sequences"),
    "token ids, which the tokenizer's reading takes": (
        *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_bos_token_id"),
    ),
    "of beams, which are refused": ("early_stopping", "length_penalty", "low_memory"),
    "of no effect on a law: rows are normalised, and without NaN": (
        *("renormalize_logits", "remove_invalid_values"),
    ),
    "how it is computed": (
        *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "compile_config"),
        *("disable_compile", "continuous_batching_config", "prefill_chunk_size"),
    ),
    "how drafts are made, which changes no law": (
        *("use_mtp", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule"),
        *("assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size"),
        *("assistant_early_exit", "assistant_lookbehind", "target_lookbehind", "speculation_type"),
    ),
    "what else generate() returns": (
        *("output_attentions", "output_hidden_states", "output_scores", "output_logits"),
        *("return_dict_in_generate", "transformers_version"),
    ),
}
"""Every other field of ``GenerationConfig``, by why it is none of the sampling."""


def test_every_field_of_transformers_is_answered_once() -> None:
    """Of the release that is installed; a field of a later one must be answered before it is read."""
    from transformers import GenerationConfig

    names = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    answered = [*TAKEN, *OFF, *(name for group in ELSEWHERE.values() for name in group)]
    assert len(answered) == len(set(answered))
    assert not names - set(answered)
    assert {*TAKEN, "stop_strings", "token_healing"} <= names  # the control: the fields are there


def _sampling(told: dict[str, Any], **flags: Any) -> SamplingParams:
    config = resolve({"task": "xsum", "samplings": "model", "methods": "ars", **flags})
    (arm,) = task_and_arms(config, of(told))[1]
    assert arm.sampling_name == "model"
    return arm.sampling


def test_options_stand_above_the_file() -> None:
    told = QWEN | {"min_p": 0.1, "repetition_penalty": 1.1}
    assert _sampling(told).described == (
        "temperature 0.6, top_k 20, top_p 0.95, min-p 0.1, repetition penalty 1.1 (transformers)"
    )
    assert _sampling(told, temperature=1.0, process=["min_p=0"]) == SamplingParams(
        top_k=20, top_p=0.95, process=Processing(repetition_penalty=1.1)
    )
    assert _sampling(told, process=["min_p=0:repetition_penalty=1"]).process is None


def test_a_temperature_beside_a_greedy_recommendation_is_refused() -> None:
    with pytest.raises(UsageError, match=r"0\.7 has no effect: greedy"):
        _sampling({"do_sample": False}, temperature=0.7)


def test_a_penalty_of_the_file_is_for_our_own_loop() -> None:
    with pytest.raises(UsageError, match=r"penalty 1\.1 .*the engine hf-generate does not apply it"):
        _sampling(QWEN | {"repetition_penalty": 1.1}, engines="eager,hf-generate")
    with pytest.raises(UsageError, match="depends on the tokens before"):
        _sampling(QWEN | {"repetition_penalty": 1.1}, batches="2")

"""The lines of the engine protocol: what is written can be read, and what is wrong is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import tiny_models

from spsbench.base.errors import UnavailableError
from spsbench.base.protocol import (
    SETTINGS,
    Answer,
    Ask,
    Described,
    Drafting,
    Load,
    ProtocolError,
    Sampling,
    failure,
    parsed,
    read,
    request,
    request_seed,
    result,
)
from spsbench.base.records import SamplingParams
from spsbench.parts.external.engine import PeerRun, sampling_of, unequal
from spsbench.runner.peers import model_folder


@pytest.mark.parametrize(
    "message",
    [
        Load("target", "draft", 4, 2, 512, options={"a": 1}),
        Ask([1, 2], 8, [0], ["\n"], Sampling(temperature=0.7, top_p=0.9), seed=3),
        Described("engine", "1.0", 100, "modified rejection", {"threads": 1}, ["no ids"]),
        Described("engine", "1.0", drafting=Drafting(0.6, 2, 10)),
        Answer([1, 2], "stop", decode_ms=1.5, accepted_per_loop=[1, 0]),
    ],
)
def test_what_is_written_is_read(message: Load | Ask | Described | Answer) -> None:
    if isinstance(message, (Load, Ask)):
        line = parsed(request(3, "any", message))["params"]
    else:
        line = parsed(result(3, message))["result"]
    assert read(type(message), line) == message


def test_unknown_keys_are_ignored_and_absent_ones_have_defaults() -> None:
    assert read(Answer, {"output_ids": [], "finish": "stop", "new": 1}) == Answer([], "stop")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"finish": "stop"}, "output_ids is missing"),
        ({"output_ids": [1, "2"], "finish": "stop"}, "output_ids is"),
        ({"output_ids": [True], "finish": "stop"}, "a list of whole numbers"),
        ({"output_ids": [], "finish": "stop", "decode_ms": "fast"}, "decode_ms is .* and not a number"),
        ({"output_ids": [], "finish": "stop", "decode_ms": float("nan")}, "not a number"),
        ({"output_ids": [], "finish": "stop", "loops": 1.5}, "not a whole number"),
        ({"output_ids": [], "finish": None}, "not text"),
        ([], "answer is not an object"),
    ],
)
def test_what_is_of_another_form_is_refused(value: object, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        read(Answer, value)


@pytest.mark.parametrize(
    ("drafting", "said"),
    [
        ({"p_mni": 0.6}, "drafting has no 'p_mni': it has p_min, n_min, top_k, n_max"),
        ({"p_min": 1.5}, "p_min is 1.5 and not a number from 0 to 1"),
        ({"p_min": "high"}, "p_min is .* and not a number"),
        ({"n_min": -1}, "n_min is -1 and not 0 or more"),
        ({"n_min": 2.5}, "n_min is .* and not a whole number"),
        ({"top_k": -1}, "top_k is -1 and not 0 or more"),
        ({"n_max": 0}, "n_max is 0 and not 1 or more"),
        ([0.6], "drafting is not an object"),
    ],
)
def test_how_drafts_end_is_declared_by_known_names_and_within_bounds(drafting: object, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        read(Described, {"engine": "engine", "version": "1", "drafting": drafting})


@pytest.mark.parametrize("line", ["", "loading", "[1]", '{"result": 1}', '{"id": "1"}', '{"id": true}'])
def test_a_line_without_an_id_is_no_message(line: str) -> None:
    with pytest.raises(ProtocolError):
        parsed(line)


def test_an_error_is_a_sentence() -> None:
    assert json.loads(failure(4, "no memory")) == {"id": 4, "error": "no memory"}


@pytest.mark.parametrize(
    ("ours", "asked"),
    [
        (SamplingParams(), Sampling()),
        (SamplingParams(greedy=True), Sampling(greedy=True)),
        (SamplingParams(0.7, 5, 0.9), Sampling(temperature=0.7, top_k=5, top_p=0.9)),
    ],
)
def test_a_sampling_is_asked_for_by_its_names(ours: SamplingParams, asked: Sampling) -> None:
    assert sampling_of(ours) == asked


def test_seeds_fit_into_31_bits() -> None:
    assert [request_seed(seed) for seed in (0, 7, 2**31 - 1, 2**31, 2**63 + 5)] == [0, 7, 2**31 - 1, 0, 5]


def test_a_folder_is_found_behind_a_link_and_a_model_that_is_not_here_is_none(tmp_path: Path) -> None:
    saved = tiny_models.save(tiny_models.make(tiny_models.config_of("llama")), tmp_path / "model")
    (tmp_path / "link").symlink_to(saved)
    source = tiny_models.pair_of(tmp_path / "link").target
    assert model_folder(source) == saved.resolve()
    with pytest.raises(UnavailableError, match="nobody/nothing"):
        model_folder(replace(source, name="nobody/nothing", location="nobody/nothing"))


WHOLE: dict[str, Any] = dict.fromkeys(SETTINGS, "same") | {"dtype": "float32", "prefix_cache": False}


def test_equal_settings_in_other_spellings_say_nothing() -> None:
    other = WHOLE | {"dtype": "FP32", "prefix_cache": "off"}
    assert unequal([PeerRun("ArS", "eager", WHOLE), PeerRun("ArS @b", "b", other)]) == []


def test_a_difference_names_the_setting_and_who_has_what() -> None:
    arms = [PeerRun("ArS", "eager", WHOLE), PeerRun("SpS", "eager", WHOLE)]
    arms += [PeerRun("ArS @b", "b", WHOLE), PeerRun("SpS @b", "b", WHOLE | {"dtype": "bf16"})]
    assert unequal(arms) == [
        "dtype (of weights and sums) differs: float32 with eager, ArS @b; bfloat16 with SpS @b."
    ]


def test_what_is_not_told_is_said_once_an_engine() -> None:
    silent = WHOLE | {"threads": None, "top_p": None}
    arms = [PeerRun("ArS", "eager", WHOLE), PeerRun("ArS @b", "b", silent), PeerRun("SpS @b", "b", silent)]
    assert unequal(arms) == ["Not reported by b: threads, top_p."]
    assert unequal(arms, sampled=False) == ["Not reported by b: threads."]

"""The lines of the engine protocol: what is written can be read, and what is wrong is named."""

from __future__ import annotations

import json

import pytest

from spsbench.engines.external.protocol import (
    Answer,
    Ask,
    Described,
    Load,
    ProtocolError,
    Sampling,
    failure,
    parsed,
    read,
    request,
    result,
)


@pytest.mark.parametrize(
    "message",
    [
        Load("target", "draft", 4, 2, 512, options={"a": 1}),
        Ask([1, 2], 8, [0], ["\n"], Sampling(temperature=0.7, top_p=0.9), seed=3),
        Described("engine", "1.0", 100, "modified rejection", {"threads": 1}, ["no ids"]),
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


@pytest.mark.parametrize("line", ["", "loading", "[1]", '{"result": 1}', '{"id": "1"}', '{"id": true}'])
def test_a_line_without_an_id_is_no_message(line: str) -> None:
    with pytest.raises(ProtocolError):
        parsed(line)


def test_an_error_is_a_sentence() -> None:
    assert json.loads(failure(4, "no memory")) == {"id": 4, "error": "no memory"}

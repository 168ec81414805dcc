from __future__ import annotations

import json
from pathlib import Path

import pytest

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.base.records import Processing
from spsbench.config.resolve import resolve


def test_settings_are_read(tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.write_text("5 6\n7\n")
    asked = {"min_p": 0.1, "logit_bias": "3:-1.5,4:2", "bad_words": str(words), "convention": "vllm"}
    assert resolve(asked).processing == Processing(
        min_p=0.1, logit_bias=((3, -1.5), (4, 2.0)), bad_words=((5, 6), (7,)), convention="vllm"
    )
    assert resolve({}).processing is None
    assert resolve({"repetition_penalty": 1.0}).processing is None


def test_a_list_of_ids_may_be_longer_than_a_file_name() -> None:
    ids = ",".join(str(token) for token in range(200))
    found = resolve({"bad_words": ids}).processing
    assert found is not None
    assert found.bad_words == tuple((token,) for token in range(200))
    assert resolve({"bad_words": ids}).bad_words == ids, "a resumed run reads its settings again"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min_p", 1.0),
        ("typical_p", 0.0),
        ("repetition_penalty", -1.0),
        ("presence_penalty", float("nan")),
        ("logit_bias", "3"),
        ("logit_bias", "-3:1"),
        ("logit_bias", "3:inf"),
        ("min_new_tokens", -1),
        ("bad_words", "1,,2"),
        ("bad_words", "no-such-file"),
        ("bad_words", "x" * 300),
        ("grammar", "no-such-file.json"),
        ("grammar", "{broken"),
        ("convention", "mine"),
    ],
)
def test_wrong_values_name_the_option(name: str, value: object) -> None:
    with pytest.raises(UsageError) as raised:
        resolve({name: value})
    assert raised.value.flag == f"--{name.replace('_', '-')}"


def test_a_step_that_a_convention_lacks_is_refused() -> None:
    with pytest.raises(UsageError, match="typical-p"):
        _ = resolve({"typical_p": 0.9, "convention": "vllm"}).processing


def test_a_schema_is_kept_and_needs_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "schema.json"
    path.write_text('{"type": "boolean"}')
    config = resolve({"grammar": str(path)})
    assert json.loads(config.grammar or "") == {"type": "boolean"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnavailableError) as raised:
        _ = config.processing
    assert "spsbench[grammar]" in (raised.value.remedy or "")

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.base.records import Processing
from spsbench.config.models import BeamSettings
from spsbench.config.resolution import resolve


def test_settings_are_read(tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.write_text("5 6\n7\n", encoding="utf-8-sig")
    asked = {"process": f"min_p=0.1:logit_bias=3:-1.5,4:2:bad_words={words}:convention=vllm"}
    assert resolve(asked).process.processing == Processing(
        min_p=0.1, logit_bias=((3, -1.5), (4, 2.0)), bad_words=((5, 6), (7,)), convention="vllm"
    )
    assert resolve({}).process.processing is None
    assert resolve({"process": "repetition_penalty=1"}).process.processing is None


def test_a_list_of_ids_may_be_longer_than_a_file_name() -> None:
    ids = ",".join(str(token) for token in range(200))
    process = resolve({"process": f"bad_words={ids}"}).process
    found = process.processing
    assert found is not None
    assert found.bad_words == tuple((token,) for token in range(200))
    assert process.bad_words == ids, "a resumed run reads its settings again"


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
        resolve({"process": f"{name}={value}"})
    assert raised.value.flag == f"--process {name}"


def test_a_step_that_a_convention_lacks_is_refused() -> None:
    with pytest.raises(UsageError, match="typical-p"):
        _ = resolve({"process": "typical_p=0.9:convention=vllm"}).process.processing


def test_a_schema_is_kept_and_needs_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "schema.json"
    path.write_text('{"type": "boolean"}', encoding="utf-8-sig")
    process = resolve({"process": f"grammar={path}"}).process
    assert json.loads(process.grammar or "") == {"type": "boolean"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnavailableError) as raised:
        _ = process.processing
    assert "spsbench[grammar]" in (raised.value.remedy or "")


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("minp=0.1", "--process: the setting minp is unknown. Did you mean min_p? Choose from min_p,"),
        (
            "min_p=0.1:frequency-penalty=1",
            "the setting frequency-penalty is unknown. Did you mean frequency_p",
        ),
        ("min_p", "--process: min_p has no value. Give min_p=VALUE; it is a number from 0 to below 1."),
        ("min_p=", "--process: min_p has no value."),
        ("min_p=0.1:min_p=0.2", "--process: min_p is given twice. Give it once."),
        (
            "min_p=0.1, typical_p=0.9",
            "--process: a comma stands before typical_p=0.9. Put a colon between: min_p=0.1:typical_p=0.9.",
        ),
        ("min_p=2", "--process min_p must be a number from 0 to below 1, got 2."),
        ("min_p=half", "--process min_p must be a number from 0 to below 1, got half."),
        ("min_new_tokens=1.5", "--process min_new_tokens must be a whole number from 0, got 1.5."),
        ("convention=mine", "--process convention must be transformers, vllm or llama-cpp, got mine."),
        ("", "an empty text"),
    ],
)
def test_what_is_typed_wrong_is_named_with_what_is_possible(typed: str, sentence: str) -> None:
    with pytest.raises(UsageError) as raised:
        resolve({"process": [typed]})
    assert sentence in str(raised.value)


def test_texts_that_are_typed_one_by_one_are_one() -> None:
    whole = resolve({"process": "min_p=0.1:frequency_penalty=0.3"})
    assert resolve({"process": ["frequency_penalty=0.3", "min_p=0.1"]}) == whole
    assert resolve({"process": {"min_p": 0.1, "frequency_penalty": 0.3}}) == whole
    assert str(whole.process) == "min_p=0.1:frequency_penalty=0.3"


def test_settings_are_written_and_read_again(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"const": "x:min_p=1"}')
    process = f"logit_bias=3:-1.5,4:2:grammar={tmp_path / 'schema.json'}"
    config = resolve({"process": process, "sampling": "greedy"})
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    again = resolve({}, tmp_path / "config.yaml")
    assert again.process == config.process
    assert json.loads(again.process.grammar or "") == {"const": "x:min_p=1"}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("process: {min_p: 2}", "config.yaml: process.min_p must be a number from 0 to below 1, got 2."),
        ("process: minp=2", "config.yaml: process: the setting minp is unknown."),
        ("process: {minp: 2}", "config.yaml: process.minp: the setting minp is unknown. Did you mean min_p?"),
        ("process: 3", "config.yaml: process must be settings as in min_p=0.1:frequency_penalty=0.3, got 3."),
        (
            "samplings: beam:width=0",
            "config.yaml: samplings beam:width must be a whole number from 1 to 10,000, got 0.",
        ),
    ],
)
def test_a_wrong_setting_of_a_file_names_the_file(tmp_path: Path, content: str, sentence: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(content)
    with pytest.raises(UsageError) as raised:
        resolve({}, file)
    assert sentence in str(raised.value)


def test_a_beam_search_has_its_options() -> None:
    config = resolve({"sampling": "greedy,beam:width=3:early_stopping=never"})
    assert config.beam == BeamSettings(width=3, early_stopping="never")
    assert resolve({"sampling": "greedy"}).beam is None

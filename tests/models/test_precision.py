"""In what target and draft are loaded, from what is written of dtypes and of quantised weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from spsbench.base.errors import UsageError
from spsbench.config import resolve
from spsbench.config.models import Precision


@pytest.mark.parametrize(
    ("flags", "target", "draft"),
    [
        ({}, "float32", "float32"),
        ({"dtype": "int8"}, "int8", "int8"),
        ({"quantise": "int8", "dtype": "auto"}, "float32+int8", "float32+int8"),
        ({"dtype": "bfloat16", "quantise": "int4"}, "bfloat16+int4", "bfloat16+int4"),
        ({"quantise": "int4", "draft_quantise": "none"}, "float32+int4", "float32"),
        ({"draft_quantise": "int8"}, "float32", "float32+int8"),
        ({"quantise": "int4", "draft_quantise": "int8"}, "float32+int4", "float32+int8"),
        ({"quantise": "int8", "draft_dtype": "bfloat16"}, "float32+int8", "bfloat16+int8"),
        ({"dtype": "int8", "draft_dtype": "float32"}, "int8", "float32"),  # as before --quantise
        ({"dtype": "int8", "draft_quantise": "none"}, "int8", "auto"),
        ({"draft_dtype": "int4"}, "float32", "int4"),
    ],
)
def test_what_is_said_of_both_models(flags: dict[str, str], target: str, draft: str) -> None:
    config = resolve(flags)  # the pair mini says float32
    assert (config.model_dtype, config.draft_model_dtype) == (target, draft)


@pytest.mark.parametrize("text", ["auto", "float16", "int4", "bfloat16+int8"])
def test_a_precision_is_written_as_it_is_read(text: str) -> None:
    assert str(Precision.read(text)) == text


def test_int8_alone_computes_in_the_checkpoints_own_dtype() -> None:
    assert Precision.read("int8") == Precision("auto", "int8")
    assert Precision.read("bfloat16+int4").bits == 4
    assert Precision.read("bfloat16").bits is None


@pytest.mark.parametrize(
    ("flags", "flag"),
    [
        ({"dtype": "int8", "quantise": "int8"}, "--quantise"),
        ({"draft_dtype": "int4", "draft_quantise": "none"}, "--draft-quantise"),
    ],
)
def test_two_spellings_together_are_refused(flags: dict[str, str], flag: str) -> None:
    with pytest.raises(UsageError, match=f"is short for {flag} int") as caught:
        resolve(flags)
    assert caught.value.flag == flag


def test_the_configuration_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    text = resolve({"dtype": "int8"}).to_yaml()
    kept = [
        line
        for line in text.splitlines()
        if not line.startswith(("quantise", "draft_quantise", "device_map"))
    ]
    assert len(kept) == len(text.splitlines()) - 3
    file.write_text("\n".join(kept))
    assert resolve({}, file) == resolve({"dtype": "int8"})

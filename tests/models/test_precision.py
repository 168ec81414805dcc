"""In what target and draft are loaded, from what is written of dtypes and of quantised weights."""

from __future__ import annotations

import pytest

from spsbench.base.errors import UsageError
from spsbench.base.records import number
from spsbench.config import resolve
from spsbench.config.models import Precision


@pytest.mark.parametrize(
    ("flags", "target", "draft"),
    [
        ({}, "float32", "float32"),
        ({"dtype": "int8"}, "int8", "int8"),
        ({"dtype": "auto+int8"}, "float32+int8", "float32+int8"),
        ({"dtype": "bfloat16+int4"}, "bfloat16+int4", "bfloat16+int4"),
        ({"dtype": "auto+int4:draft=auto+none"}, "float32+int4", "float32"),
        ({"dtype": "auto:draft=auto+int8"}, "float32", "float32+int8"),
        ({"dtype": "auto+int4:draft=auto+int8"}, "float32+int4", "float32+int8"),
        ({"dtype": "auto+int8:draft=bfloat16"}, "float32+int8", "bfloat16+int8"),
        ({"dtype": "int8:draft=float32"}, "int8", "float32"),  # int8 is a dtype
        ({"dtype": "int8:draft=auto+none"}, "int8", "auto"),
        ({"dtype": "auto:draft=int4"}, "float32", "int4"),
        ({"dtype": "auto+int4:draft=bfloat16+none"}, "float32+int4", "bfloat16"),
    ],
)
def test_what_is_said_of_both_models(flags: dict[str, str], target: str, draft: str) -> None:
    config = resolve(flags)  # the pair mini says float32
    assert (config.model_dtype, config.draft_model_dtype) == (target, draft)


@pytest.mark.parametrize("text", ["auto", "float16", "int4", "bfloat16+int8"])
def test_a_precision_is_written_as_it_is_read(text: str) -> None:
    read = Precision(text)
    assert Precision.of(read.dtype, read.quantise) == text


def test_int8_alone_computes_in_the_checkpoints_own_dtype() -> None:
    assert (Precision("int8").dtype, Precision("int8").quantise) == ("auto", "int8")
    assert Precision.of("auto", "int8") == Precision("int8")
    assert Precision("bfloat16+int4").bits == 4
    assert Precision("bfloat16").bits is None


@pytest.mark.parametrize(
    "dtype", ["int3", "int8+int8", "float32+", "+int8", "float32+none", "float32+int8+int4"]
)
def test_what_is_no_dtype_is_refused(dtype: str) -> None:
    with pytest.raises(
        UsageError, match="must be auto, float32, bfloat16, float16, int8 or int4, or a float"
    ):
        resolve({"dtype": dtype})


@pytest.mark.parametrize(
    ("typed", "ranks", "where"),
    [
        ("1", 1, "first"),
        ("2", 2, "first"),
        ("2:draft=first", 2, "first"),
        ("4:draft=replicated", 4, "replicated"),
    ],
)
def test_a_split_target_says_where_the_draft_is(typed: str, ranks: int, where: str) -> None:
    config = resolve({"tensor_parallel": number(typed)})
    assert (config.ranks, config.draft_placement) == (ranks, where)


@pytest.mark.parametrize("typed", ["2:draft=last", "1:draft=replicated", "2:", "two", ":draft=first"])
def test_a_split_that_is_none_is_refused(typed: str) -> None:
    with pytest.raises(UsageError, match="2:draft=replicated"):
        resolve({"tensor_parallel": typed})

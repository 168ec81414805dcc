"""What may be asked of processing: penalties, bias, bans, a minimum length, a grammar, and whose they are.

Written ``min_p=0.1:frequency_penalty=0.3``, or as a mapping.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_serializer

from spsbench.base.errors import UsageError
from spsbench.base.files import read_file
from spsbench.base.plugins import require_grammars, unknown
from spsbench.base.records import Processing, number


def _bias(text: str) -> str:
    for part in text.split(","):
        token, _, bias = part.partition(":")
        if int(token) < 0 or not abs(float(bias)) < 1e9:
            raise ValueError(part)
    return text


_WRITTEN_OUT = re.compile(r"[\d\s,+-]*")
"""Ids as they are typed; anything else is a path."""


def _words(text: str) -> str:
    """Read a file's token ids into the text that one would type, so that a run's settings hold them."""
    if not _WRITTEN_OUT.fullmatch(text):  # a file system takes no name as long as a list of ids may be
        path = Path(text)
        try:
            lines = read_file(path).decode("utf-8-sig").splitlines()
        except OSError as error:
            raise ValueError(str(error)) from error
        text = ",".join(line for line in lines if line.strip())
    if not all(ids and min(ids) >= 0 for ids in _ids(text)):
        raise ValueError(text)
    return text


def _ids(text: str) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(int, word.split())) for word in text.split(","))


def _schema_text(text: str) -> str:
    """The file's content, so that a run's settings hold it."""
    try:
        written = text if text.lstrip().startswith("{") else read_file(Path(text)).decode("utf-8-sig")
        schema = json.loads(written)
    except (OSError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(schema, dict):
        raise ValueError(text)
    return json.dumps(schema)


def _float(description: str, **limits: Any) -> Any:
    return Field(default=None, strict=True, allow_inf_nan=False, description=description, **limits)


class ProcessingSettings(BaseModel):
    """Of a run; each is off unless given."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    min_p: float | None = _float("a number from 0 to below 1", ge=0, lt=1)
    typical_p: float | None = _float("a number above 0 and at most 1", gt=0, le=1)
    repetition_penalty: float | None = _float("a number above 0, at most 100", gt=0, le=100)
    presence_penalty: float | None = _float("a number from -100 to 100", ge=-100, le=100)
    frequency_penalty: float | None = _float("a number from -100 to 100", ge=-100, le=100)
    logit_bias: Annotated[str, AfterValidator(_bias)] | None = Field(
        default=None, description="ID:BIAS,... with token ids from 0, e.g. 11:1.5,13:-5"
    )
    min_new_tokens: int | None = Field(default=None, ge=0, strict=True, description="a whole number from 0")
    bad_words: Annotated[str, AfterValidator(_words)] | None = Field(
        default=None, description="token ids from 0, e.g. '12 7,345', or a file with one word a line"
    )
    grammar: Annotated[str, AfterValidator(_schema_text)] | None = Field(
        default=None, description="a file with a JSON schema"
    )
    convention: Literal["transformers", "vllm", "llama-cpp"] | None = Field(
        default=None, description="transformers, vllm or llama-cpp"
    )

    def __str__(self) -> str:
        return ":".join(f"{name}={value}" for name, value in self._switched_on().items())

    @model_serializer
    def _switched_on(self) -> dict[str, Any]:
        return {name: value for name in PROCESSING if (value := getattr(self, name)) is not None}

    @property
    def processing(self) -> Processing | None:
        """Return what happens to logits; None for nothing."""
        options = self._switched_on()
        if "logit_bias" in options:
            pairs = (part.partition(":") for part in options["logit_bias"].split(","))
            options["logit_bias"] = tuple((int(token), float(bias)) for token, _, bias in pairs)
        if "bad_words" in options:
            options["bad_words"] = _ids(options["bad_words"])
        wanted = Processing(**options)
        if wanted.convention == "vllm" and wanted.typical_p < 1:
            remedy = "Leave it out, or convention=vllm."
            raise UsageError("vLLM has no typical-p.", flag="--process typical_p", remedy=remedy)
        if wanted.grammar is not None:
            require_grammars()
        return None if wanted == Processing() else wanted


PROCESSING = tuple(ProcessingSettings.model_fields)
"""Names of the settings."""

_BETWEEN = re.compile(r":(?=[A-Za-z_-]+=)")
"""A colon before the next name; one in a value, as of ``logit_bias=12:-5``, is no end of it."""


_COMMA = re.compile(rf",\s*(?=(?:{'|'.join(PROCESSING)})=)")
"""A comma before the next name."""


def parse_processing(texts: Sequence[str], flag: str = "--process") -> dict[str, Any]:
    """Read one or more texts like ``min_p=0.1:frequency_penalty=0.3`` as settings, not yet checked.

    Raises:
        UsageError: a name is unknown or comes twice, or there is no value.
    """
    settings: dict[str, Any] = {}
    for part in (part for text in texts for part in _BETWEEN.split(text)):
        if joined := _COMMA.search(part):
            remedy = f"Put a colon between: {':'.join(_COMMA.split(part))}."
            raise UsageError(f"a comma stands before {part[joined.end() :]}.", flag=flag, remedy=remedy)
        name, equals, value = (each.strip() for each in part.partition("="))
        if name not in PROCESSING:
            raise unknown(name, PROCESSING, flag, sort="setting" if name else "")
        if not (equals and value):
            remedy = f"Give {name}=VALUE; it is {ProcessingSettings.model_fields[name].description}."
            raise UsageError(f"{name} has no value.", flag=flag, remedy=remedy)
        if name in settings:
            raise UsageError(f"{name} is given twice.", flag=flag, remedy="Give it once.")
        typed = get_args(ProcessingSettings.model_fields[name].annotation)
        settings[name] = number(value) if {int, float} & {*typed} else value
    return settings

"""What readers of ``run.json`` rely on: the types of what they look at, checked before they do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from spsbench.errors import UsageError


class _Told(BaseModel):
    # What is not named here is shown or kept as it is; runs of other ages may lack or add fields.
    model_config = ConfigDict(extra="allow", strict=True)


class _Arm(_Told):
    arm: str
    method: str
    k: int = Field(ge=0)
    engine: str
    sampling: str


class _Experts(_Told):
    bytes: int = Field(ge=0)
    count: int = Field(ge=1)
    per_token: int = Field(ge=1)


class _Model(_Told):
    dtype: str | None = None
    parameters: int | None = Field(default=None, ge=0)
    forward_bytes: int | None = Field(default=None, ge=0)
    kv_bytes_per_token: int | None = Field(default=None, ge=0)
    experts: _Experts | None = None


class _Models(_Told):
    target: _Model | None = None
    draft: _Model | None = None


class _Run(_Told):
    created_utc: str | None = None
    task: str | None = None
    task_label: str | None = None
    headline_metric: str | None = None
    synthetic: bool = False
    pair: str | None = None
    extract: str | None = None
    arms: list[_Arm] | None = None
    expected_sequences: int | dict[str, int] | None = None
    verification_rule: str | dict[str, str | None] | None = None
    target_mode: str | dict[str, str | None] | None = None
    draft_mode: str | dict[str, str | None] | None = None
    engine_fallbacks: dict[str, str] | None = None
    models: _Models | None = None
    bandwidth_bytes_per_s: FiniteFloat | None = Field(default=None, gt=0)
    cache_bytes: int | None = Field(default=None, ge=0)
    conditions: list[dict[str, Any]] | None = None
    stolen_share: FiniteFloat | None = None
    environment: dict[str, Any] | None = None
    token_texts: dict[str, str] | None = None


def require_shape(path: Path, content: dict[str, Any]) -> None:
    """Check the content of a run's ``run.json``.

    Raises:
        UsageError: something in it is not of the type that it always has.
    """
    try:
        _Run.model_validate(content)
    except ValidationError as problem:
        first = problem.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UsageError(
            f"{path} is damaged ({place}: {first['msg']}).",
            flag="RUN",
            remedy="Restore the file or start a new run.",
        ) from problem

"""What ``run.json`` holds, by element: what reads it may rely on these types, in any folder.

What is not named here is shown or kept as it is; runs of other ages may lack or add fields. Where
``summary_types`` declares a part, that declaration is used.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from spsbench.config.models import MOST_ARMS
from spsbench.store.shape import fault_of
from spsbench.store.summary_types import Conditions, Proof, Remeasured, Stopping

_MOST_SHARDS = 10_000
_LONGEST = 10_000
"""Characters of a text that names or describes something."""


class _Told(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


def _check_of_type(wanted: Any) -> AfterValidator:
    """It needs no more than that type."""

    def checked(value: Any) -> Any:
        if fault := fault_of(value, wanted):
            raise ValueError(fault)
        return value

    return AfterValidator(checked)


def _require_shard(text: str) -> str:
    index, slash, count = text.partition("/")
    digits = all(part.isascii() and part.isdecimal() and len(part) < 7 for part in (index, count))
    if not (slash and digits and 1 <= int(index) <= int(count) <= _MOST_SHARDS):
        raise ValueError("it must be i/n with i from 1 to n")
    return text


Text = Annotated[str, Field(max_length=_LONGEST)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[FiniteFloat, Field(gt=0)]
Facts = dict[str, Any]
"""Shown value by value, however deep."""


class _Processing(_Told):
    """See ``Processing``; a field of no such name would be one of another version."""

    model_config = ConfigDict(extra="forbid", strict=True)

    min_p: FiniteFloat = 0.0
    typical_p: FiniteFloat = 1.0
    repetition_penalty: FiniteFloat = 1.0
    presence_penalty: FiniteFloat = 0.0
    frequency_penalty: FiniteFloat = 0.0
    logit_bias: list[list[FiniteFloat]] = []
    min_new_tokens: Count = 0
    bad_words: list[list[int]] = []
    grammar: str | None = None
    convention: Text = "transformers"


class _Sampling(_Told):
    temperature: FiniteFloat | None = None
    top_k: int | None = None
    top_p: FiniteFloat | None = None
    greedy: bool = False
    beam: Facts | None = None
    process: _Processing | None = None


class _Arm(_Told):
    arm: Text
    method: Literal["ars", "sps", "draft"]
    k: Annotated[int, Field(ge=0, le=1_000)]
    engine: Text
    sampling: Text
    drafter: Text | None = None
    rule: Text | None = None
    policy: Text | None = None
    batch: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    called: Text = ""
    params: _Sampling | None = None
    draft_forwards: FiniteFloat | None = None
    lossless: bool | None = None
    enumerated: Text | None = None


class _Experts(_Told):
    bytes: Count
    count: int = Field(ge=1)
    per_token: int = Field(ge=1)


class _SelfTest(_Told):
    bits: str | None = None


class _Model(_Told):
    name: Text | None = None
    revision: Text | None = None
    fingerprint: Text | None = None
    model_type: Text | None = None
    quantization: Text | None = None
    backend: Text | None = None
    dtype: Text | None = None
    parameters: Count | None = None
    forward_bytes: Count | None = None
    kv_bytes_per_token: Count | None = None
    experts: _Experts | None = None
    self_test: _SelfTest | None = None


class _Models(_Told):
    target: _Model | None = None
    draft: _Model | None = None
    threads: int | Text | None = None


class _IdentifiedPair(_Told):
    target: _Model | None = None
    draft: _Model | None = None


class _IdentifiedArm(_Told):
    sampling_name: Text | None = None
    sampling: _Sampling | None = None


class _Identity(_Told):
    """What two measurements of one run share; any other value of it is compared as it stands."""

    task: Text | None = None
    data: Facts | str | None = None
    pair: _IdentifiedPair | None = None
    arms: list[_IdentifiedArm | Text] | None = Field(default=None, max_length=MOST_ARMS)
    max_new_tokens: int | None = Field(default=None, ge=1)
    fixed_length: bool | None = None
    stop: list[str] | None = None
    dtype: Text | None = None
    device: Text | None = None
    quantiser: Text | None = None
    seed: Count | None = None
    shard: Annotated[str, AfterValidator(_require_shard)] | None = None


class _Engine(_Told):
    engine: Text
    version: Text | None
    settings: Facts
    limits: list[str]
    unseen: list[str]
    separate: bool = False


class _Metric(_Told):
    higher_is_better: bool = True
    margin: Positive = 0.01
    signature: str | None = None
    columns: list[str] | None = None


class _Cpu(_Told):
    model: Text | None = None
    usable_threads: int | None = None


class _Git(_Told):
    commit: Text | None = None
    dirty: bool | None = None


class _Environment(_Told):
    spsbench: Text | None = None
    git: _Git | None = None
    time_utc: Text | None = None
    command: str | list[str] | None = None
    python: Text | None = None
    cpu: _Cpu | None = None
    gpus: list[Any] | None = None
    libraries: dict[str, Text | None] | None = None


class _WorkersCpu(_Told):
    model: Text | None
    usable_threads: int | None


class _WorkersEnvironment(_Told):
    cpu: _WorkersCpu


class _Worker(_Told):
    session: int = Field(default=1, ge=0)
    machine: Text
    condition: Count
    environment: _WorkersEnvironment


class _UsualEngine(_Told):
    name: Text
    reason: str | None = None


class _GpuState(_Told):
    sm_clock_mhz: FiniteFloat | None = None
    temperature_c: FiniteFloat | None = None


class _Gpu(_Told):
    device: Text
    name: Text
    driver: Text | None = None
    cuda: Text | None = None
    cudnn: Text | None = None
    capability: Text | None = None
    power_limit_w: FiniteFloat | None = None
    power_limit_default_w: FiniteFloat | None = None
    sm_clock_most_mhz: FiniteFloat | None = None
    memory_bytes: Count | None = None
    before: _GpuState | None = None
    after: _GpuState | None = None
    attention: dict[str, Text] | None = None


class _Energy(_Told):
    source: Text | None = None
    update_s: FiniteFloat | None = None
    reason: Text | None = None


class _Data(_Told):
    source: str | None = None
    revision: Text | None = None
    split: Text | None = None
    split_size: Count | None = None


class _Run(_Told):
    created_utc: Annotated[str, Field(max_length=100)] | None = None
    identity: _Identity | None = None
    task: Text | None = None
    task_label: Text | None = None
    headline_metric: Text | None = None
    metrics: dict[str, _Metric] | None = None
    synthetic: bool = False
    pair: Text | None = None
    model: Text | None = None
    tags: dict[str, str] | None = None
    changed_sampling: list[Literal["temperature", "top_k", "top_p"]] | None = None
    shard: Annotated[str, AfterValidator(_require_shard)] | None = None
    shards: list[Facts] | None = Field(default=None, max_length=_MOST_SHARDS)
    data: _Data | str | None = None
    extract: Text | None = None
    command: str | list[str] | None = None
    arms: list[_Arm] | None = Field(default=None, max_length=MOST_ARMS)
    expected_sequences: Count | dict[str, Count] | None = None
    truncated_prompts: Count | None = None
    verification_rule: str | dict[str, str | None] | None = None
    target_mode: str | dict[str, str | None] | None = None
    draft_mode: str | dict[str, str | None] | None = None
    engine_fallbacks: dict[str, str] | None = None
    usual_engine: _UsualEngine | None = None
    engines: dict[str, _Engine] | None = None
    engines_left_out: dict[str, str] | None = None
    models: _Models | None = None
    bandwidth_bytes_per_s: Positive | None = None
    cache_bytes: Count | None = None
    cache_shared: bool | None = None
    peak_memory_bytes: Count | None = None
    device_peak_bytes: Count | None = None
    conditions: list[Annotated[Facts, _check_of_type(Conditions)]] | None = None
    gpu: _Gpu | None = None
    workers: list[_Worker] | None = None
    stolen_share: FiniteFloat | None = None
    energy: _Energy | None = None
    environment: _Environment | None = None
    interval: Text | None = None
    proof: Annotated[Facts, _check_of_type(Proof)] | None = None
    stopping: Annotated[Facts, _check_of_type(Stopping)] | None = None
    remeasured: Annotated[Facts, _check_of_type(Remeasured)] | None = None
    corpus_figures: dict[str, dict[str, Any]] | None = None
    resumed: list[Facts] | None = None
    token_texts: dict[str, str] | None = None


def run_fault(content: Any) -> str | None:
    """Return what in a ``run.json`` is not of its type, by its place; None if nothing is."""
    # Half a character, as in a path that is not UTF-8, is a text like any other.
    text = json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")
    try:
        _Run.model_validate(json.loads(text))
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        return f"{place}: {first['msg']}"
    return None

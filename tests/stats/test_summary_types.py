"""What ``summarise`` writes is what ``summary_types`` says, key for key; mypy cannot see into the tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from types import UnionType
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

import pandas as pd
import pytest
from support.simulated_sweep import sweep
from support.summarised import summarise
from support.synthetic_run import measured

from spsbench.store.summary_types import Summary

ENERGY = {"source": "RAPL (package-0)", "update_s": 0.001, "reason": None}
MODELS = {"target": {"parameters": 8_000_000, "dtype": "float32"}, "draft": {"parameters": 800_000}}


def faults(value: Any, kind: Any, path: str) -> Iterator[str]:
    """Where JSON is not of a type: ``path: what is wrong``."""
    origin = get_origin(kind)
    if is_typeddict(kind):
        yield from _faults_of_object(value, kind, path)
    elif origin is Literal:
        if value not in get_args(kind):
            yield f"{path}: {value!r} is none of {get_args(kind)}"
    elif origin in (Union, UnionType):
        found = [list(faults(value, one, path)) for one in get_args(kind)]
        yield from max(found, key=len) if all(found) else ()
    elif origin in (list, dict):
        yield from _faults_of_parts(value, kind, path)
    elif kind is not Any and type(value) not in ((int, float) if kind is float else (kind,)):
        yield f"{path}: {value!r} is no {kind.__name__}"


def _faults_of_parts(value: Any, kind: Any, path: str) -> Iterator[str]:
    if not isinstance(value, get_origin(kind)):
        yield f"{path}: {value!r} is no {get_origin(kind).__name__}"
        return
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield from faults(part, get_args(kind)[-1], f"{path}[{key}]")


def _faults_of_object(value: Any, kind: Any, path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path}: {value!r} is no {kind.__name__}"
        return
    hints = get_type_hints(kind, include_extras=True)
    yield from (f"{path}.{key} is in no type" for key in value if key not in hints)
    for key, hint in hints.items():
        marked = get_origin(hint) is NotRequired
        if key in value:
            yield from faults(value[key], get_args(hint)[0] if marked else hint, f"{path}.{key}")
        elif kind.__total__ and not marked:
            yield f"{path}.{key} is missing"


TABLES = ("sweep", "no loops", "nothing", "processes", "conditions", "contention", "energy", "no energy")


@cache
def _tables() -> dict[str, tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]]:
    samples, loops = sweep()
    halves = [samples.assign(process=index) for index in (0, 1)]
    both = [loops.assign(process=index) for index in (0, 1)]
    parted = samples.assign(condition=[index % 2 for index in range(len(samples))])
    return {
        "sweep": (samples, loops, {"models": MODELS, "bandwidth_bytes_per_s": 1e10, "extract": "fence"}),
        "no loops": (samples, loops.iloc[:0], {}),
        "nothing": (samples.iloc[:0], loops.iloc[:0], {}),
        "processes": (pd.concat(halves, ignore_index=True), pd.concat(both, ignore_index=True), {}),
        "conditions": (parted, loops, {"conditions": [{"threads": 1}, {"threads": 2}]}),
        "contention": (samples.assign(conditions=[{"waited_s": 0.5}] * len(samples)), loops, {}),
        "energy": (samples.assign(conditions=[{"energy_j": 2.0}] * len(samples)), loops, {"energy": ENERGY}),
        "no energy": (samples, loops, {"energy": {"source": None, "update_s": None, "reason": "no RAPL"}}),
    }


@pytest.mark.thorough_but(2)
@pytest.mark.parametrize("name", TABLES)
def test_every_key_of_a_summary_is_in_the_types(name: str) -> None:
    assert tuple(_tables()) == TABLES
    written = json.loads(json.dumps(summarise(*_tables()[name])))
    assert list(faults(written, Summary, "summary")) == []


def test_so_is_every_key_of_a_run() -> None:
    assert list(faults(json.loads(json.dumps(measured().summary)), Summary, "summary")) == []


@pytest.mark.thorough_but(2)
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"complete": 1}, "summary.complete: 1 is no bool"),
        ({"speed": 1}, "summary.speed is in no type"),
        ({"rows": {}}, "summary.rows: {} is no list"),
        ({"parity": {"metric": "x", "comparisons": []}}, "summary.parity.target_over_draft is missing"),
        ({"losslessness": {"verdict": "fine", "bound": None, "arms": []}}, "'fine' is none of"),
    ],
)
def test_the_check_sees_what_is_wrong(change: dict[str, Any], fault: str) -> None:
    written = json.loads(json.dumps(summarise(*sweep(ks=(0, 4)), {}) | change))
    assert any(fault in found for found in faults(written, Summary, "summary"))

"""A run on a GPU goes on under what it began with; what is not known on one side is no change."""

from __future__ import annotations

from typing import Any

import pytest

from spsbench.runner.conditions import comparable
from spsbench.store import differences
from spsbench.store.schema import joined

CPU: dict[str, Any] = {"threads": 1, "cpu": "AMD EPYC", "gpus": [], "torch": "2.13.0"}
GPU = CPU | {
    "gpus": ["NVIDIA H100"],
    "gpu_uuid": "GPU-8a1f",
    "gpu_mig": False,
    "gpu_ecc": True,
    "gpu_power_limit_w": 700.0,
    "gpu_driver": "535.183.01",
    "cuda": "12.8",
    "cudnn": "9.10.2",
    "tf32": False,
    "matmul_precision": "highest",
}


def changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [line.strip() for line in differences(before, comparable(now, before))]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("gpu_driver", "580.65.06", "gpu_driver: 535.183.01 -> 580.65.06"),
        ("gpu_power_limit_w", 400.0, "gpu_power_limit_w: 700.0 -> 400.0"),
        ("gpu_uuid", "GPU-4e1f", "gpu_uuid: GPU-8a1f -> GPU-4e1f"),
        ("gpu_mig", True, "gpu_mig: False -> True"),
        ("cuda", "13.0", "cuda: 12.8 -> 13.0"),
        ("tf32", True, "tf32: False -> True"),
        ("gpus", ["NVIDIA A100"], "gpus: ['NVIDIA H100'] -> ['NVIDIA A100']"),
    ],
)
def test_another_gpu_driver_or_setting_is_a_change(name: str, value: object, line: str) -> None:
    assert changes(GPU, GPU) == []
    assert changes(GPU, GPU | {name: value}) == [line]


@pytest.mark.parametrize("name", [name for name in GPU if name not in CPU])
def test_what_one_side_does_not_know_is_no_change_and_stays_recorded(name: str) -> None:
    assert changes(GPU, GPU | {name: None}) == []
    assert comparable(GPU | {name: None}, GPU)[name] == GPU[name]  # type: ignore[arg-type, literal-required]
    assert changes(GPU | {name: None}, GPU) == []
    without = {key: value for key, value in GPU.items() if key != name}
    assert changes(without, GPU) == []


def test_shards_on_two_boards_of_one_kind_are_of_one_condition() -> None:
    infos = [{"conditions": [GPU]}, {"conditions": [GPU | {"gpu_uuid": "GPU-4e1f"}]}]
    assert joined(infos, [[0], [0]]) == [GPU | {"gpu_uuid": None}]
    infos[1]["conditions"][0]["gpu_driver"] = "580.65.06"
    assert len(joined(infos, [[0], [0]])) == 2
    assert joined([{"conditions": [CPU]}] * 2, [[0], [0]]) == [CPU]

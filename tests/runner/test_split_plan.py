"""What cannot be split over processes is refused before a weight is loaded; what can is planned as such."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_models import config_of, make, pair_of, save, save_seq2seq
from torch.distributed import DistStoreError

from spsbench.base.cluster import started
from spsbench.base.errors import UsageError
from spsbench.config import resolve
from spsbench.models import tensor_parallel as ranks
from spsbench.models.tensor_parallel import Meter, Ranks, checksum, require_splittable
from spsbench.runner import plan
from spsbench.runner.conditions import meter_of
from spsbench.runner.ranks import among_ranks


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this process were the first of two."""
    monkeypatch.setattr(ranks, "_joined", [Ranks(0, 2, torch.device("cpu"), "first")])


def planned(**flags: Any) -> Any:
    return plan(resolve({"tensor_parallel": 2, "device": "cpu", "limit": 1, **flags}))


def test_a_split_run_is_over_torch_and_says_so_in_its_identity(joined: None) -> None:
    split, whole = planned(), planned(tensor_parallel=1, backend="torch")
    assert split.backend == "torch"
    assert split.fallback is None
    assert split.identity() == whole.identity() | {"tensor_parallel": 2, "draft_placement": "first"}
    assert split.label() == f"{whole.label()}, target split over 2 processes"


@pytest.mark.parametrize(
    ("flags", "flag"),
    [
        ({"backend": "onnxruntime"}, "--backend"),
        ({"engine": "hf-generate"}, "--engine"),
        ({"engine": "graphed"}, "--engine"),
        ({"sampling": "beam"}, "--sampling"),
        ({"batch": "1,2"}, "--batch"),
        ({"drafter": "early-exit"}, "--drafter"),
        ({"drafter": "quantised"}, "--drafter"),
        ({"dtype": "int8"}, "--dtype"),
        ({"tensor_parallel": 3}, "--tensor-parallel"),  # of 4 heads
    ],
)
def test_what_needs_a_target_whole_is_refused(joined: None, flags: dict[str, Any], flag: str) -> None:
    with pytest.raises(UsageError) as caught:
        planned(**flags)
    assert caught.value.flag == flag
    assert caught.value.remedy


def test_a_run_that_was_not_started_as_several_is_refused() -> None:
    with pytest.raises(UsageError, match="this one was started alone"):
        planned()


@pytest.mark.parametrize(
    ("started", "asked", "said"),
    [
        ("1", 2, "started alone.*torchrun --nproc-per-node 2 -m spsbench"),
        ("3", 2, "3 were started"),
        ("2", 1, "each would carry out the whole run"),
    ],
)
def test_the_number_of_processes_must_be_right(
    monkeypatch: pytest.MonkeyPatch, started: str, asked: int, said: str
) -> None:
    monkeypatch.setitem(os.environ, "WORLD_SIZE", started)
    with (
        pytest.raises(UsageError, match=said),
        among_ranks(resolve({"tensor_parallel": asked, "device": "cpu"})),
    ):
        pass


def test_a_number_of_processes_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for told in ("many", "", "0", "-1"):
        monkeypatch.setitem(os.environ, "WORLD_SIZE", told)
        with pytest.raises(UsageError, match="not a number of processes"):
            started()
    monkeypatch.delitem(os.environ, "WORLD_SIZE")
    assert started() == 1


class Waiting:
    """A store of which the other process has told, or has not."""

    def __init__(self, come: bool) -> None:
        self.come, self.keys = come, list[str]()

    def set(self, key: str, value: str) -> None:
        self.keys.append(key)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        assert keys == ["spsbench/0", "spsbench/1"]
        assert timeout < timedelta(hours=1)
        if not self.come:
            raise DistStoreError("wait timeout")


@pytest.mark.parametrize("come", [True, False])
def test_a_process_that_never_comes_is_waited_for_some_minutes(
    monkeypatch: pytest.MonkeyPatch, come: bool
) -> None:
    began: list[timedelta] = []
    store = Waiting(come)
    monkeypatch.setattr(ranks, "rendezvous", lambda *_, **__: iter([(store, 0, 2)]))
    monkeypatch.setattr(
        ranks.distributed, "init_process_group", lambda *_, timeout, **__: began.append(timeout)
    )
    if come:
        ranks._meet(torch.device("cpu"))
    else:
        with pytest.raises(ranks.RanksFault, match=r"did not all join within 10 min \(wait timeout\)"):
            ranks._meet(torch.device("cpu"))
    assert store.keys == ["spsbench/0"]
    assert began == [timedelta(days=7)] * come


def test_one_device_for_all_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "WORLD_SIZE", "2")
    with (
        pytest.raises(UsageError, match="each process has its own"),
        among_ranks(resolve({"tensor_parallel": 2, "device": "cuda:0"})),
    ):
        pass


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    made = {name: save(make(config_of(name)), folder / name) for name in ("llama", "gpt2", "bloom")}
    six = make(config_of("llama", num_attention_heads=6, num_key_value_heads=3, hidden_size=48))
    return made | {"six": save(six, folder / "six"), "t5": save_seq2seq("t5", folder / "t5")}


@pytest.mark.parametrize(
    ("name", "size", "said"),
    [
        ("gpt2", 2, "has no tensor parallel plan"),
        ("bloom", 2, "has no tensor parallel plan"),
        ("t5", 2, "is an encoder-decoder"),
        ("llama", 3, "has 4 attention heads, which 3 does not divide"),
        ("llama", 4, "has 2 heads of keys and values, which 4 does not divide"),
        ("six", 2, "has 3 heads of keys and values, which 2 does not divide"),
    ],
)
def test_a_target_that_cannot_be_split_is_refused(
    models: dict[str, Path], name: str, size: int, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        require_splittable(pair_of(models[name]).target, size)


def test_one_that_can_is_not(models: dict[str, Path]) -> None:
    require_splittable(pair_of(models["llama"]).target, 2)
    require_splittable(pair_of(models["six"]).target, 3)


def test_a_collective_within_another_counts_once() -> None:
    meter = Meter()
    inner = meter.timed(lambda: sum(range(1000)))
    outer = meter.timed(lambda: [inner(), inner()])
    outer()
    assert meter.calls == 1
    assert meter.communicated() > 0.0
    assert meter.communicated() == 0.0


def test_checksums_tell_sequences_apart() -> None:
    sums = {checksum(numbers) for numbers in ([], [0], [0, 0], [1, 2], [2, 1], [1 << 40])}
    assert len(sums) == 6
    assert all(0 <= found < 1 << 62 for found in sums)


def test_the_energy_of_one_board_is_not_that_of_all() -> None:
    found = meter_of(torch.device("cuda"), processes=2)
    assert found.meter is None
    assert "energy is counted for one alone" in str(found.record())

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spsbench.models import bandwidth


def test_the_bandwidth_is_bytes_over_the_best_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([5.0, 0.4, 0.2, 0.3, 0.4, 0.5])  # the first warms up
    sizes = []

    def timed(data: torch.Tensor) -> float:
        sizes.append(data.nbytes)
        return next(seconds)

    monkeypatch.setattr(bandwidth, "_seconds", timed)
    monkeypatch.setattr(bandwidth, "cache_bytes", lambda device: 1 << 20)
    found = bandwidth.measured_bandwidth(torch.device("cpu"))
    assert found == sizes[0] / 0.2
    assert sizes[0] >= 8 << 20


def test_without_memory_there_is_no_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(data: torch.Tensor) -> float:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(bandwidth, "_seconds", full)
    assert bandwidth.measured_bandwidth(torch.device("cpu")) is None


def test_the_largest_cache_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index, size in enumerate(("32K\n", "33792K\n", "1M\n", "broken\n")):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        (folder / "size").write_text(size)
    (tmp_path / "index9").mkdir()
    monkeypatch.setattr(bandwidth, "_SYSTEM_CACHES", tmp_path)
    assert bandwidth.cache_bytes() == 33792 * 1024
    monkeypatch.setattr(bandwidth, "_SYSTEM_CACHES", tmp_path / "nowhere")
    assert bandwidth.cache_bytes(torch.device("cpu")) is None

"""Memory of a run on an emulated device: said before it loads, recorded after it, and short of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.commandline import ALONE, BRIEF, call
from support.device import emulated

from spsbench.models import loading

pytestmark = pytest.mark.thorough

RUN = ("run", *BRIEF, *ALONE[:-1], "--limit", 1, "--max-new-tokens", 6, "--k", "2", "--device", "cuda")


def test_what_it_needs_is_said_and_its_peak_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directly = list[bool]()
    real = loading._one_by_one

    def counted() -> object:
        directly.append(True)
        return real()

    monkeypatch.setattr(loading, "_one_by_one", counted)
    with emulated() as device:
        result = call(*RUN, "--engine", "eager", "--out", tmp_path / "run")
    assert result.code == 0, result.err
    said = " ".join(result.err.split())
    assert re.search(
        r", cuda:0, which needs [1-9]\d+ MiB of 80\.0 GiB free: weights 2\d MiB, caches [1-9]", said
    )
    assert directly == [True, True]
    peak = json.loads((tmp_path / "run" / "run.json").read_text())["device_peak_bytes"]
    assert 20e6 < peak <= device.peak_bytes
    assert peak < 200e6, "the array that measures bandwidth is not the run's"

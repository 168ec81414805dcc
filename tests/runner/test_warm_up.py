"""An arm that fails while it is warmed up is left out; the others are measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commandline import BRIEF, SMALL, call

from spsbench.engines.local import EagerEngine
from spsbench.models.messages import TAKES_LESS

ASKED = (*SMALL[:6], "--set", "warmup=true", "--no-score", "--no-proof", "--quiet")


def breaking(monkeypatch: pytest.MonkeyPatch, *ks: int) -> None:
    """Arms of these K fail as a device without memory would."""
    real = EagerEngine.generate

    def generate(self: EagerEngine, request: Any) -> Any:
        if self._k in ks:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0\nmore lines")
        return real(self, request)

    monkeypatch.setattr(EagerEngine, "generate", generate)


def test_the_other_arms_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    breaking(monkeypatch, 3)
    run = tmp_path / "run"
    result = call("run", *BRIEF, *ASKED[:-1], "--k", "2,3", "--out", run)
    assert result.code == 5, "its sequences are missing"
    reason = f"out of memory: 2.00 GiB more did not fit. {TAKES_LESS}".rstrip(".")
    assert f"sps-k3-nucleus is left out, it failed while it was warmed up: {reason}." in result.err
    assert json.loads((run / "run.json").read_text())["engines_left_out"] == {"sps-k3-nucleus": reason}
    arms = {json.loads(line)["arm"] for line in (run / "samples.jsonl").read_text().splitlines()}
    assert arms == {"ars-nucleus", "sps-k2-nucleus"}


def test_where_none_is_left_it_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    breaking(monkeypatch, 0, 2)
    result = call("run", *BRIEF, *ASKED, "--k", "2", "--out", tmp_path / "run")
    assert result.code == 3
    assert "every arm failed while it was warmed up: out of memory: 2.00 GiB more did" in result.err
    assert "fault of spsbench" not in result.err

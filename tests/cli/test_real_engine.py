"""A real engine of others from the package index: fetched, converted for, audited, run and removed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commandline import SMALL, Cli

pytestmark = pytest.mark.thorough

NAME = "onnxruntime-genai"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """ONNX Runtime GenAI (55 MB to fetch) in a cache of its own.

    Only under ``CI``, where every package comes from the same index: elsewhere the suite asks no network.
    """
    from support.commandline import call

    if not os.environ.get("CI"):
        pytest.skip("only under CI: it takes a package index")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPSBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        done = call("get", NAME, "--quiet")
        if done.code == 3:
            pytest.skip(f"the package index is out of reach: {done.err}")
        assert done.code == 0, done.err
        yield NAME
        gone = call("get", NAME, "--remove")
        assert gone.code == 0, gone.err
        assert "freed" in gone.out


def test_it_is_audited(engine: str, cli: Cli, tmp_path: Path) -> None:
    """Quiet at top-p 1, plain and speculating; few texts, so the bound is wide."""
    asked = ("--bound", "60%", "--texts", "20", "--limit", "20", "--max-new-tokens", "32", "--json")
    asked += ("--temperature", "1", "--top-p", "1")
    done = cli("audit", "--engine", engine, *asked, "--out", tmp_path / "audit")
    rows = json.loads(done.out)["rows"]
    assert [row["setting"] for row in rows] == ["plain, T=1", "K=4, T=1"]
    assert all(row["impossible"] == 0 and row["decision"] != "alarm" for row in rows), done.err
    assert not any(row["failures"] for row in rows)


def test_it_is_an_arm(engine: str, cli: Cli, tmp_path: Path) -> None:
    """Greedy, so that its texts are ours, token for token."""
    asked = ("--engine", f"eager,{engine}", "--k", "2", "--sampling", "greedy", *SMALL, "--no-proof")
    done = cli("run", "xsum", *asked, "--no-score", "--out", tmp_path / "run", "--json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)["rows"]
    assert {(row["engine"], row["method"]) for row in rows} == {
        *((name, method) for name in ("eager", engine) for method in ("ars", "sps"))
    }
    arms = json.loads((tmp_path / "run" / "summary.json").read_text())["losslessness"]["arms"]
    same = [arm["identity"]["identical"] for arm in arms if arm["identity"] is not None]
    assert same
    assert set(same) == {1.0}

"""README's command on hub ids, against a hub on this machine: offline and interrupted in own processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.commandline import SMALL, Result, call, journal
from support.hub import Hub, connected, environment
from support.tiny_models import CHAT_TEMPLATE, make_pair, make_tokenizer, save

pytestmark = pytest.mark.thorough

PAIR = ("Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B")
TARGET, DRAFT = PAIR
ROOT = Path(__file__).parents[2]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """The pair of README, tiny: logits padded unlike, shards, a template, several EOS."""
    root = tmp_path / "served"
    tokenizer = make_tokenizer(chat_template=CHAT_TEMPLATE)
    for name, model, size in zip(
        PAIR,
        make_pair("qwen3", vocab_sizes=(272, 264), max_position_embeddings=4096),
        ("60KB", "5GB"),
        strict=True,
    ):
        folder = save(model.bfloat16(), root / "models" / name, tokenizer, max_shard_size=size)
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [257, 256]}))
    with Hub(root) as hub:
        yield hub


def typed(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "spsbench", *map(str, arguments)]


def started(hub: Hub, home: Path, *arguments: object, **variables: str) -> subprocess.Popen[str]:
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(home)}
    return subprocess.Popen(
        typed(*arguments),
        env=os.environ | environment(hub, home) | own | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def done(hub: Hub, home: Path, *arguments: object, **variables: str) -> tuple[int, str, str]:
    process = started(hub, home, *arguments, **variables)
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def done_here(hub: Hub, home: Path, *arguments: object) -> Result:
    """Of this process, which knows of the hub no more than a new one."""
    with pytest.MonkeyPatch.context() as patch, connected(hub, home, patch):
        return call(*arguments)


def command(out: Path, *more: object) -> tuple[object, ...]:
    return (
        "run",
        "humaneval",
        "--target",
        TARGET,
        "--draft",
        DRAFT,
        *SMALL,
        "--no-score",
        "--remeasure",
        "0",
        *more,
        "--out",
        out,
    )


def tokens(run: Path) -> list[Any]:
    return sorted((row["arm"], row["token_ids"]) for row in journal(run))


def test_readmes_command_by_the_hub_then_offline_then_with_the_hub_down(hub: Hub, tmp_path: Path) -> None:
    """A new process has nothing but the cache; one that asks the hub is interrupted below."""
    home = tmp_path / "home"
    first = done_here(hub, home, *command(tmp_path / "first"))
    assert first.code == 0, first.err
    sizes = [sum(p.stat().st_size for p in (hub.root / "models" / n).glob("*.safetensors")) for n in PAIR]
    told = [f"{name} ({size / 1e3:,.0f} kB)" for name, size in zip(PAIR, sizes, strict=True)]
    assert f"Fetching weights of {told[0]} and {told[1]} from 127.0.0.1" in first.err
    hub.mend()
    code, _, err = done(hub, home, *command(tmp_path / "offline"), HF_HUB_OFFLINE="1")
    assert code == 0, err
    assert hub.requests == []
    hub.break_down("status", 429)
    limited = done_here(hub, home, *command(tmp_path / "limited"))
    assert limited.code == 0, limited.err
    said = f"127.0.0.1 answered 429, too many requests: the local copy of {TARGET} is used"
    assert said in limited.err
    assert tokens(tmp_path / "first") == tokens(tmp_path / "offline") == tokens(tmp_path / "limited")


def kept_bytes(home: Path) -> int:
    """Of large files, which are named by their SHA-256; the client's own unfinished files go with it."""
    return sum(path.stat().st_size for path in home.rglob("*.incomplete") if len(path.stem) == 64)


def interrupted(hub: Hub, home: Path, *arguments: object) -> str:
    """What a command says that gets Ctrl-C once 16 kB came, of a hub that sends the rest for hours."""
    hub.break_down("drip", 8, where="/content/")  # bytes a second, and 16 kB at a time
    process = started(hub, home, *arguments)
    while not kept_bytes(home):
        time.sleep(0.1)
        assert process.poll() is None, process.communicate()[1]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    return err


def test_ctrl_c_in_a_download_ends_it_though_the_hub_sends_for_hours(hub: Hub, tmp_path: Path) -> None:
    err = interrupted(hub, tmp_path / "home", *command(tmp_path / "run"))
    assert "\nInterrupted. Start it again with:\n  spsbench run humaneval" in err
    kept = kept_bytes(tmp_path / "home")
    assert kept > 0
    whole = sum(
        path.stat().st_size for name in PAIR for path in (hub.root / "models" / name).glob("*.safe*s")
    )
    hub.mend()
    again = done_here(hub, tmp_path / "home", *command(tmp_path / "run"))
    assert again.code == 0, again.err
    assert "of it are here" in again.err
    large = sum(size for name, size in hub.sent.items() if name.endswith(".safetensors"))
    assert large == whole - kept


def test_ctrl_c_while_data_comes_ends_it_and_the_next_command_goes_on(hub: Hub, tmp_path: Path) -> None:
    folder = hub.root / "datasets" / "EdinburghNLP" / "xsum"
    for split in ("validation", "train"):
        rows = [
            {"id": f"{split}{i}", "document": f"Words. {os.urandom(300).hex()}", "summary": "One."}
            for i in range(60)
        ]
        file = folder / "default" / split / "0000.parquet"
        file.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows), file, compression="none", use_dictionary=False)
    asked = ("run", "xsum", "--data", "official", "--pair", "mini", *SMALL, "--no-score")
    asked = (*asked, "--remeasure", "0", "--out", tmp_path / "run")
    whole = sum(path.stat().st_size for path in folder.rglob("*.parquet"))
    err = interrupted(hub, tmp_path / "home", *asked)
    assert f"Fetching data of EdinburghNLP/xsum ({whole / 1e3:,.0f} kB) from 127.0.0.1" in err
    assert "\nInterrupted. Start it again with:\n  spsbench run xsum --data official" in err
    kept = kept_bytes(tmp_path / "home")
    assert kept > 0
    hub.mend()
    again = done_here(hub, tmp_path / "home", *asked)
    assert again.code == 0, again.err
    assert "of it are here" in again.err
    assert hub.sent["0000.parquet"] == whole - kept

"""Decode times of our engine and of others, in one interleaved run on a CPU.

    python -m benchmarks.engines --peers DIR [--threads 1] [--rounds 5] [--prompts 12] [--out DIR/engines]
    python -m benchmarks.engines --models package:smollm2 --dtype bfloat16 --ours eager,hf-generate

The same models, prompts, K and stop tokens for all: token ids in and out, greedy. Each engine
runs in processes of its own, ArS in one and SpS in the other, which are stopped while another is
measured; times are taken inside, around decoding alone. Texts are compared with ours, token for token.

An engine takes part if `spsbench get` installed it, or if its environment is given: by its folder (--ort,
--openvino, --vllm, --llama), or in the folder of --peers (ort, openvino, vllm, llama). Run it on a quiet
machine: a pool that spins on a core which others use takes many times as long.

Of --models ``hybrid`` and ``experts`` are random ones of those shapes (``packed_layers``) under the
embedded pair's tokenizer: their times are **synthetic**.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.engines import contenders
from benchmarks.engines.rounds import Measured, Plan, measure
from benchmarks.engines.table import table
from benchmarks.packed_layers import MODELS
from spsbench.base.environment import describe_environment
from spsbench.base.errors import SpsbenchError
from spsbench.base.protocol import Ask, Sampling
from spsbench.models.source import find
from spsbench.parts.external.engine import ids_that_end, stop_characters
from spsbench.parts.external.install import load_entry
from spsbench.parts.external.registry import PeerKind

_MINI = Path(__file__).resolve().parents[2] / "spsbench" / "mini"
_PEERS = {"ort": "onnxruntime-genai", "openvino": "openvino", "vllm": "vllm", "llama": "llama-cpp"}
"""Flags, which are folders of --peers too, and what the engines are called elsewhere."""

SHAPES = ("hybrid", "experts")


def main() -> int:
    """Measure and write; 1 if an engine that was given failed."""
    given = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # workers must not be left behind, stopped
    try:
        given.models = [_folder(model, given.work) for model in given.models]
        flags = _flags(given)
        plan = _plan(given, flags)
    except SpsbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    taking_part, missing = _taking_part(given, flags)
    if given.cores:
        os.sched_setaffinity(0, given.cores)  # which all workers inherit
    before = describe_environment()
    found = measure(plan, taking_part, lambda text: print(text, file=sys.stderr, flush=True))
    text = "\n".join(_page(given, plan, found, missing, before)) + "\n"
    print(text)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.with_suffix(".md").write_text(text)
        record = _record(given, found, missing, before)
        given.out.with_suffix(".json").write_text(json.dumps(record, indent=1, default=str) + "\n")
    return 1 if found.failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engines",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", nargs="+", default=[str(_MINI / "target"), str(_MINI / "draft")])
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--ours", default="eager", help="engines of ours, engine[:backend], with commas")
    parser.add_argument("--peers", type=Path, help="folder with environments of others")
    for name in _PEERS:
        parser.add_argument(f"--{name}", type=Path, metavar="ENVIRONMENT")
    parser.add_argument("--task", default="xsum")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cores", default="", help="CPUs that all stay on, e.g. 0,1")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2, help="requests before the first round")
    parser.add_argument("--work", type=Path, default=Path("results/engines"), help="logs")
    parser.add_argument("--out", type=Path, help="write OUT.md and OUT.json")
    given = parser.parse_args()
    if len(given.models) > 2:
        parser.error("--models takes a target, or a target and a draft.")
    if given.cores and len(given.cores.split(",")) < given.threads:
        parser.error("--cores names fewer CPUs than --threads.")
    for name in _PEERS:
        place = getattr(given, name)
        if place is not None and not place.is_dir():
            parser.error(f"--{name}: {place} is not a folder.")
    given.work = given.work.absolute()
    given.cores = tuple(int(core) for core in given.cores.split(",") if core)
    return given


def _folder(model: str, work: Path) -> Path:
    """Return a model's folder; a random one is written."""
    if model in SHAPES:
        folder = work / model
        MODELS[model]().save_pretrained(folder)
        for file in (_MINI / "target").glob("tokenizer*"):
            shutil.copy(file, folder)
        return folder
    return Path(find(model, None, "--models").location).absolute()


def _flags(given: argparse.Namespace) -> dict[str, Any]:
    """Of ``spsbench run``. A target alone stands in for its draft, which ArS does not ask."""
    return {
        "task": given.task,
        "target": str(given.models[0]),
        "draft": str(given.models[-1]),
        "data": "mini",
        "dtype": given.dtype,
        "device": "cpu",
        "sampling": "greedy",
        "k": given.k,
        "limit": given.prompts,
        "max_new_tokens": given.max_new_tokens,
        "score": False,
    }


def _plan(given: argparse.Namespace, flags: dict[str, Any]) -> Plan:
    """Prompts as ``spsbench run`` builds them. Stop strings of one character are known by their tokens;
    longer ones may span tokens, which no list of ids can say, and are left out for all."""
    from spsbench.config import resolve
    from spsbench.runner import plan

    ready = plan(resolve(flags))
    tokenizer, stop = ready.source.tokenizer, list(stop_characters(ready.stop))
    stop_ids = ids_that_end(ready.stop, tokenizer, tokenizer.size)
    requests = [
        Ask(list(prompt.ids), ready.max_new_tokens, stop_ids, stop, Sampling(greedy=True))
        for prompt in ready.prompts
    ]
    draft = given.models[1] if len(given.models) == 2 else None
    return Plan(
        target=given.models[0],
        draft=draft,
        k=given.k,
        threads=given.threads,
        requests=requests,
        rounds=given.rounds,
        warmup=given.warmup,
        logs=given.work / "logs",
        dtype=given.dtype,
    )


def _taking_part(given: argparse.Namespace, flags: dict[str, Any]) -> tuple[list[PeerKind], list[str]]:
    """Engines, ours first, and the flags of those that were not given."""
    places = dict(_places(given))
    found = [contenders.ours(text, flags) for text in given.ours.split(",")]
    found += [contenders.theirs(_PEERS[name], folder) for name, folder in places.items()]
    return found, [name for name in _PEERS if name not in places]


def _places(given: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    """Folders of environments: as named, of --peers, or where `spsbench get` installs them."""
    for name, engine in _PEERS.items():
        named: Path | None = getattr(given, name)
        installed = load_entry(engine, f"--{name}").environment
        if named is not None:
            yield name, named.absolute()
        elif given.peers is not None and (given.peers / name).is_dir():
            yield name, (given.peers / name).absolute()
        elif installed.is_here:
            yield name, installed.folder


def _page(
    given: argparse.Namespace, plan: Plan, found: Measured, missing: list[str], before: dict[str, Any]
) -> Iterator[str]:
    models = " and ".join(f"{model.parent.name}/{model.name}" for model in given.models)
    yield f"{datetime.now(UTC):%Y-%m-%d}, {before['cpu']['model']}, load {before['load_1m']:.1f} before."
    yield f"{models}, {given.task}, {len(plan.requests)} prompts, at most {given.max_new_tokens} tokens,"
    yield f"greedy, {plan.dtype}, K = {plan.k}, {plan.threads} thread(s), {plan.rounds} round(s) in turns."
    yield "Decode ms/token: median over rounds (range). Texts: equal to the first engine's ArS in all rounds."
    yield ""
    yield from table(found).as_markdown()
    notes = [f"{name} failed: {why}." for name, why in found.failed.items()]
    notes += [f"Left out, not given: {', '.join(missing)}."] if missing else []
    yield from (["", *notes] if notes else [])


def _record(
    given: argparse.Namespace, found: Measured, missing: list[str], before: dict[str, Any]
) -> dict[str, Any]:
    return {
        "environment": before,
        "arguments": {key: value for key, value in vars(given).items() if key != "out"},
        "loaded": {name: asdict(loaded) for name, loaded in found.loaded.items()},
        "failed": found.failed,
        "left_out": missing,
        "turns": [asdict(turn) | {"ms_per_token": turn.ms_per_token} for turn in found.turns],
    }


if __name__ == "__main__":
    sys.exit(main())

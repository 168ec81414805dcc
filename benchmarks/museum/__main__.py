"""Released engines with a defect that was reported, each audited until the alarm; and beside each a release
without it, audited with as many texts.

    python -m benchmarks.museum [--exhibit NAME] [--peers DIR] [--out results/reference/engines/museum]

Releases of transformers are installed into the cache, one environment each, 1 GB. OpenVINO and vLLM are those
that `spsbench get` installs, or their environments in the folder of --peers (openvino, vllm).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.museum.environments import environment_of
from benchmarks.museum.exhibits import EXHIBITS, Exhibit
from benchmarks.museum.head import trained_head
from benchmarks.museum.table import table
from benchmarks.museum.visit import Opened, Room, kind_in, visit
from spsbench.cli.audit_engine import plan_of, subject_of
from spsbench.environment import describe_environment
from spsbench.errors import SpsbenchError
from spsbench.peers.environment import Environment
from spsbench.peers.peer import PeerGone
from spsbench.peers.registry import PeerKind
from spsbench.runner import Plan
from spsbench.verify.engine_audit import Effort

_BOUND = 0.001
"""A leakage that no number of texts here rules out: a flawed release is drawn until the alarm or the end."""

_HEAD_PROMPTS = 120
"""Prompts that a DFlash head learns from."""


def main() -> int:
    """Audit and write; 1 if a defect was not found, or a control raised an alarm."""
    given = _arguments()
    rows: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    before = describe_environment()
    try:
        room = _room(given)
    except SpsbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for exhibit in _chosen(given.exhibit):
        print(exhibit.name, file=sys.stderr, flush=True)
        try:
            rows.append(visit(exhibit, _opener(given, room), room).facts())
        except (SpsbenchError, PeerGone) as error:
            failed[exhibit.name] = str(error)
    _write(given, room, rows, failed, before)
    return 0 if rows and not failed and all(row["caught"] for row in rows) else 1


def _opener(given: argparse.Namespace, room: Room) -> Opened:
    """How releases are opened; a DFlash head is trained on prompts after those of the audit."""

    def head(environment: Environment) -> Path:
        later = _plan(given.task, given.prompts + _HEAD_PROMPTS).prompts[given.prompts :]
        subject = room.subject
        return trained_head(environment, subject.folders[0], [each.ids for each in later], subject.stop_ids)

    return lambda release: kind_in(environment_of(release, given.peers), release, head)


def _plan(task: str, prompts: int) -> Plan:
    """Prompts of the mini pair's task."""
    return plan_of({"task": task, "data": "mini", "limit": str(prompts), "pair": "mini"})


def _room(given: argparse.Namespace) -> Room:
    """The mini pair, and prompts of its task."""
    ready = _plan(given.task, given.prompts)
    nobody = PeerKind("nobody", _closed)
    subject = subject_of(nobody, ready, given.threads)
    effort = Effort(_BOUND, given.texts, given.budget, ready.max_new_tokens)
    logs = Path(tempfile.mkdtemp(prefix="museum-"))
    return Room(subject, effort, given.seed, logs)


def _closed(load: Any, log: Path, paused: bool) -> Any:
    raise NotImplementedError


def _chosen(names: list[str]) -> list[Exhibit]:
    return [exhibit for exhibit in EXHIBITS if not names or exhibit.name in names]


def _write(
    given: argparse.Namespace,
    room: Room,
    rows: list[dict[str, Any]],
    failed: dict[str, str],
    before: dict[str, Any],
) -> None:
    text = "\n".join(_page(given, room, rows, failed, before)) + "\n"
    print(text)
    if given.out is None:
        return
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.with_suffix(".md").write_text(text)
    effort = {"texts": given.texts, "prompts": given.prompts, "seed": given.seed, "task": given.task}
    facts = {"environment": before, "effort": effort, "exhibits": rows, "failed": failed}
    given.out.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")


def _page(
    given: argparse.Namespace,
    room: Room,
    rows: list[dict[str, Any]],
    failed: dict[str, str],
    before: dict[str, Any],
) -> list[str]:
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d}, {before['cpu']['model']}, {given.threads} thread(s), float32.",
        f"Mini pair, {given.task}, {given.prompts} prompts in turns, "
        f"at most {room.effort.max_new_tokens} tokens.",
        "Alarm: an e-value of 1,000. The control draws as many texts as the flawed release did, at least 40.",
        "",
        *table(rows).as_markdown(),
        "",
        *(f"* {row['name']}: {row['defect']} {' '.join(row['reports'])}" for row in rows),
    ]
    return lines + [f"* {name} could not be audited: {why}" for name, why in failed.items()]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.museum", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    names = [exhibit.name for exhibit in EXHIBITS]
    parser.add_argument(
        "--exhibit", action="append", default=[], choices=names, help="one of them; all if none"
    )
    parser.add_argument("--peers", type=Path, help="a folder with the environments openvino and vllm")
    parser.add_argument("--task", default="xsum", choices=("xsum", "humaneval"))
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--texts", type=int, default=320, help="the most of a flawed release")
    parser.add_argument("--budget", type=float, default=600.0, help="seconds a release at most")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="writes OUT.md and OUT.json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

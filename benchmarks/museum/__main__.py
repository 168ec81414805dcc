"""Released engines with a defect that was reported, each audited until the alarm; and beside each a release
without it, audited with as many texts.

    python -m benchmarks.museum [--exhibit NAME] [--peers DIR] [--out results/reference/engines/museum]

OUT.md and OUT.json keep the rows of exhibits that are not audited again.

Releases of transformers, llama.cpp and older ones of OpenVINO are installed into the cache, one environment
each, up to 1 GB; llama.cpp is compiled. OpenVINO and vLLM are those that `spsbench get` installs, or their
environments in the folder of --peers (openvino, vllm).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.architectures import saved
from benchmarks.museum.environments import environment_of
from benchmarks.museum.exhibits import EXHIBITS, OURS, Exhibit, RandomPair, Release
from benchmarks.museum.head import trained_head
from benchmarks.museum.pages import page, read_rows, write_rows
from benchmarks.museum.visit import Opened, Room, kind_in, planted_in, visit
from spsbench.base.environment import describe_environment
from spsbench.base.errors import SpsbenchError, UnavailableError
from spsbench.base.protocol import PeerGone
from spsbench.config import resolve, resolve_material
from spsbench.parts.audit.course import subject_of
from spsbench.parts.audit.engine_audit import Effort
from spsbench.parts.external.install import Environment, load_entry
from spsbench.parts.external.registry import PeerKind
from spsbench.runner import Plan, find_material, plan

_BOUND = 0.001
"""A leakage that no number of texts here rules out: a flawed release is drawn until the alarm or the end."""

TRANSFORMERS = "transformers"

_SHORT_PROMPTS = ("The bridge.", "The cat sat", "A long day", "People said", "In 1999 the")

_HEAD_PROMPTS = 120
"""Prompts that a DFlash head learns from."""


def main() -> int:
    """Audit and write; 1 if a defect was not found, a control raised an alarm, or an exhibit failed."""
    given = _arguments()
    try:
        room = _room(given)
    except SpsbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    written = {} if given.out is None else read_rows(given.out)
    rows, failed = {}, {}
    for exhibit in _chosen(given.exhibit):
        print(exhibit.name, file=sys.stderr, flush=True)
        try:
            inside = room if exhibit.pair is None else _random_room(given, room, exhibit.pair)
            found = visit(exhibit, _opener(given, inside), inside)
            rows[exhibit.name] = found.facts() | _setting(given, inside, exhibit)
        except (SpsbenchError, PeerGone) as error:
            failed[exhibit.name] = str(error)
            print(f"error: {exhibit.name}: {error}", file=sys.stderr)
        if given.out is not None:
            write_rows(given.out, written | rows)
    print("\n".join(page(list(rows.values()))))
    return 0 if not failed and all(row["caught"] for row in rows.values()) else 1


def _setting(given: argparse.Namespace, room: Room, exhibit: Exhibit) -> dict[str, Any]:
    """When, on what and with what an exhibit was audited."""
    command = ["python", "-m", "benchmarks.museum", "--exhibit", exhibit.name]  # no paths of this machine
    asked = {name: getattr(given, name) for name in ("task", "prompts", "threads", "seed")}
    if exhibit.pair is not None:
        asked |= {"task": "short", "prompts": len(room.subject.prompts)}
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "asked": asked | {"max_new_tokens": room.effort_for(exhibit).max_new_tokens},
        "environment": describe_environment(command),
    }


def _opener(given: argparse.Namespace, room: Room) -> Opened:
    """How releases are opened; a DFlash head is trained on prompts after those of the audit."""

    def head(environment: Environment) -> Path:
        later = _plan(given.task, given.prompts + _HEAD_PROMPTS).prompts[given.prompts :]
        subject = room.subject
        return trained_head(environment, subject.folders[0], [each.ids for each in later], subject.stop_ids)

    def opened(release: Release) -> PeerKind:
        if release.engine == OURS:
            return planted_in(release)
        name = load_entry(release.engine, "--exhibit").name
        newest = None  # transformers reads models as they are
        if name not in (release.engine, TRANSFORMERS):
            with suppress(UnavailableError):  # then the release converts them itself
                newest = environment_of(replace(release, engine=name), given.peers)
        return kind_in(environment_of(release, given.peers), release, head, newest)

    return opened


def _plan(task: str, prompts: int) -> Plan:
    """Prompts of the mini pair's task."""
    settings = {"task": task, "pair": "mini", "data": "mini", "limit": prompts, "arms": ["ars"]}
    return plan(resolve(settings | {"score": False}))


def _room(given: argparse.Namespace) -> Room:
    """The mini pair, and prompts of its task."""
    ready = _plan(given.task, given.prompts)
    nobody = PeerKind("nobody", _closed)
    subject = subject_of(nobody, ready, given.threads)
    effort = Effort(_BOUND, given.texts, given.budget, ready.max_new_tokens)
    logs = Path(tempfile.mkdtemp(prefix="museum-"))
    return Room(subject, effort, given.seed, logs)


def _random_room(given: argparse.Namespace, room: Room, pair: RandomPair) -> Room:
    """The same with a random pair and short prompts, which end at no token."""
    folder = room.logs / pair.kind
    target, draft, _ = saved(pair.kind, folder, pair.noise)
    (prompts := folder / "short.txt").write_text("\n".join(_SHORT_PROMPTS) + "\n")
    models = {"target": str(target), "draft": str(draft), "task": str(prompts)}
    material = find_material(resolve_material(models), rolls_back=False)
    subject = subject_of(PeerKind("nobody", _closed), material, given.threads)
    return replace(room, subject=subject, effort=replace(room.effort, max_new_tokens=pair.tokens))


def _closed(load: Any, log: Path, paused: bool) -> Any:
    raise NotImplementedError("each exhibit has an engine of its own")


def _chosen(names: list[str]) -> list[Exhibit]:
    return [exhibit for exhibit in EXHIBITS if not names or exhibit.name in names]


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

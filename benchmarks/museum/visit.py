"""One exhibit audited: texts until the alarm, and as many of the control."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.museum.exhibits import HEAD, Exhibit, Release
from spsbench.base.protocol import Load, Peer
from spsbench.base.records import SamplingParams, Spec
from spsbench.parts.audit.course import at_contexts
from spsbench.parts.audit.engine_audit import Effort, EngineAudit, SettingResult, Subject
from spsbench.parts.audit.options import DRAWS, TOKENS
from spsbench.parts.external.install import Environment
from spsbench.parts.external.launch import LAUNCH
from spsbench.parts.external.registry import PeerKind, peer_in
from spsbench.parts.external.worker import Worker, WorkerCommand
from spsbench.stats.losslessness import ALARM

Head = Callable[[Environment], Path]


@dataclass(frozen=True, slots=True)
class Visited:
    """An exhibit and what the audit found.

    Attributes:
        exhibit: which one.
        flawed, control: of each release.
        versions: as the engines tell them, of both.
    """

    exhibit: Exhibit
    flawed: SettingResult
    control: SettingResult
    versions: tuple[str, str]

    @property
    def is_caught(self) -> bool:
        """The defect raised an alarm, and as many texts of the control did not."""
        as_many = len(self.control.drawn) == len(self.flawed.drawn)
        return self.flawed.decision == ALARM and self.control.decision != ALARM and as_many

    def facts(self) -> dict[str, Any]:
        """All of it, for JSON."""
        exhibit = self.exhibit
        return {
            "name": exhibit.name,
            "reports": list(exhibit.reports),
            "defect": exhibit.defect,
            "sampling": exhibit.sampling.described,
            "contexts": exhibit.contexts,
            "pair": None if exhibit.pair is None else exhibit.pair.described,
            "caught": self.is_caught,
            "flawed": _facts(exhibit.flawed, self.flawed, self.versions[0]),
            "control": _facts(exhibit.control, self.control, self.versions[1]),
        }


def _facts(release: Release, result: SettingResult, version: str) -> dict[str, Any]:
    evidence = result.evidence
    return {
        "release": release.shown,
        "version": version,
        "k": release.k,
        "options": dict(release.options),
        "decision": result.decision,
        "alarm_after": result.decided_after if result.decision == ALARM else None,
        "texts": len(result.drawn),
        "tokens": result.tokens,
        "impossible": None if evidence is None else evidence["impossible"],
        "leakage": None if evidence is None else evidence["leakage"],
        "bound": result.bound,
        "log10_e_value": None if evidence is None else evidence["log10_e_value"],
        "failures": list(result.failures),
        "gone": result.gone,
        "seconds": result.seconds,
    }


Opened = Callable[[Release], PeerKind]
"""How a release is opened; raises UnavailableError where it cannot be had."""


@dataclass(frozen=True, slots=True)
class Room:
    """What all exhibits are audited with.

    Attributes:
        subject: models, prompts and stop tokens; its engine is replaced by each exhibit's.
        effort: the most that is drawn of a flawed release, in whole texts.
        seed: of all requests.
        logs: a folder for what engines print.
    """

    subject: Subject
    effort: Effort
    seed: int
    logs: Path

    def effort_for(self, exhibit: Exhibit) -> Effort:
        """Return the most that is drawn of an exhibit's flawed release."""
        count = exhibit.contexts
        if not count:
            return self.effort
        return replace(self.effort, texts=DRAWS * count, max_new_tokens=TOKENS, contexts=count)


def visit(exhibit: Exhibit, opened: Opened, room: Room) -> Visited:
    """Audit the flawed release until the alarm, then the control with as many texts as were drawn.

    Raises:
        UnavailableError: a release cannot be had.
        PeerGone: it does not load the models.
    """
    effort = room.effort_for(exhibit)
    flawed, version = _audited(exhibit.flawed, exhibit.sampling, opened, room, effort)
    same = replace(effort, texts=len(flawed.drawn), bound=0.0)  # at 0 it draws them all
    control, other = _audited(exhibit.control, exhibit.sampling, opened, room, same)
    return Visited(exhibit, flawed, control, (version, other))


def _audited(
    release: Release, sampling: SamplingParams, opened: Opened, room: Room, effort: Effort
) -> tuple[SettingResult, str]:
    """Audit a release; return what came of it, and the version that the engine declares."""
    subject = replace(room.subject, kind=opened(release))
    load = subject.load(release.k, effort.max_new_tokens)
    peer = subject.kind.open(load, room.logs / f"{release.shown}.log", False)
    try:
        described = peer.describe()
        drafting = subject.kind.drafting or described.drafting
        effort = replace(effort, drafting=drafting)
        if effort.contexts:
            subject = at_contexts(subject, [sampling], effort.contexts, drafting)
        audit = EngineAudit(
            peer,
            subject.models,
            subject.prompts,
            sampling,
            subject.stop_ids,
            effort,
            room.seed,
            k=release.k,
            rule=described.rule,
        )
        return audit.run(lambda drawn: None), f"{described.engine} {described.version}"
    finally:
        peer.close()


def kind_in(
    environment: Environment, release: Release, head: Head, converter: Environment | None = None
) -> PeerKind:
    """A release in its environment.

    Args:
        environment: of its own.
        release: which one.
        head: trains a DFlash head there, unless it is trained; called where the release drafts with one.
        converter: the environment that converts the models; its own if None.
    """
    options = dict(release.options)
    if HEAD in options:
        options[HEAD] = str(head(environment))
    if release.worker is not None:
        return _of_the_museum(environment, release, Path(__file__).with_name(release.worker))
    spec = Spec(release.engine, tuple(sorted(options.items())))
    return replace(peer_in(environment, spec, converter=converter), name=release.shown)


def _of_the_museum(environment: Environment, release: Release, worker: Path) -> PeerKind:
    """Return an engine whose worker is the museum's; it reads the models as they are."""

    def opened(load: Load, log: Path, paused: bool) -> Peer:
        variables = {"PYTHONPATH": "", "HF_HUB_OFFLINE": "1"}
        if load.threads is not None:
            variables["OMP_NUM_THREADS"] = str(load.threads)
        command = WorkerCommand([str(environment.python), str(LAUNCH), str(worker)], log, variables)
        return Worker(command, replace(load, options=dict(release.options)), paused=paused)

    return PeerKind(release.shown, opened)


def planted_in(release: Release) -> PeerKind:
    """Return spsbench's own engine in a process, with what the release's options say is planted."""
    planted = [str(each) for each in release.options.values()]
    argv = [sys.executable, "-m", "spsbench.parts.verify.served", *planted]
    return PeerKind(
        release.shown, lambda load, log, paused: Worker(WorkerCommand(argv, log), load, paused=paused)
    )

"""``spsbench audit``: texts of a file, or of an engine that is asked until it is clear."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spsbench.base import GateFailed, UsageError, results_dir
from spsbench.cli import asks, present, read_material, say, values
from spsbench.parts.audit.messages.engines import CHECKING
from spsbench.parts.audit.messages.protocol import FOLLOWS_PROTOCOL
from spsbench.parts.audit.options import AuditOptions

if TYPE_CHECKING:
    from spsbench.parts.verify.command import VerifyOptions
    from spsbench.parts.verify.effort import Finding


@asks(AuditOptions, needed="temperature k arms texts limit out")
def audit(wanted: AuditOptions) -> None:
    """Test whether an engine's text follows the target: a file of samples, or an engine to draw from.

    Example: spsbench audit --engine worker:"python my_engine.py" --temperature 0.8,1.5
    """
    sources = [each for each in (wanted.samples, wanted.engine, wanted.follow) if each is not None]
    if len(sources) != 1:
        why = f"{'several are' if sources else 'none is'} given."
        raise UsageError(why, flag="SAMPLES, --engine, --follow", remedy="Give one of them.")
    if wanted.releases is not None and wanted.engine is not None:
        from spsbench.parts.audit.releases import audit_releases

        audit_releases(wanted, wanted.engine, wanted.releases)
    elif wanted.engine is not None:
        from spsbench.parts.audit.course import audited, conclude
        from spsbench.parts.external.registry import find_peer

        course, gone = audited(wanted, find_peer(wanted.engine))
        course.show()
        conclude(course.rows, course.effort.bound, gone)
    else:
        from spsbench.parts.audit.command_texts import audit_file, audit_log

        if wanted.samples is not None:
            audit_file(wanted.samples, wanted)
        elif wanted.follow is not None:
            audit_log(wanted.follow, wanted)


_CONFORMANCE_PROMPTS = 4


def verify_engine(wanted: VerifyOptions, engine: str) -> None:
    """Test the form of an engine's answers, without speculation and with it."""
    from spsbench.parts.external.registry import find_peer

    kind = find_peer(engine)
    (k, *_) = values.lookaheads(wanted.k or "4")
    threads = values.threads(wanted.threads)
    settings = read_material(wanted, limit=str(_CONFORMANCE_PROMPTS), template_arg=None)
    say(CHECKING, quiet=wanted.quiet)
    from spsbench.parts.audit.conformance import EngineUnderTest, conformance
    from spsbench.parts.audit.course import material_for, subject_of
    from spsbench.report import Table, left

    material = material_for(settings, engine)
    subject = subject_of(kind, material, threads)
    log = results_dir() / "engine.log"
    findings_of: dict[str, list[Finding]] = {}
    for name, lookahead in (("plain", 0), (f"K={k}", k)):
        peer = kind.open(subject.load(lookahead, material.max_new_tokens), log, False)
        try:
            under_test = EngineUnderTest(
                peer, subject.models[0], subject.prompts, subject.stop_ids, lookahead, kind.drafting
            )
            findings_of[name] = list(conformance(under_test))
        finally:
            peer.close()
    columns = [left("setting"), left("test"), left("verdict"), left("found", whole=False)]
    every = [(name, each) for name, findings in findings_of.items() for each in findings]
    present(
        lambda: {name: [each.record() for each in findings] for name, findings in findings_of.items()},
        lambda: Table(columns, [[name, f.test, f.verdict, f.found] for name, f in every]).as_rich(),
        json=wanted.json,
        quiet=wanted.quiet,
    )
    failed = [f"{each.test} ({name})" for name, each in every if not each.passed]
    if failed:
        raise GateFailed(f"it does not follow the protocol: {', '.join(failed)}.", flag="--engine")
    say(FOLLOWS_PROTOCOL, quiet=wanted.quiet)

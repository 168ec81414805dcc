"""``spsbench audit``: texts of a file, or of an engine that is asked until it is clear."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from spsbench.base import GateFailed, UsageError, results_dir
from spsbench.cli import asks, options, present, read_material, say, values
from spsbench.parts.audit.options import DRAWS, AuditOptions

if TYPE_CHECKING:
    from spsbench.parts.verify.command import VerifyOptions
    from spsbench.parts.verify.effort import Finding


DRAWN = "With --engine"


@asks(
    AuditOptions,
    {
        options.FIRST: {
            "[SAMPLES]": (
                "JSON lines with prompt_ids and completion_ids, or prompt and completion, or what --evidence "
                "wrote; .gz too."
            ),
            "--engine NAME": (
                'Draw texts from an engine: a name of `spsbench list engines`, worker:"COMMAND" or '
                "openai:URL."
            ),
            "--follow FILE": "Re-score requests of a server's log, as SAMPLES, while it grows; see --every.",
        },
        options.SAMPLING: {
            **options.OF_TEXTS,
            "--temperature T": (
                f"{options.OF_TEXTS['--temperature T']} With --engine a list: 0.7, 1, and 1 with top-p 0.9."
            ),
        },
        "With --follow": {
            "--every N": "Re-score one request in N, chosen by its id. Default: 1.",
            "--webhook URL": "POST each alarm there as JSON and go on. Default: end with exit code 4.",
        },
        DRAWN: {
            "--k LIST": "Lookahead K: 4, 2,4 or 1..7. Default: 4.",
            "--arms LIST": "ars (without speculation), sps (with it). Default: ars,sps.",
            "--weights FORMAT": "q8_0, q4_k (llama.cpp); int8, int4 (ONNX Runtime). Default: float32.",
            "--in-flight LIST": "Requests at once, e.g. 1,4,8; some are aborted. Default: 1.",
            "--prefix-cache LIST": "on, off: prompts with common beginnings; off is always the control.",
            "--contexts N": (
                f"Draw {DRAWS} short requests at each of N contexts where drafts that are withdrawn would "
                "show."
            ),
            "--bound SHARE": "Draw until leakage above this is ruled out. Default: 2%, after all texts.",
            "--texts N": "Most texts per setting. Default: 320.",
            "--budget TIME": "Most time per setting. Default: 10min; with --follow no end.",
            "--task TASK": "Task or prompts file. Default: xsum.",
            "--limit N": "Number of prompts. Default: 40.",
            "--max-new-tokens N": "Most new tokens of a text. Default: the task's.",
            "--threads N": "CPU threads of the engine. Default: 1.",
            "--out DIR": (
                "Directory of texts and results. Default: a new one in results/; with --follow that of FILE."
            ),
            "--evidence FILE": "Also write what others check the verdict by: spsbench audit FILE --target T.",
            "--repro": "After an alarm, write repro.py: one prompt that shows it, without spsbench.",
            "--releases LIST": (
                "A..B or the newest N: audit each; the first whose law, acceptance or speed differs."
            ),
            "--keep": "Keep the environments of --releases.",
        },
        options.MACHINE: {
            "--dtype NAME": (
                "auto, float32, bfloat16 or float16. With SAMPLES or --follow; auto:samples=bfloat16 if the "
                "engine that wrote them computed in another one. Default: auto."
            )
        },
    },
    needed="temperature k arms texts limit out",
)
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
    settings = read_material(
        task=wanted.task,
        data=wanted.data,
        pair=wanted.pair,
        target=wanted.target,
        draft=wanted.draft,
        limit=str(_CONFORMANCE_PROMPTS),
        seed=wanted.seed,
        device=wanted.device,
        quiet=wanted.quiet,
    )
    say("Checking prompts, models and engine", quiet=wanted.quiet)
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
    every = [(name, each) for name, all_ in findings_of.items() for each in all_]
    present(
        lambda: {
            name: [asdict(each) | {"verdict": each.verdict} for each in all_]
            for name, all_ in findings_of.items()
        },
        lambda: Table(columns, [[name, f.test, f.verdict, f.found] for name, f in every]).as_rich(),
        json=wanted.json,
        quiet=wanted.quiet,
    )
    failed = [f"{each.test} ({name})" for name, each in every if not each.passed]
    if failed:
        raise GateFailed(f"it does not follow the protocol: {', '.join(failed)}.", flag="--engine")
    say("It follows the protocol. Whether its texts follow the target: spsbench audit.", quiet=wanted.quiet)

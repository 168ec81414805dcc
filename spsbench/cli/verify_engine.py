"""``spsbench verify --engine``: does a worker follow the protocol?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from spsbench.cli import values
from spsbench.cli.audit_engine import config_of, plan_of, subject_of
from spsbench.cli.console import present, say
from spsbench.errors import GateFailed, UsageError
from spsbench.paths import results_dir

if TYPE_CHECKING:
    from spsbench.verify.finding import Finding

_PROMPTS = 4

_NOT_OFFERED = ("tensor_parallel", "quantise", "draft_quantise")
"""What is done to weights here, and not to those that an external engine loads."""


def verify_engine(params: Mapping[str, Any]) -> None:
    """Test the form of an engine's answers, without speculation and with it."""
    from spsbench.peers.registry import find_peer

    for name in _NOT_OFFERED:
        if params[name] is not None:
            raise UsageError(
                f"{params[name]} is given together with --engine, which runs a model of its own.",
                flag=f"--{name.replace('_', '-')}",
                remedy="Leave one of the two out.",
            )
    kind = find_peer(params["engine"])
    (k, *_) = values.lookaheads(params["k"] or "4")
    threads = values.threads(params["threads"])
    config = config_of(dict(params) | {"limit": str(_PROMPTS)}, "TASK")
    say("Checking prompts, models and engine", quiet=params["quiet"])
    from spsbench.report.tables import Table, left
    from spsbench.verify.conformance import Asked, conformance

    ready = plan_of(config, params["engine"])
    subject = subject_of(kind, ready, threads)
    log = results_dir() / "engine.log"
    found: dict[str, list[Finding]] = {}
    for name, lookahead in (("plain", 0), (f"K={k}", k)):
        peer = kind.open(subject.load(lookahead, ready.max_new_tokens), log, False)
        try:
            asked = Asked(peer, subject.models[0], subject.prompts, subject.stop_ids, lookahead)
            found[name] = list(conformance(asked))
        finally:
            peer.close()
    rows = [[name, each.test, each.verdict, each.found] for name, all_ in found.items() for each in all_]
    columns = [left("setting"), left("test"), left("verdict"), left("found", whole=False)]
    present(
        lambda: {
            name: [asdict(each) | {"verdict": each.verdict} for each in all_] for name, all_ in found.items()
        },
        lambda: Table(columns, rows).as_rich(),
        json=params["json"],
        quiet=params["quiet"],
    )
    failed = [f"{each.test} ({name})" for name, all_ in found.items() for each in all_ if not each.passed]
    if failed:
        raise GateFailed(f"it does not follow the protocol: {', '.join(failed)}.", flag="--engine")
    say(
        "It follows the protocol. Whether its texts follow the target: spsbench audit.", quiet=params["quiet"]
    )

"""``spsbench audit --engine``: texts are drawn until it is clear whether they follow the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.cli import values
from spsbench.cli.console import out, present, print_json, say
from spsbench.config.files import model_name
from spsbench.config.together import refuse_together
from spsbench.errors import GateFailed, IncompleteError, SpsbenchError, UnavailableError, UsageError
from spsbench.paths import results_dir

if TYPE_CHECKING:
    from spsbench.config import RunConfig
    from spsbench.models.causal_lm import CausalLM
    from spsbench.peers.registry import PeerKind
    from spsbench.records import SamplingParams
    from spsbench.runner import Plan
    from spsbench.summary_types import Evidence, ReproFacts
    from spsbench.verify.effort import Finding
    from spsbench.verify.engine_audit import Effort, Row, Setting, Subject, Watch


_CONFORMANCE_PROMPTS = 4


def verify_engine(params: Mapping[str, Any]) -> None:
    """Test the form of an engine's answers, without speculation and with it."""
    from spsbench.peers.registry import find_peer

    kind = find_peer(params["engine"])
    (k, *_) = values.lookaheads(params["k"] or "4")
    threads = values.threads(params["threads"])
    config = config_of(dict(params) | {"limit": str(_CONFORMANCE_PROMPTS)}, "TASK")
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


PLAIN, SPECULATING = "ars", "sps"
_PROMPTS, _TEXTS, _BUDGET_S = 40, 320, 600.0
_EVERY_S = 10.0

_DEFAULT = ({"temperature": "0.7"}, {"temperature": "1"}, {"temperature": "1", "top_p": "0.9"})
"""Samplings where none is asked for: at temperature 1 a token that ignores it looks right, and without a cut
so does one that ignores the cut."""


def audit_named(params: Mapping[str, Any]) -> None:
    """Audit an engine with every setting that was asked for."""
    from spsbench.peers.protocol import PeerGone
    from spsbench.peers.registry import find_peer

    # What is refused is refused before torch is imported.
    kind, limits = find_peer(params["engine"]), _limits(params)
    samplings, lookaheads = _samplings(params), _lookaheads(params, served=kind.served)
    threads, config = values.threads(params["threads"]), config_of(params, "--task")
    from spsbench.cli.interruption import continued_by, typed
    from spsbench.files import make_folder
    from spsbench.store import fresh_directory
    from spsbench.verify.engine_audit import Effort, Setting, audit_engine

    quiet = params["quiet"]
    settings = [Setting(sampling, k) for sampling, k in product(samplings, lookaheads)]
    if params["repro"]:
        from spsbench.verify.repro_script import require_script

        require_script(kind.name, "--repro")
    say("Checking prompts, models and engine", quiet=quiet)
    ready = plan_of(config, params["engine"])
    folder: Path = params["out"] or fresh_directory(results_dir(), "audit", ready.config.pair.name)
    make_folder(folder, "--out")
    subject = subject_of(kind, ready, threads)
    # A bound that was asked for is what the audit waits for; without one, all texts are drawn.
    effort = Effort(*limits, ready.max_new_tokens, limits[1] if params["bound"] is None else 0)
    asked = _asked(params, ready)
    _require_same(folder, asked)
    rows: list[Row] = []
    _write(folder, rows, effort, asked)
    continued_by(lambda: typed(*(() if params["out"] else ("--out", str(folder)))))
    gone = None
    told = (folder, lambda s: say(s, quiet=quiet), _watch(effort, quiet=quiet))
    try:
        for row in audit_engine(subject, settings, effort, ready.config.seed, *told):
            rows.append(row)
            _write(folder, rows, effort, asked)
    except PeerGone as error:
        gone = str(error)
    if gone is not None and not rows:
        raise UnavailableError(f"{kind.name} cannot be asked: {gone}.", flag="--engine")
    repro = _reproduced(rows, subject, ready, effort, folder, params) if params["repro"] else None
    if repro is not None:
        _write(folder, rows, effort, asked, repro)
    _show(rows, ready, folder, effort, params, repro)
    _conclude(rows, effort, gone)


def _lookaheads(params: Mapping[str, Any], *, served: bool) -> list[int | None]:
    """Plain (0) and each K; of a server None alone, for it has its own K or none."""
    if served:
        refuse_together("audit", {**params, "server": True})
        return [None]
    arms = [name.strip() for name in (params["arms"] or f"{PLAIN},{SPECULATING}").split(",")]
    wrong = next((name for name in arms if name not in (PLAIN, SPECULATING)), None)
    if wrong is not None:
        raise UsageError(f"{wrong} is unknown.", flag="--arms", remedy=f"Choose from {PLAIN}, {SPECULATING}.")
    ks = values.lookaheads(params["k"] or "4") if SPECULATING in arms else ()
    return [*([0] if PLAIN in arms else []), *ks]


def _samplings(params: Mapping[str, Any]) -> list[SamplingParams]:
    """The product of the lists that were given, each combination once; ``_DEFAULT`` without any."""
    names = ("temperature", "top_p", "top_k")
    if not params["greedy"] and all(params[name] is None for name in names):
        nothing = dict.fromkeys(names)
        return [values.sampling({**nothing, **given, "greedy": False}) for given in _DEFAULT]
    lists = [[None] if params[name] is None else params[name].split(",") for name in names]
    found = [
        values.sampling(dict(zip(names, given, strict=True)) | {"greedy": params["greedy"]})
        for given in product(*lists)
    ]
    return list(dict.fromkeys(found))


def _limits(params: Mapping[str, Any]) -> tuple[float, int, float]:
    """Leakage, texts and seconds: all of ``Effort`` but the length of a text, which the task says."""
    bound = values.share(params["bound"], "--bound", 0.02)
    texts = int(values.number(params["texts"], "--texts", 1, _TEXTS, whole=True))
    return bound, texts, values.seconds(params["budget"], _BUDGET_S)


def config_of(params: Mapping[str, Any], task_flag: str) -> RunConfig:
    """Prompts, pair and seed, as a run would have them; no sampling of the task's is used."""
    from spsbench.cli.run import require_possible, task_file
    from spsbench.config import resolve
    from spsbench.records import number

    flags: dict[str, Any] = {"task": params["task"], "arms": PLAIN, "limit": params["limit"] or _PROMPTS}
    names = ("target", "draft", "revision", "draft_revision", "max_new_tokens", "seed", "data")
    flags |= {name: params[name] for name in names if params.get(name) is not None}
    flags |= {
        name: number(flags[name])
        for name in ("limit", "max_new_tokens", "seed")
        if isinstance(flags.get(name), str)
    }
    if "data" not in flags:
        flags |= task_file(flags["task"], quiet=params["quiet"])
    config = resolve(flags | {"score": False}, pair=params["pair"])
    try:
        require_possible(config)
    except SpsbenchError as error:
        if error.flag != "TASK":
            raise
        raise type(error)(error.message, flag=task_flag, remedy=error.remedy) from error
    return config


def plan_of(config: RunConfig, engine: str) -> Plan:
    """What ``config_of`` describes, with the models found and the prompts built."""
    from spsbench.runner import plan
    from spsbench.runner.plan import require_decoder

    ready = plan(config)
    require_decoder(ready.source, engine)
    return ready


def subject_of(kind: PeerKind, ready: Plan, threads: int | None) -> Subject:
    """Everything that the engine is asked with, and the models that read its texts."""
    from spsbench.peers.engine import ids_that_end
    from spsbench.runner.peers import folder_of
    from spsbench.verify.engine_audit import Subject

    source, models = ready.source, _models(ready, threads or 1)  # loading fetches what is not here
    return Subject(
        kind=kind,
        models=models,
        folders=(folder_of(source.target), folder_of(source.draft)),
        prompts=[prompt.ids for prompt in ready.prompts],
        stop_ids=ids_that_end(ready.stop, source.tokenizer, source.vocab_size),
        threads=threads or 1,
    )


def _models(ready: Plan, threads: int) -> tuple[CausalLM, CausalLM]:
    """The reference forward: an auditor that shares code with an engine would share its faults.

    It keeps to the cores that the engine leaves: pools of threads that share a core wait for each other.
    """
    import os

    import torch

    from spsbench.config.models import TORCH
    from spsbench.models.loading import load

    torch.set_num_threads(max(1, (os.cpu_count() or 1) - threads))
    source = ready.source
    given = (ready.device, source.vocab_size)
    target = load(source.target, "float32", *given, "--target", TORCH)
    return target, load(source.draft, "float32", *given, "--draft", TORCH, target=target)


def _reproduced(
    rows: Sequence[Row],
    subject: Subject,
    ready: Plan,
    effort: Effort,
    folder: Path,
    params: Mapping[str, Any],
) -> ReproFacts | None:
    """One context that shows the clearest alarm; None without an alarm, or where the engine gives up."""
    from spsbench.peers.protocol import PeerGone
    from spsbench.verify.repro import reproduce, reproducible

    quiet = params["quiet"]
    row = reproducible(rows)
    if row is None:
        say("No alarm, so there is nothing to reproduce.", quiet=quiet)
        return None
    say(f"Looking for a prompt that shows it: {row.setting.name}", quiet=quiet)
    names = (model_name(ready.config.pair.target), model_name(ready.config.pair.draft))
    try:
        return reproduce(row, subject, names, effort.max_new_tokens, ready.config.seed, folder)
    except PeerGone as error:
        say(f"No reproduction: {error}.", quiet=quiet)
        return None


def _asked(params: Mapping[str, Any], ready: Plan) -> dict[str, Any]:
    """What must be the same where an audit goes on."""
    names = ("engine", "task", "limit", "target", "draft", "revision", "draft_revision")
    facts = {name: params[name] and str(params[name]) for name in names}
    more = {"seed": ready.config.seed, "max_new_tokens": ready.max_new_tokens}
    return facts | {"pair": ready.config.pair.name} | more


def _require_same(folder: Path, asked: Mapping[str, Any]) -> None:
    """Refuse a folder with the texts of another audit."""
    import json

    try:
        before = json.loads((folder / "audit.json").read_text()).get("asked")
    except (OSError, ValueError, AttributeError):
        before = None
    if before != asked and (before is not None or any(folder.glob("*.jsonl"))):
        raise UsageError(
            f"{folder} holds the texts of another audit.", flag="--out", remedy="Name another directory."
        )


def _watch(effort: Effort, *, quiet: bool) -> Watch:
    """Say every few seconds how far a setting is and what it says so far."""
    import time

    from spsbench.report.judgement import interim

    last = time.monotonic()

    def told(setting: Setting, count: int, evidence: Evidence | None, bound: float | None) -> None:
        nonlocal last
        if time.monotonic() - last >= _EVERY_S:
            say(interim(setting.name, count, effort.texts, evidence, bound), quiet=quiet)
            last = time.monotonic()

    return told


def _write(
    folder: Path,
    rows: Sequence[Row],
    effort: Effort,
    asked: Mapping[str, Any],
    repro: ReproFacts | None = None,
) -> None:
    """What is known so far: a kill loses one setting at most, and of that the texts are there."""
    from spsbench.environment import describe_environment
    from spsbench.files import write_json

    facts: dict[str, Any] = {
        "asked": asked,
        "effort": effort,
        "environment": describe_environment(),
        "rows": [row.facts() for row in rows],
    }
    if repro is not None:
        facts["repro"] = repro
    write_json(folder / "audit.json", facts)


def _show(
    rows: Sequence[Row],
    ready: Plan,
    folder: Path,
    effort: Effort,
    params: Mapping[str, Any],
    repro: ReproFacts | None,
) -> None:
    from spsbench.report.judgement import audit_sentences, audit_table, repro_sentence

    facts = [row.facts() for row in rows]
    if params["json"]:
        more = {} if repro is None else {"repro": repro}
        print_json({"folder": str(folder), "label": ready.label(), "rows": facts} | more)
        return
    described, screen = rows[0].described, out(quiet=params["quiet"])
    engine = f"{described.engine} {described.version}"
    screen.print(f"{engine}, {ready.config.pair.name}, {ready.label()}", markup=False)
    screen.print(audit_table(facts).as_rich())
    for sentence in (*audit_sentences(facts, effort.bound), *described.limits):
        screen.print(f"\n{sentence}", markup=False, highlight=False)
    if repro is not None:
        screen.print(f"\n{repro_sentence(repro, folder)}", markup=False, highlight=False)
    say(f"Texts and audit.json are in {folder}.", quiet=params["quiet"])


def _conclude(rows: Sequence[Row], effort: Effort, gone: str | None) -> None:
    """The exit code: an alarm counts before what is not clear."""
    from spsbench.stats.losslessness import ALARM
    from spsbench.verify.engine_audit import UNDECIDED

    alarms = [row.setting.name for row in rows if row.decision == ALARM and row.convention is None]
    if alarms:
        raise GateFailed(f"not the target's distribution: {'; '.join(alarms)}.", flag="--engine")
    if gone is not None:
        raise IncompleteError(f"the engine gave up: {gone}.", flag="--engine")
    unclear = [row.setting.name for row in rows if row.decision == UNDECIDED]
    if unclear:
        raise IncompleteError(
            f"that less than {effort.bound:.1%} leaks could not be shown: {'; '.join(unclear)}.",
            flag="--bound",
            remedy="Give more --texts or --budget, a higher --temperature, or a wider --bound.",
        )

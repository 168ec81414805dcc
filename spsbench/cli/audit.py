"""``spsbench audit``: texts of a file, or of an engine that is asked until it is clear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.cli import options, values
from spsbench.cli.console import out, present, print_json, say
from spsbench.cli.options import takes
from spsbench.cli.settings import read_settings, require_possible
from spsbench.config import resolve
from spsbench.config.files import model_name
from spsbench.config.together import refuse_together
from spsbench.errors import GateFailed, IncompleteError, SpsbenchError, UnavailableError, UsageError
from spsbench.files import make_folder
from spsbench.paths import results_dir
from spsbench.plugins import unknown

if TYPE_CHECKING:
    import torch

    from spsbench.config import RunConfig
    from spsbench.engines.external.registry import PeerKind
    from spsbench.models.causal_lm import CausalLM
    from spsbench.models.source import ModelSource
    from spsbench.records import SamplingParams
    from spsbench.runner import Plan
    from spsbench.summary_types import Evidence, ReproFacts
    from spsbench.verify.audit import Audit, Reader
    from spsbench.verify.effort import Finding
    from spsbench.verify.engine_audit import Effort, Row, Setting, Subject, Watch
    from spsbench.verify.evidence_file import Header, Paths, Texts
    from spsbench.verify.follow import State
    from spsbench.verify.free_evidence import FreeEvidence


DRAWN = "With --engine"

PLAIN, SPECULATING = "ars", "sps"

OF_TEXTS = {
    "--temperature T": (
        "Of texts that do not say theirs: 1. With --engine a list: 0.7, 1, and 1 with top-p 0.9."
    ),
    "--top-p P": "The same. Default: 1.",
    "--top-k N": "The same. Default: all tokens.",
    "--greedy": "Texts are greedy: each token the most probable one.",
}
"""How the texts of a file were drawn."""


@takes(
    "samples engine follow pair target draft revision draft_revision temperature top_p top_k greedy "
    f"{options.PROCESSED} "
    "samples_dtype every webhook k arms weights in_flight prefix_cache bound texts budget task limit "
    "max_new_tokens threads out evidence repro releases keep seed device dtype",
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
            **OF_TEXTS,
            "--samples-dtype NAME": "Dtype of the engine that wrote SAMPLES. Default: the target's here.",
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
            "--evidence FILE": "Also write what others check the verdict with: spsbench audit FILE.",
            "--repro": "After an alarm, write repro.py: one prompt that shows it, without spsbench.",
            "--releases LIST": (
                "A..B or the newest N: audit each; the first whose law, acceptance or speed differs."
            ),
            "--keep": "Keep the environments of --releases.",
        },
        options.MACHINE: {"--dtype NAME": "Of SAMPLES: auto, float32, bfloat16 or float16. Default: auto."},
    },
)
def audit(**params: Any) -> None:
    """Test whether an engine's text follows the target: a file of samples, or an engine to draw from.

    Example: spsbench audit --engine worker:"python my_engine.py" --temperature 0.8,1.5
    """
    given = [name for name in ("samples", "engine", "follow") if params[name] is not None]
    if len(given) != 1:
        why = f"{'several are' if given else 'none is'} given."
        raise UsageError(why, flag="SAMPLES, --engine, --follow", remedy="Give one of them.")
    if params["releases"] is not None:
        from spsbench.cli.releases import audit_releases

        audit_releases(params)
    elif params["engine"] is not None:
        from spsbench.engines.external.registry import find_peer

        course, gone = audited(params, find_peer(params["engine"]))
        course.show()
        conclude(course.rows, course.effort.bound, gone)
    elif params["samples"] is not None:
        audit_file(params["samples"], params)
    else:
        audit_log(params["follow"], params)


def _config_of_file(path: Path, flag: str, params: Mapping[str, Any]) -> RunConfig:
    """The models of a file's texts, once everything that was typed is known to be possible."""
    values.sampling(params)
    values.float_dtype(params["dtype"], "--dtype")
    samples_dtype = params["samples_dtype"]
    if samples_dtype not in (None, *values.FLOATS):
        raise unknown(samples_dtype, values.FLOATS, "--samples-dtype")
    names = ("pair", "target", "draft", "revision", "draft_revision", "device", "dtype")
    config = resolve({name: params[name] for name in names} | {"arms": PLAIN})  # a target needs no draft
    values.readable(path, flag, "Name a file of JSON lines.")
    return config


def _reader_of(
    path: Path, config: RunConfig, params: Mapping[str, Any]
) -> tuple[list[ModelSource], Reader, torch.dtype | None]:
    """The models, not loaded yet, a reader of the file's lines and the dtype of who wrote them."""
    say(f"Checking {path} and the models", quiet=params["quiet"])
    sources, size, window = _sources(config, alone=params["draft"] is None and params["target"] is not None)
    from spsbench.models.memory import DTYPES
    from spsbench.verify.audit import Reader

    theirs = None if params["samples_dtype"] is None else DTYPES[params["samples_dtype"]]
    return sources, Reader(sources[0].tokenizer, size, window, values.sampling(params)), theirs


def audit_file(path: Path, params: Mapping[str, Any]) -> None:
    quiet, seed = params["quiet"], values.seed(params["seed"])
    config = _config_of_file(path, "SAMPLES", params)
    from spsbench.verify import evidence_file

    if (evidence := evidence_file.read(path, "SAMPLES")) is not None:
        audit_evidence(path, *evidence, params)
        return
    sources, reader, theirs = _reader_of(path, config, params)
    total = sum(1 for _ in reader.read(path))
    if not total:
        raise UsageError(f"{path} is empty.", flag="SAMPLES", remedy="Name a file with completions.")
    models = _load(sources, reader.vocab_size, config)
    from spsbench.cli.progress import watching
    from spsbench.engines.external.protocol import Ask
    from spsbench.verify.audit import Audit
    from spsbench.verify.free_evidence import COARSE, FreeEvidence

    found = Audit(models[0], models[1] if len(models) > 1 else None, theirs, seed)
    coarse = theirs is not None and theirs.itemsize < 4
    free = FreeEvidence(None, slack=COARSE if coarse else None, drawn=False)
    with watching(quiet=quiet, moving=True) as watcher:
        watcher.stage(f"Reading {total} texts", total)
        for text in reader.read(path):
            reading = found.read(text)
            if text.told is not None:
                free.add(Ask([*text.prompt], len(text.completion)), text.told, reading)
            watcher.step()
    _show(found, free, [source.name for source in sources], params)


def audit_evidence(path: Path, header: Header, texts: Texts, params: Mapping[str, Any]) -> None:
    """Score the texts of evidence again, with weights that are not the auditor's word."""
    names, quiet = ("pair", "target", "draft", "revision", "draft_revision"), params["quiet"]
    given = {name: params[name] for name in names}
    told = {name: header.asked.get(name) for name in names}
    if told["target"] is not None:
        del told["pair"]
    how = ("temperature", "top_p", "top_k", *options.PROCESSED.split())
    if any(params[name] is not None for name in how) or params["greedy"]:
        raise UsageError(f"{path} says how its texts were drawn.", flag="SAMPLES", remedy="Leave it out.")
    models = given if any(given.values()) else told
    config = resolve({**models, "arms": PLAIN, "dtype": "float32", "device": params["device"]})
    say(f"Checking {path} and the weights", quiet=quiet)
    from spsbench.verify import evidence_file

    sources, size, _ = _sources(config, alone=False)
    for source, hashes, flag in zip(sources, header.weights, ("--target", "--draft"), strict=True):
        if evidence_file.weights_of(source) != hashes:
            why = f"{source.name} has other weights than {path} was written with."
            raise UsageError(why, flag=flag, remedy=f"Name the same: {', '.join(hashes) or 'none known'}.")
    target, draft = _load(sources, size, config)
    bound, paths = header.effort.bound, evidence_file.Paths(_watch(header.effort, quiet=quiet))
    found = list(evidence_file.scored_again(header, texts, sources, (target, draft), paths))
    wrong, most = evidence_file.differences(header, found, paths)
    if wrong:
        raise GateFailed(f"scored again, {path} says otherwise: {'; '.join(wrong)}.", flag="SAMPLES")
    gone = evidence_file.missing(texts)
    facts = {"rows": [row.facts() for row in found], "log10_e_apart": most, "missing": gone}
    lost = f" {gone} requests have no text: they failed, or were taken out." if gone else ""
    same = f"Scored again: the same verdicts, log10 e-values within {max(most, 1e-4):.2g}.{lost}"
    _print_rows(found, f"{sources[0].name}, {path.name}", bound, facts, params, [same])
    conclude(found, bound, None)


def audit_log(path: Path, params: Mapping[str, Any]) -> None:
    """Follow a server's log, see ``spsbench.verify.follow``."""
    import math
    import time

    quiet, url, budget_s = params["quiet"], params["webhook"], values.seconds(params["budget"], math.inf)
    every = int(values.number(params["every"], "--every", 1, 1, whole=True))
    if url is not None and not url.startswith(("http://", "https://")):
        raise UsageError(f"it must be a URL, got {url}.", flag="--webhook", remedy="Give http://HOST/PATH.")
    config = _config_of_file(path, "--follow", params)
    sources, reader, theirs = _reader_of(path, config, params)
    from spsbench.cli.interruption import continued_by, typed
    from spsbench.report.tables import Table, left
    from spsbench.verify.follow import Follower, State

    kept = (params["out"] or path.parent) / f"{path.name}.audit.json"
    make_folder(kept.parent, "--out")
    asked = {"file": path.name, "every": every, "sampling": reader.sampling.described, "dtype": str(theirs)}
    asked["models"] = [source.identity()["fingerprint"] for source in sources]
    state, alarms = State.read(kept, asked), list[str]()
    continued_by(typed)
    target, *drafts = _load(sources, reader.vocab_size, config)
    models = target, drafts[0] if drafts else None
    say(f"Following {path}, 1 request in {every}; {_FALSE_ALARMS}. State: {kept}.", quiet=quiet)

    def tell(finding: dict[str, Any]) -> bool:
        alarms[:] = [finding["why"]]  # the last: there may be many
        say(f"ALARM at line {finding['line']}: {finding['why']}.", quiet=quiet)
        if url is not None:
            import requests

            try:
                requests.post(url, json=finding, timeout=_WEBHOOK_S).raise_for_status()
            except requests.RequestException as error:
                say(f"The webhook failed ({type(error).__name__}).", quiet=quiet)
        return url is not None

    try:
        Follower(path, kept, state, reader, models, every, theirs).run(time.monotonic() + budget_s, tell)
    finally:  # an interruption, too, says what is known
        table = Table([left(whole=True), left()], _followed(state))
        present(lambda: asdict(state) | {"kept": str(kept)}, table.as_rich, json=params["json"], quiet=quiet)
    if alarms:
        raise GateFailed(f"not distributed as {sources[0].name} says: {'; '.join(alarms)}.", flag="--follow")


_FALSE_ALARMS = (
    "a right server raises an alarm at most once a year on average, within a day with 0.4% at most"
)
_WEBHOOK_S = 10.0


def _followed(state: State) -> list[tuple[str, str]]:
    rate, lead, unread = state.texts_a_day, state.detector.leading, state.garbage
    warning = f"{state.retokenised} texts came without ids: the rate of false alarms does not hold for them"
    lines = {
        "lines": f"{state.lines} in {state.files} files, {state.skipped} not chosen or empty",
        "not readable": f"{unread}, the last: {state.last_garbage}" if unread else None,
        "re-scored": f"{state.texts} texts, {state.tokens} tokens" + (f", {rate:.0f} a day" if rate else ""),
        "warning": warning if state.retokenised else None,
        "impossible": f"{state.impossible} tokens of probability 0",
        "evidence": f"{state.detector.years:.2g}; alarm at 1",
        "most of it": f"{lead['why']}: 10^{lead['log10_e']:.1f} since text {lead['since_text']}"
        if lead
        else None,
        "alarms": str(state.alarms),
    }
    return [(name, text) for name, text in lines.items() if text is not None]


def _show(found: Audit, free: FreeEvidence, names: list[str], params: Mapping[str, Any]) -> None:
    from spsbench.report.judgement import bound
    from spsbench.report.tables import Table, left
    from spsbench.stats.losslessness import ALARM, NO_EVIDENCE, leakage_bound

    facts = found.judged()
    beside = [each for each in free.findings() if not each.unjudged]
    named = {"target": names[0], "draft": names[1] if len(names) > 1 else None}
    present(
        lambda: named | facts | {"free": [asdict(each) for each in beside]},
        lambda: Table(
            [left(whole=True), left()], [*_lines(facts), *((each.test, each.found) for each in beside)]
        ).as_rich(),
        json=params["json"],
        quiet=params["quiet"],
    )
    reasons = "; ".join(facts["reasons"])
    if facts["verdict"] == ALARM:
        raise GateFailed(f"not distributed as {names[0]} says: {reasons}.", flag="SAMPLES")
    wrong = [each.found for each in beside if not each.passed]
    if wrong:
        raise GateFailed(f"wrong beside the law of the texts: {' '.join(wrong)}", flag="SAMPLES")
    if facts["verdict"] == NO_EVIDENCE:
        say(f"No evidence either way: {reasons}.", quiet=params["quiet"])
        return
    tail = f" ({reasons})" if reasons else ""
    limit = leakage_bound(facts)
    more = "" if limit is None else f": no sign of a leak above {bound(limit)}"
    if len(names) == 1 and not facts["greedy"]:
        more = "; no bound on a leak without --draft"
    say(f"Consistent with {names[0]}{more}{tail}.", quiet=params["quiet"])


def _lines(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    from spsbench.report.judgement import worded
    from spsbench.stats.losslessness import leakage_bound

    kinds = ", ".join(f"{name} ({count})" for name, count in facts["samplings"].items())
    leak, score, cells, unsure = (
        facts[name] for name in ("leakage", "log_score", "transform", "retokenised")
    )
    interval = leak and f"[{leak['low']:.2%}, {leak['high']:.2%}]"
    warning = f"{unsure} texts came without ids: the engine's own tokens may differ"
    lines = {
        "texts": f"{facts['texts']} of {facts['prompts']} prompts, {facts['tokens']} tokens",
        "drawn with": kinds,
        "warning": warning if unsure else None,
        "informative": f"{facts['positions']} positions with more than one possible token",
        "impossible": _impossible(facts),
        "leakage": leak and f"{leak['estimate']:.2%} {interval}, at most {leak['bound']:.2%} (95%)",
        "log-score": score
        and f"z {score['z']:+.2f}, p {score['p_value']:.2g}; above 0: sharper than the target",
        "transform": cells and f"p {cells['p_value']:.2g}",
        "e-value": f"10^{facts['log10_e_value']:.1f}; alarm at 10^3",
        "verdict": worded(facts["verdict"], leakage_bound(facts)),
    }
    return [(name, text) for name, text in lines.items() if text is not None]


def _impossible(facts: Mapping[str, Any]) -> str:
    text = f"{facts['impossible']} tokens of probability 0; {facts['edge']} only by rounding"
    first = facts["first_impossible"]
    if first is None:
        return text
    return (
        f"{text}; the first: line {first['line']}, token {first['index']} of the completion "
        f"(id {first['token_id']}), {first['gap']:.3g} below the best logit"
    )


def _sources(config: RunConfig, *, alone: bool) -> tuple[list[ModelSource], int, int]:
    """Target and, unless it is alone, draft; the logits they share and the shorter window."""
    from spsbench.models.causal_lm import context_window, text_config
    from spsbench.models.hf_errors import quiet_libraries
    from spsbench.models.pair import find_pair
    from spsbench.models.source import find

    if alone:
        quiet_libraries()
        source = find(config.pair.target.id, config.pair.target.revision, "--target")
        return [source], text_config(source.config).vocab_size, context_window(source.config)
    both = find_pair(config.pair)
    return [both.target, both.draft], both.vocab_size, both.context_window


def _load(sources: list[ModelSource], size: int, config: RunConfig) -> list[CausalLM]:
    from spsbench.config.models import TORCH
    from spsbench.models.loading import load
    from spsbench.models.memory import require_memory
    from spsbench.models.pair import resolve_device

    device, dtype = resolve_device(config.device), config.model_dtype
    require_memory(sources[0], sources[1] if len(sources) > 1 else None, (dtype, dtype), device, TORCH)
    models: list[CausalLM] = []
    # The reference forward: an auditor that shares code with the engine would share its faults.
    for source, flag in zip(sources, ("--target", "--draft"), strict=False):
        under = models[0] if models else None
        models.append(load(source, dtype, device, size, flag, TORCH, target=under))
    return models


# --- texts drawn from an engine ---


_CONFORMANCE_PROMPTS = 4


def verify_engine(params: Mapping[str, Any]) -> None:
    """Test the form of an engine's answers, without speculation and with it."""
    from spsbench.engines.external.registry import find_peer

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
    columns = [left("setting"), left("test"), left("verdict"), left("found", whole=False)]
    every = [(name, each) for name, all_ in found.items() for each in all_]
    present(
        lambda: {
            name: [asdict(each) | {"verdict": each.verdict} for each in all_] for name, all_ in found.items()
        },
        lambda: Table(columns, [[name, f.test, f.verdict, f.found] for name, f in every]).as_rich(),
        json=params["json"],
        quiet=params["quiet"],
    )
    failed = [f"{each.test} ({name})" for name, each in every if not each.passed]
    if failed:
        raise GateFailed(f"it does not follow the protocol: {', '.join(failed)}.", flag="--engine")
    told = "It follows the protocol. Whether its texts follow the target: spsbench audit."
    say(told, quiet=params["quiet"])


_PROMPTS, _TEXTS, _BUDGET_S, _PROBES = 40, 320, 600.0, 24
_EVERY_S = 10.0

_DEFAULT = ({"temperature": "0.7"}, {"temperature": "1"}, {"temperature": "1", "top_p": "0.9"})
"""Samplings where none is asked for: at temperature 1 a token that ignores it looks right, and without a cut
so does one that ignores the cut."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of an audit, read; ``kind`` is the engine with the weights that were asked for, ``limits``
    are leakage, texts and seconds."""

    kind: PeerKind
    limits: tuple[float, int, float]
    weights: str
    lookaheads: Sequence[int | None]
    samplings: Sequence[SamplingParams]
    levels: Sequence[int]
    caches: tuple[bool, ...]
    threads: int | None
    config: RunConfig

    @property
    def count(self) -> int:
        return len(self.lookaheads) * len(self.samplings) * len(self.levels) * len(self.caches or (False,))


def settings_asked(params: Mapping[str, Any], kind: PeerKind) -> Asked:
    """Refuse what cannot be asked, before torch is imported."""
    from spsbench.engines.external.protocol import FLOAT32, MOST_IN_FLIGHT

    bound = 0.02 if params["bound"] is None else values.share(params["bound"], "--bound")
    texts = int(values.number(params["texts"], "--texts", 1, _TEXTS, whole=True))
    limits = bound, texts, values.seconds(params["budget"], _BUDGET_S)
    weights = params["weights"] or FLOAT32
    kind, lookaheads = _prepared(kind, params, weights)
    samplings = _samplings(params)
    levels = values.concurrencies(params["in_flight"] or "1", "--in-flight", MOST_IN_FLIGHT)
    caches, threads = _caches(params["prefix_cache"]), values.threads(params["threads"])
    config = config_of(params, "--task")
    return Asked(kind, limits, weights, lookaheads, samplings, levels, caches, threads, config)


def audited(params: Mapping[str, Any], kind: PeerKind) -> tuple[Course, str | None]:
    """The audit of an engine, and why it was given up, if so."""
    from spsbench.engines.external.protocol import PeerGone

    asked = settings_asked(params, kind)
    kind, limits, caches, weights = asked.kind, asked.limits, asked.caches, asked.weights
    from spsbench.cli.interruption import continued_by, typed
    from spsbench.decode.processors import bound
    from spsbench.engines.external.engine import ids_that_end
    from spsbench.store import fresh_directory
    from spsbench.verify.engine_audit import Effort, Setting, audit_engine
    from spsbench.verify.evidence_file import Paths

    quiet = params["quiet"]
    say("Checking prompts, models and engine", quiet=quiet)
    ready = plan_of(asked.config, params["engine"])
    tokenizer, size = ready.source.tokenizer, ready.source.vocab_size
    ends = frozenset(ids_that_end(ready.stop, tokenizer, size))
    bounds = [bound(sampling, tokenizer, ends) for sampling in asked.samplings]
    settings = [
        Setting(sampling, k, level, cache, weights)
        for sampling, k, cache, level in product(bounds, asked.lookaheads, caches or (False,), asked.levels)
    ]
    folder: Path = params["out"] or fresh_directory(results_dir(), "audit", ready.config.pair.name)
    make_folder(folder, "--out")
    make_folder((params["evidence"] or folder).parent, "--evidence")
    subject = subject_of(kind, ready, asked.threads, weights)
    # A bound that was asked for is what the audit waits for; without one, all texts are drawn.
    fewest = limits[1] if params["bound"] is None else 0
    effort = Effort(*limits, ready.max_new_tokens, fewest, shared_prefixes=bool(caches), probes=_PROBES)
    course = Course(params, ready, subject, folder, effort, Paths(_watch(effort, quiet=quiet)))
    course.require_same()
    course.write()
    if not params.get("releases"):  # whose folder is another
        continued_by(lambda: typed(*(() if params["out"] else ("--out", str(folder)))))
    gone = None
    told = (folder, lambda s: say(s, quiet=quiet), course.paths)
    try:
        for row in audit_engine(subject, settings, effort, ready.config.seed, *told):
            course.rows.append(row)
            course.write()
    except PeerGone as error:
        gone = str(error)
    if gone is not None and not course.rows:
        raise UnavailableError(f"{kind.name} cannot be asked: {gone}.", flag="--engine")
    course.give_evidence(subject)
    if params["repro"]:
        course.reproduce(subject)
    return course, gone


def _prepared(kind: PeerKind, params: Mapping[str, Any], weights: str) -> tuple[PeerKind, list[int | None]]:
    """The engine with these weights, and with which K it is run."""
    from spsbench.engines.external.protocol import FLOAT32

    kind = kind.with_weights(weights, "--weights")
    if params["repro"] and kind.served:
        why, remedy = "no script is written for servers.", "Name the engine itself, or a worker."
        raise UsageError(why, flag="--repro", remedy=remedy)
    lookaheads = _lookaheads(params, served=kind.served)
    if weights != FLOAT32 and 0 not in lookaheads:
        why = "the plain texts measure the rounding of the engine's kernels."
        raise UsageError(why, flag="--weights", remedy=f"Leave {PLAIN} among the --arms.")
    return kind, lookaheads


def _lookaheads(params: Mapping[str, Any], *, served: bool) -> list[int | None]:
    """Plain (0) and each K; of a server None alone, for it has its own K or none."""
    if served:
        refuse_together("audit", {**params, "server": True})
        return [None]
    arms = [name.strip() for name in (params["arms"] or f"{PLAIN},{SPECULATING}").split(",")]
    wrong = next((name for name in arms if name not in (PLAIN, SPECULATING)), None)
    if wrong is not None:
        raise unknown(wrong, (PLAIN, SPECULATING), "--arms")
    ks = values.lookaheads(params["k"] or "4") if SPECULATING in arms else ()
    return [*([0] if PLAIN in arms else []), *ks]


def _caches(text: str | None) -> tuple[bool, ...]:
    """Without a prefix cache first, the control; empty where none was asked for."""
    if text is None:
        return ()
    states = {part.strip() for part in text.split(",")}
    if not states <= {"on", "off"}:
        raise UsageError(f"{text} is unknown.", flag="--prefix-cache", remedy="Choose from on, off.")
    return (False, True) if "on" in states else (False,)


def _samplings(params: Mapping[str, Any]) -> list[SamplingParams]:
    """The product of the lists that were given, each combination once; ``_DEFAULT`` without any."""
    names = ("temperature", "top_p", "top_k")
    if not params["greedy"] and all(params[name] is None for name in names):
        nothing = {**params, **dict.fromkeys(names)}
        return [values.sampling({**nothing, **given, "greedy": False}) for given in _DEFAULT]
    lists = [[None] if params[name] is None else params[name].split(",") for name in names]
    found = [values.sampling({**params, **dict(zip(names, given, strict=True))}) for given in product(*lists)]
    return list(dict.fromkeys(found))


def config_of(params: Mapping[str, Any], task_flag: str) -> RunConfig:
    """Prompts, pair and seed, as a run would have them; no sampling of the task's is used."""
    names = "task prompts data pair target draft revision draft_revision device seed max_new_tokens quiet"
    given = {name: params.get(name) for name in names.split()}
    given |= {"arms": PLAIN, "limit": params["limit"] or str(_PROMPTS), "no_score": True}
    try:
        config = read_settings(given)
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


def subject_of(kind: PeerKind, ready: Plan, threads: int | None, weights: str = "float32") -> Subject:
    """Everything that the engine is asked with, and the models that read its texts by the reference forward.

    They keep to the cores that the engine leaves: pools of threads that share a core wait for each other.
    """
    import os

    import torch

    from spsbench.config.models import TORCH
    from spsbench.engines.external.conversion import read_back
    from spsbench.engines.external.engine import ids_that_end
    from spsbench.models.loading import load
    from spsbench.models.source import find
    from spsbench.runner.peers import folder_of
    from spsbench.verify.engine_audit import Subject

    torch.set_num_threads(max(1, (os.cpu_count() or 1) - (threads or 1)))
    source, given = ready.source, (ready.device, ready.source.vocab_size)
    # Loading fetches what is not here. An auditor that shared code with an engine would share its faults.
    sources, folders = (source.target, source.draft), (folder_of(source.target), folder_of(source.draft))
    if weights != "float32":  # the law is that of the files that are served
        served = [Path(kind.converted(folder)) for folder in folders]
        back = [read_back(*both) for both in zip(folders, served, strict=True)]
        sources = find(str(back[0]), None, "--target"), find(str(back[1]), None, "--draft")
    target = load(sources[0], "float32", *given, "--target", TORCH)
    draft = load(sources[1], "float32", *given, "--draft", TORCH, target=target)
    return Subject(
        kind=kind,
        models=(target, draft),
        folders=folders,
        prompts=[prompt.ids for prompt in ready.prompts],
        stop_ids=ids_that_end(ready.stop, source.tokenizer, source.vocab_size),
        threads=threads or 1,
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


@dataclass(slots=True)
class Course:
    """An audit as it goes on: what was asked, where it is kept, and the settings that are done."""

    params: Mapping[str, Any]
    ready: Plan
    subject: Subject
    folder: Path
    effort: Effort
    paths: Paths
    rows: list[Row] = field(default_factory=list)
    repro: ReproFacts | None = None

    @property
    def asked(self) -> dict[str, Any]:
        """What must be the same where an audit goes on."""
        names = ("engine", "task", "limit", "target", "draft", "revision", "draft_revision")
        facts = {name: self.params[name] and str(self.params[name]) for name in names}
        more = {"seed": self.ready.config.seed, "max_new_tokens": self.ready.max_new_tokens}
        more |= {"weights": self.params["weights"]} if self.params["weights"] else {}
        more |= {"shared_prefixes": True} if self.effort.shared_prefixes else {}  # other prompts
        return facts | {"pair": self.ready.config.pair.name} | more

    def require_same(self) -> None:
        import json

        try:
            before = json.loads((self.folder / "audit.json").read_text()).get("asked")
        except (OSError, ValueError, AttributeError):
            before = None
        if before != self.asked and (before is not None or any(self.folder.glob("*.jsonl"))):
            why = f"{self.folder} holds the texts of another audit."
            raise UsageError(why, flag="--out", remedy="Name another directory.")

    def write(self) -> None:
        """Keep what is known so far: a kill loses one setting at most, and of that the texts are there."""
        from spsbench.environment import describe_environment
        from spsbench.files import write_json

        facts: dict[str, Any] = {
            "asked": self.asked,
            "effort": self.effort,
            "environment": describe_environment(),
            "rows": [row.facts() for row in self.rows],
        }
        write_json(self.folder / "audit.json", facts | ({} if self.repro is None else {"repro": self.repro}))

    def give_evidence(self, subject: Subject) -> None:
        """Write the file for others, if it was asked for."""
        from spsbench.verify.evidence_file import write

        if (path := self.params["evidence"]) is not None:
            source = self.ready.source
            given = (self.asked, self.ready.config.seed, self.rows, self.paths, self.folder)
            write(path, subject, (source.target, source.draft), self.effort, *given)
            say(
                f"What others check this with is in {path}: spsbench audit {path}.",
                quiet=self.params["quiet"],
            )

    def reproduce(self, subject: Subject) -> None:
        """Look for one context that shows the clearest alarm, if there is one and the engine stays up."""
        from spsbench.engines.external.protocol import PeerGone
        from spsbench.verify.repro import reproduce, reproducible

        quiet, pair = self.params["quiet"], self.ready.config.pair
        row = reproducible(self.rows)
        if row is None:
            say("No alarm, so there is nothing to reproduce.", quiet=quiet)
            return
        say(f"Looking for a prompt that shows it: {row.setting.name}", quiet=quiet)
        names = model_name(pair.target), model_name(pair.draft)
        longest, seed = self.effort.max_new_tokens, self.ready.config.seed
        try:
            self.repro = reproduce(row, subject, names, longest, seed, self.folder)
        except PeerGone as error:
            say(f"No reproduction: {error}.", quiet=quiet)
        else:
            self.write()

    def show(self) -> None:
        from spsbench.report.judgement import repro_sentence

        facts: dict[str, Any] = {"folder": str(self.folder), "label": self.ready.label()}
        facts |= {"rows": [row.facts() for row in self.rows]}
        more = [] if self.repro is None else [repro_sentence(self.repro, self.folder)]
        if self.repro is not None:
            facts |= {"repro": self.repro}
        title = f"{self.ready.config.pair.name}, {self.ready.label()}"
        _print_rows(self.rows, title, self.effort.bound, facts, self.params, more)
        if not self.params["json"]:
            say(f"Texts and audit.json are in {self.folder}.", quiet=self.params["quiet"])


def _print_rows(
    rows: Sequence[Row],
    title: str,
    bound: float | None,
    facts: Mapping[str, Any],
    params: Mapping[str, Any],
    more: Sequence[str],
) -> None:
    """Print the table of settings and what it says, or facts as JSON."""
    from spsbench.report.judgement import audit_sentences, audit_table

    if params["json"]:
        print_json(facts)
        return
    described = next((row.described for row in rows if not row.found.cannot), rows[0].described)
    screen = out(quiet=params["quiet"])
    screen.print(f"{described.engine} {described.version}, {title}", markup=False)
    screen.print(audit_table(facts["rows"]).as_rich())
    for sentence in (*audit_sentences(facts["rows"], bound), *described.limits, *more):
        screen.print(f"\n{sentence}", markup=False, highlight=False)


def conclude(rows: Sequence[Row], bound: float | None, gone: str | None) -> None:
    """Raise what gives the exit code: an alarm counts before what is not clear, or was not audited."""
    from spsbench.engines.external.protocol import FLOAT32
    from spsbench.stats.losslessness import ALARM
    from spsbench.verify.engine_audit import CANNOT, PLAIN_TEXTS, UNDECIDED

    without = [row for row in rows if row.decision == CANNOT]
    if len(without) == len(rows) and gone is None:
        why = "; ".join(dict.fromkeys(f"{row.found.cannot}" for row in rows))
        raise UnavailableError(f"none of the settings can be audited: {why}.", flag="--engine")
    alarms = [row.setting.name for row in rows if row.decision == ALARM and row.convention is None]
    if alarms:
        raise GateFailed(f"not the target's distribution: {'; '.join(alarms)}.", flag="--engine")
    free = [(row.setting.name, each) for row in rows for each in row.found.free]
    beside = [f"{each.test} ({setting})" for setting, each in free if not each.passed]
    if beside:
        raise GateFailed(f"wrong beside the law of its texts: {'; '.join(beside)}.", flag="--engine")
    if gone is not None:
        raise IncompleteError(f"the engine gave up: {gone}.", flag="--engine")
    unclear = [row.setting for row in rows if row.decision == UNDECIDED]
    # Where nothing is drafted no bound is waited for.
    few = [each.name for each in unclear if each.is_plain and each.weights == FLOAT32]
    leaks = [each.name for each in unclear if each.name not in few]
    if unclear:
        more = ", a higher --temperature, or a wider --bound" if leaks else ""
        whys = [f"that less than {bound:.1%} leaks could not be shown: {'; '.join(leaks)}"] if leaks else []
        whys += [f"plain sampling is judged after {PLAIN_TEXTS} texts: {'; '.join(few)}"] if few else []
        remedy = f"Give more --texts or --budget{more}."
        raise IncompleteError(f"{'; '.join(whys)}.", flag="--bound" if leaks else "--texts", remedy=remedy)
    if without:
        raise IncompleteError(
            f"not audited: {'; '.join(f'{row.setting.name} ({row.found.cannot})' for row in without)}.",
            flag="--engine",
            remedy="Leave these settings out to judge the others alone.",
        )

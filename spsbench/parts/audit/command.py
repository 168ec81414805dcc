"""``spsbench audit``: texts of a file, or of an engine that is asked until it is clear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base import (
    GateFailed,
    IncompleteError,
    SpsbenchError,
    UnavailableError,
    UsageError,
    make_folder,
    results_dir,
    unknown,
)
from spsbench.cli import (
    options,
    out,
    present,
    print_json,
    read_settings,
    require_possible,
    say,
    takes,
    values,
)
from spsbench.config import model_name, refuse_together

if TYPE_CHECKING:
    from spsbench.base import SamplingParams
    from spsbench.config import RunConfig
    from spsbench.parts.audit.engine_audit import Effort, Row, Setting, Subject, Watch
    from spsbench.parts.audit.evidence_file import Paths
    from spsbench.parts.external.registry import PeerKind
    from spsbench.parts.verify.effort import Finding
    from spsbench.runner import Plan
    from spsbench.store import Evidence, ReproFacts


DRAWN = "With --engine"

PLAIN, SPECULATING = "ars", "sps"


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
            **options.OF_TEXTS,
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
            "--evidence FILE": "Also write what others check the verdict by: spsbench audit FILE --target T.",
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
        from spsbench.parts.audit.releases import audit_releases

        audit_releases(params)
    elif params["engine"] is not None:
        from spsbench.parts.external.registry import find_peer

        course, gone = audited(params, find_peer(params["engine"]))
        course.show()
        conclude(course.rows, course.effort.bound, gone)
    else:
        from spsbench.parts.audit.command_texts import audit_file, audit_log

        if params["samples"] is not None:
            audit_file(params["samples"], params)
        else:
            audit_log(params["follow"], params)


_CONFORMANCE_PROMPTS = 4


def verify_engine(params: Mapping[str, Any]) -> None:
    """Test the form of an engine's answers, without speculation and with it."""
    from spsbench.parts.external.registry import find_peer

    kind = find_peer(params["engine"])
    (k, *_) = values.lookaheads(params["k"] or "4")
    threads = values.threads(params["threads"])
    config = config_of(dict(params) | {"limit": str(_CONFORMANCE_PROMPTS)}, "TASK")
    say("Checking prompts, models and engine", quiet=params["quiet"])
    from spsbench.parts.audit.conformance import Asked, conformance
    from spsbench.report import Table, left

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
    from spsbench.base import FLOAT32, MOST_IN_FLIGHT

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
    from spsbench.base import PeerGone

    asked = settings_asked(params, kind)
    kind, limits, caches, weights = asked.kind, asked.limits, asked.caches, asked.weights
    from spsbench.cli import continued_by, typed
    from spsbench.decode import bound
    from spsbench.parts.audit.engine_audit import Effort, Setting, audit_engine
    from spsbench.parts.audit.evidence_file import Paths
    from spsbench.parts.external.engine import ids_that_end
    from spsbench.store import fresh_directory

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
    course = Course(params, ready, subject, folder, effort, Paths(watch(effort, quiet=quiet)))
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
    from spsbench.base import FLOAT32

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
    from spsbench.runner import plan, require_decoder

    ready = plan(config)
    require_decoder(ready.source, engine)
    return ready


def subject_of(kind: PeerKind, ready: Plan, threads: int | None, weights: str = "float32") -> Subject:
    """Everything that the engine is asked with, and the models that read its texts by the reference forward.

    They keep to the cores that the engine leaves: pools of threads that share a core wait for each other.
    """
    import os

    import torch

    from spsbench.config import TORCH
    from spsbench.models import find, load
    from spsbench.parts.audit.engine_audit import Subject
    from spsbench.parts.external.conversion import read_back
    from spsbench.parts.external.engine import ids_that_end
    from spsbench.runner import folder_of

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


def watch(effort: Effort, *, quiet: bool) -> Watch:
    """Say every few seconds how far a setting is and what it says so far."""
    import time

    from spsbench.report import interim

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
        from spsbench.base import describe_environment, write_json

        facts: dict[str, Any] = {
            "asked": self.asked,
            "effort": self.effort,
            "environment": describe_environment(),
            "rows": [row.facts() for row in self.rows],
        }
        write_json(self.folder / "audit.json", facts | ({} if self.repro is None else {"repro": self.repro}))

    def give_evidence(self, subject: Subject) -> None:
        """Write the file for others, if it was asked for."""
        from spsbench.parts.audit.evidence_file import write

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
        from spsbench.base import PeerGone
        from spsbench.parts.audit.repro import reproduce, reproducible

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
        from spsbench.report import repro_sentence

        facts: dict[str, Any] = {"folder": str(self.folder), "label": self.ready.label()}
        facts |= {"rows": [row.facts() for row in self.rows]}
        more = [] if self.repro is None else [repro_sentence(self.repro, self.folder)]
        if self.repro is not None:
            facts |= {"repro": self.repro}
        title = f"{self.ready.config.pair.name}, {self.ready.label()}"
        print_rows(self.rows, title, self.effort.bound, facts, self.params, more)
        if not self.params["json"]:
            say(f"Texts and audit.json are in {self.folder}.", quiet=self.params["quiet"])


def print_rows(
    rows: Sequence[Row],
    title: str,
    bound: float | None,
    facts: Mapping[str, Any],
    params: Mapping[str, Any],
    more: Sequence[str],
) -> None:
    """Print the table of settings and what it says, or facts as JSON."""
    from spsbench.report import audit_sentences, audit_table

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
    from spsbench.base import FLOAT32
    from spsbench.parts.audit.engine_audit import CANNOT, PLAIN_TEXTS, UNDECIDED
    from spsbench.stats import ALARM

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

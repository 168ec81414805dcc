"""``spsbench audit``: texts of a file, or of an engine that is asked until it is clear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base import (
    GateFailed,
    IncompleteError,
    UnavailableError,
    UsageError,
    make_folder,
    require_makeable,
    results_dir,
    unknown,
)
from spsbench.cli import (
    Common,
    asks,
    options,
    out,
    present,
    print_json,
    read_material,
    say,
    task_named_by,
    values,
)
from spsbench.config import ModelRef, model_name, refuse_together

if TYPE_CHECKING:
    from spsbench.base import Drafting, SamplingParams
    from spsbench.config import MaterialSettings
    from spsbench.parts.audit.engine_audit import Effort, Row, Setting, Subject, Watch
    from spsbench.parts.audit.evidence_file import Paths
    from spsbench.parts.external.registry import PeerKind
    from spsbench.parts.verify.command import VerifyOptions
    from spsbench.parts.verify.effort import Finding
    from spsbench.runner import Material
    from spsbench.store import Evidence, ReproFacts


DRAWN = "With --engine"

TOKENS, DRAWS = 6, 500
"""With --contexts: new tokens of a request, and requests for each context."""

PLAIN, SPECULATING = "ars", "sps"


@dataclass(frozen=True, kw_only=True)
class AuditOptions(Common):
    samples: Path | None
    engine: str | None
    follow: Path | None
    pair: str | None
    target: str | None
    draft: str | None
    temperature: str | None
    top_p: str | None
    top_k: str | None
    process: list[str] | None
    every: str | None
    webhook: str | None
    k: str | None
    arms: str | None
    weights: str | None
    in_flight: str | None
    prefix_cache: str | None
    contexts: str | None
    bound: str | None
    texts: str | None
    budget: str | None
    task: str | None
    limit: str | None
    max_new_tokens: str | None
    template_arg: list[str] | None
    threads: str | None
    out: Path | None
    evidence: Path | None
    repro: bool
    releases: str | None
    keep: bool
    seed: str | None
    device: str | None
    dtype: str | None


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


_PROMPTS, _TEXTS, _BUDGET_S, _PROBES = 40, 320, 600.0, 24
_EVERY_S = 10.0

_DEFAULT: tuple[tuple[str | None, str | None, str | None], ...] = (
    ("0.7", None, None),
    ("1", None, None),
    ("1", "0.9", None),
)
"""Temperature, top-p and top-k where none is asked for: at temperature 1 a token that ignores it looks right,
and without a cut so does one that ignores the cut."""


@dataclass(frozen=True, slots=True)
class AuditChoices:
    """The options of an audit, read; ``kind`` is the engine with the weights that were asked for, ``limits``
    are leakage, texts and seconds, ``settings`` are those of its prompts and models."""

    kind: PeerKind
    limits: tuple[float, int, float]
    weights: str
    lookaheads: Sequence[int | None]
    samplings: Sequence[SamplingParams]
    levels: Sequence[int]
    caches: tuple[bool, ...]
    threads: int | None
    settings: MaterialSettings
    contexts: int = 0

    @property
    def count(self) -> int:
        return len(self.lookaheads) * len(self.samplings) * len(self.levels) * len(self.caches or (False,))


def settings_asked(wanted: AuditOptions, kind: PeerKind) -> AuditChoices:
    """Return the planned settings; refuse what is impossible before torch is imported."""
    from spsbench.base import FLOAT32, MOST_IN_FLIGHT

    bound = 0.02 if wanted.bound is None else values.share(wanted.bound, "--bound")
    contexts = int(values.number(wanted.contexts, "--contexts", 1, 0, whole=True))
    texts = int(values.number(wanted.texts, "--texts", 1, DRAWS * contexts or _TEXTS, whole=True))
    limits = bound, texts, values.seconds(wanted.budget, _BUDGET_S)
    weights = wanted.weights or FLOAT32
    kind, lookaheads = _prepared(kind, wanted, weights)
    samplings = _samplings(wanted)
    levels = values.concurrencies(wanted.in_flight or "1", "--in-flight", MOST_IN_FLIGHT)
    caches = _caches(wanted.prefix_cache)
    threads = values.threads(wanted.threads)
    if contexts:
        if any(sampling.greedy for sampling in samplings):
            why = "greedily no token is drawn, and contexts are chosen by what is."
            raise UsageError(why, flag="--contexts", remedy="Leave temperature 0 out.")
        wanted = replace(wanted, max_new_tokens=wanted.max_new_tokens or str(TOKENS))
    for folder, flag in ((wanted.out, "--out"), (wanted.evidence and wanted.evidence.parent, "--evidence")):
        if folder is not None:
            require_makeable(folder, flag)
    settings = _material_settings(wanted)
    return AuditChoices(
        kind, limits, weights, lookaheads, samplings, levels, caches, threads, settings, contexts
    )


def audited(wanted: AuditOptions, kind: PeerKind) -> tuple[Course, str | None]:
    """Audit an engine; return the audit and, if it was given up, the reason."""
    from spsbench.base import PeerGone

    planned = settings_asked(wanted, kind)
    kind = planned.kind
    limits = planned.limits
    caches = planned.caches
    weights = planned.weights
    from spsbench.cli import continued_by, typed
    from spsbench.decode import bound
    from spsbench.parts.audit.engine_audit import Effort, Setting, audit_engine
    from spsbench.parts.audit.evidence_file import Paths
    from spsbench.parts.external.engine import ids_that_end
    from spsbench.store import fresh_directory

    quiet = wanted.quiet
    say("Checking prompts, models and engine", quiet=quiet)
    material = material_for(planned.settings, wanted.engine or kind.name)
    tokenizer, size = material.tokenizer, material.source.vocab_size
    ends = frozenset(ids_that_end(material.stop, tokenizer, size))
    bounds = [bound(sampling, tokenizer, ends) for sampling in planned.samplings]
    settings = [
        Setting(sampling, k, level, cache, weights)
        for sampling, k, cache, level in product(
            bounds, planned.lookaheads, caches or (False,), planned.levels
        )
    ]
    folder = wanted.out or fresh_directory(results_dir(), "audit", material.pair.name)
    make_folder(folder, "--out")
    make_folder((wanted.evidence or folder).parent, "--evidence")
    subject = subject_of(kind, material, planned.threads, weights)
    drafting = kind.drafting
    if planned.contexts:
        drafting = drafting or declared(subject, planned.lookaheads, material.max_new_tokens, folder)
        say(f"Choosing {planned.contexts} contexts", quiet=quiet)
        subject = at_contexts(subject, bounds, planned.contexts, drafting)
    # A bound that was asked for is what the audit waits for; without one, all texts are drawn.
    fewest = limits[1] if wanted.bound is None else 0
    effort = Effort(
        *limits,
        material.max_new_tokens,
        fewest,
        shared_prefixes=bool(caches),
        probes=_PROBES,
        contexts=planned.contexts,
        drafting=drafting,
    )
    course = Course(wanted, material, subject, folder, effort, Paths(watch(effort, quiet=quiet)))
    course.require_same()
    course.write()
    if wanted.releases is None:  # whose folder is another
        continued_by(lambda: typed(*(() if wanted.out else ("--out", str(folder)))))
    gone = None
    try:
        for row in audit_engine(
            subject,
            settings,
            effort,
            material.seed,
            folder,
            lambda sentence: say(sentence, quiet=quiet),
            course.paths,
        ):
            course.rows.append(row)
            course.write()
    except PeerGone as error:
        gone = str(error)
    if gone is not None and not course.rows:
        raise UnavailableError(f"{kind.name} cannot be asked: {gone}.", flag="--engine")
    course.give_evidence(subject)
    if wanted.repro:
        course.reproduce(subject)
    return course, gone


def _prepared(kind: PeerKind, wanted: AuditOptions, weights: str) -> tuple[PeerKind, list[int | None]]:
    """Return the engine with these weights, and the K with which it is run."""
    from spsbench.base import FLOAT32

    kind = kind.with_weights(weights, "--weights")
    if wanted.repro and kind.served:
        why = "no script is written for servers."
        remedy = "Name the engine itself, or a worker."
        raise UsageError(why, flag="--repro", remedy=remedy)
    lookaheads = _lookaheads(wanted, served=kind.served)
    if weights != FLOAT32 and 0 not in lookaheads:
        why = "the plain texts measure the rounding of the engine's kernels."
        raise UsageError(why, flag="--weights", remedy=f"Leave {PLAIN} among the --arms.")
    return kind, lookaheads


def _lookaheads(wanted: AuditOptions, *, served: bool) -> list[int | None]:
    """Return 0 (plain) and each K; for a server None alone, since it has its own K or none."""
    if served:
        refuse_together("audit", {**vars(wanted), "server": True})
        return [None]
    arms = [name.strip() for name in (wanted.arms or f"{PLAIN},{SPECULATING}").split(",")]
    wrong = next((name for name in arms if name not in (PLAIN, SPECULATING)), None)
    if wrong is not None:
        raise unknown(wrong, (PLAIN, SPECULATING), "--arms")
    ks = values.lookaheads(wanted.k or "4") if SPECULATING in arms else ()
    return [*([0] if PLAIN in arms else []), *ks]


def _caches(text: str | None) -> tuple[bool, ...]:
    """Return whether to run without a prefix cache (the control, first) and with it.

    It is empty if that is not asked for.
    """
    if text is None:
        return ()
    states = {part.strip() for part in text.split(",")}
    if not states <= {"on", "off"}:
        raise UsageError(f"{text} is unknown.", flag="--prefix-cache", remedy="Choose from on, off.")
    return (False, True) if "on" in states else (False,)


def _samplings(wanted: AuditOptions) -> list[SamplingParams]:
    """Return the product of the lists that were given, each combination once; ``_DEFAULT`` without any."""
    typed = (wanted.temperature, wanted.top_p, wanted.top_k)
    if any(text is not None for text in typed):
        combined = list(product(*([None] if text is None else text.split(",") for text in typed)))
    else:
        combined = list(_DEFAULT)
    samplings = [
        values.sampling(replace(wanted, temperature=temperature, top_p=top_p, top_k=top_k))
        for temperature, top_p, top_k in combined
    ]
    return list(dict.fromkeys(samplings))


def _material_settings(wanted: AuditOptions) -> MaterialSettings:
    """Return the settings of prompts and models; the task's samplings are not used."""
    with task_named_by("--task"):
        return read_material(
            task=wanted.task,
            pair=wanted.pair,
            target=wanted.target,
            draft=wanted.draft,
            limit=wanted.limit or str(_PROMPTS),
            max_new_tokens=wanted.max_new_tokens,
            seed=wanted.seed,
            device=wanted.device,
            template_arg=wanted.template_arg,
            quiet=wanted.quiet,
        )


def material_for(settings: MaterialSettings, engine: str) -> Material:
    """Find the prompts and models for an engine, which runs decoders only."""
    from spsbench.runner import find_material, require_decoder

    material = find_material(settings, rolls_back=False)
    require_decoder(material.source, engine)
    return material


def subject_of(kind: PeerKind, material: Material, threads: int | None, weights: str = "float32") -> Subject:
    """Return the engine with all it is asked, and the models that read its texts by the reference forward.

    They keep to the cores that the engine leaves: pools of threads that share a core wait for each other.
    """
    import os

    import torch

    from spsbench.config import TORCH
    from spsbench.models import find, load
    from spsbench.parts.audit.engine_audit import Subject
    from spsbench.parts.external.conversion import read_back
    from spsbench.parts.external.engine import ids_that_end
    from spsbench.runner import model_folder

    torch.set_num_threads(max(1, (os.cpu_count() or 1) - (threads or 1)))
    source = material.source
    # Loading fetches what is not here. An auditor that shared code with an engine would share its faults.
    sources = source.target, source.draft
    folders = model_folder(source.target), model_folder(source.draft)
    if weights != "float32":  # the law is that of the files that are served
        served = [Path(kind.converted(folder)) for folder in folders]
        back = [read_back(*both) for both in zip(folders, served, strict=True)]
        sources = find(str(back[0]), None, "--target"), find(str(back[1]), None, "--draft")
    target = load(sources[0], "float32", material.device, source.vocab_size, "--target", TORCH)
    draft = load(sources[1], "float32", material.device, source.vocab_size, "--draft", TORCH, target=target)
    return Subject(
        kind=kind,
        models=(target, draft),
        folders=folders,
        prompts=[prompt.ids for prompt in material.prompts],
        stop_ids=ids_that_end(material.stop, source.tokenizer, source.vocab_size),
        threads=threads or 1,
    )


def declared(
    subject: Subject, lookaheads: Sequence[int | None], max_new_tokens: int, folder: Path
) -> Drafting | None:
    """Return how a worker says that its drafts end; contexts are chosen before it writes a text."""
    from spsbench.base import PeerGone

    k = max(lookahead or 0 for lookahead in lookaheads)
    if not k or subject.kind.served:
        return None
    peer = subject.kind.open(subject.load(k, max_new_tokens), folder / "engine.log", False)
    try:
        return peer.describe().drafting
    except PeerGone as error:
        why = f"{subject.kind.name} cannot be asked: {error}."
        raise UnavailableError(why, flag="--engine") from error
    finally:
        peer.close()


def at_contexts(
    subject: Subject, samplings: Sequence[SamplingParams], count: int, drafting: Drafting | None
) -> Subject:
    """Return the subject with chosen contexts for prompts, chosen under the hottest of the samplings."""
    from spsbench.parts.audit.contexts import Forks, choose

    hottest = max(samplings, key=lambda each: each.temperature)
    forks = Forks(subject.models, hottest, drafting)
    contexts = choose(forks, subject.prompts, subject.stop_ids, count)
    if len(contexts) < count:
        why = f"{len(contexts)} of {len(subject.prompts)} prompts have a context for it."
        raise UsageError(why, flag="--contexts", remedy="Give fewer, or another --task or --limit.")
    return replace(subject, prompts=contexts)


def watch(effort: Effort, *, quiet: bool) -> Watch:
    """Report every few seconds how far a setting is and what is known so far."""
    import time

    from spsbench.report import interim

    last = time.monotonic()

    def report(setting: Setting, count: int, evidence: Evidence | None, bound: float | None) -> None:
        nonlocal last
        if time.monotonic() - last >= _EVERY_S:
            say(interim(setting.name, count, effort.texts, evidence, bound), quiet=quiet)
            last = time.monotonic()

    return report


@dataclass(slots=True)
class Course:
    """An audit as it goes on: what was asked, where it is kept, and the settings that are done."""

    wanted: AuditOptions
    material: Material
    subject: Subject
    folder: Path
    effort: Effort
    paths: Paths
    rows: list[Row] = field(default_factory=list)
    repro: ReproFacts | None = None

    @property
    def request(self) -> dict[str, Any]:
        """What must be the same where an audit is continued."""
        wanted = self.wanted
        target, draft = (None if id is None else ModelRef(id=id) for id in (wanted.target, wanted.draft))
        typed = {
            "engine": wanted.engine,
            "task": wanted.task,
            "limit": wanted.limit,
            "target": target and target.id,
            "draft": draft and draft.id,
            "revision": target and target.revision,
            "draft_revision": draft and draft.revision,
        }
        more: dict[str, Any] = {
            "pair": self.material.pair.name,
            "seed": self.material.seed,
            "max_new_tokens": self.material.max_new_tokens,
        }
        more |= {"weights": wanted.weights} if wanted.weights else {}
        if self.effort.contexts:  # they are chosen by how drafts end
            drafting = self.effort.drafting
            more |= {"contexts": self.effort.contexts, "drafting": drafting and drafting.described}
        more |= {"shared_prefixes": True} if self.effort.shared_prefixes else {}  # other prompts
        return typed | more

    def require_same(self) -> None:
        import json

        try:
            before = json.loads((self.folder / "audit.json").read_text()).get("asked")
        except (OSError, ValueError, AttributeError):
            before = None
        if before != self.request and (before is not None or any(self.folder.glob("*.jsonl"))):
            why = f"{self.folder} holds the texts of another audit."
            raise UsageError(why, flag="--out", remedy="Name another directory.")

    def write(self) -> None:
        """Write what is known so far: a kill then loses at most one setting, whose texts are kept."""
        from spsbench.base import describe_environment, write_json

        facts: dict[str, Any] = {
            "asked": self.request,
            "effort": self.effort,
            "environment": describe_environment(),
            "rows": [row.facts() for row in self.rows],
        }
        write_json(self.folder / "audit.json", facts | ({} if self.repro is None else {"repro": self.repro}))

    def give_evidence(self, subject: Subject) -> None:
        """Write the evidence file, if it was asked for."""
        from spsbench.parts.audit.evidence_file import write

        if (path := self.wanted.evidence) is not None:
            source = self.material.source
            write(
                path,
                subject,
                (source.target, source.draft),
                self.effort,
                self.request,
                self.material.seed,
                self.rows,
                self.paths,
                self.folder,
            )
            say(f"What others check this with is in {path}: spsbench audit {path}.", quiet=self.wanted.quiet)

    def reproduce(self, subject: Subject) -> None:
        """Look for a context that shows the clearest alarm, if there is one and the engine still runs."""
        from spsbench.base import PeerGone
        from spsbench.parts.audit.repro import reproduce, reproducible

        quiet, pair = self.wanted.quiet, self.material.pair
        row = reproducible(self.rows)
        if row is None:
            say("No alarm, so there is nothing to reproduce.", quiet=quiet)
            return
        say(f"Looking for a prompt that shows it: {row.setting.name}", quiet=quiet)
        names = model_name(pair.target), model_name(pair.draft)
        longest, seed = self.effort.max_new_tokens, self.material.seed
        try:
            self.repro = reproduce(row, subject, names, longest, seed, self.folder)
        except PeerGone as error:
            say(f"No reproduction: {error}.", quiet=quiet)
        else:
            self.write()

    def show(self) -> None:
        from spsbench.report import repro_sentence

        facts: dict[str, Any] = {"folder": str(self.folder), "label": self.material.label()}
        facts |= {"rows": [row.facts() for row in self.rows]}
        more = [] if self.repro is None else [repro_sentence(self.repro, self.folder)]
        if self.repro is not None:
            facts |= {"repro": self.repro}
        title = f"{self.material.pair.name}, {self.material.label()}"
        print_rows(self.rows, title, self.effort.bound, facts, self.wanted, more)
        if not self.wanted.json:
            say(f"Texts and audit.json are in {self.folder}.", quiet=self.wanted.quiet)


def print_rows(
    rows: Sequence[Row],
    title: str,
    bound: float | None,
    facts: Mapping[str, Any],
    wanted: Common,
    more: Sequence[str],
) -> None:
    """Print the table of settings and its conclusion, or facts as JSON."""
    from rich.table import Table
    from rich.text import Text

    from spsbench.report import audit_sentences, audit_table

    if wanted.json:
        print_json(facts)
        return
    described = next((row.described for row in rows if not row.result.cannot), rows[0].described)
    screen = out(quiet=wanted.quiet)
    screen.print(f"{described.engine} {described.version}, {title}", markup=False)
    screen.print(audit_table(facts["rows"]).as_rich())
    for sentence in (*audit_sentences(facts["rows"], bound), *more):
        screen.print(f"\n{sentence}", markup=False, highlight=False)
    if described.limits:
        screen.print(f"\nLimits of {described.engine} {described.version}:", markup=False, highlight=False)
        listed = Table.grid(padding=(0, 1, 0, 0))
        for limit in described.limits:
            listed.add_row("*", Text(limit))
        screen.print(listed)


def conclude(rows: Sequence[Row], bound: float | None, gone: str | None) -> None:
    """Raise what gives the exit code: an alarm comes before unclear or missing results."""
    from spsbench.base import FLOAT32
    from spsbench.parts.audit.engine_audit import CANNOT, PLAIN_TEXTS, UNDECIDED
    from spsbench.stats import ALARM

    without = [row for row in rows if row.decision == CANNOT]
    if len(without) == len(rows) and gone is None:
        why = "; ".join(dict.fromkeys(f"{row.result.cannot}" for row in rows))
        raise UnavailableError(f"none of the settings can be audited: {why}.", flag="--engine")
    alarms = [row.setting.name for row in rows if row.decision == ALARM and row.convention is None]
    if alarms:
        raise GateFailed(f"not the target's distribution: {'; '.join(alarms)}.", flag="--engine")
    free = [(row.setting.name, each) for row in rows for each in row.result.free]
    beside = [f"{each.test} ({setting})" for setting, each in free if not each.passed]
    if beside:
        raise GateFailed(f"wrong beside the law of its texts: {'; '.join(beside)}.", flag="--engine")
    if gone is not None:
        raise IncompleteError(f"the engine gave up: {gone}.", flag="--engine")
    withdrawn = [each for row in rows for each in row.result.free if each.test == "withdrawn"]
    if any(row.decision == UNDECIDED and not row.setting.is_plain for row in rows) and withdrawn:
        why = f"withdrawn drafts are not ruled out: {withdrawn[0].found.rstrip('.')}"
        raise IncompleteError(f"{why}.", flag="--contexts", remedy="Give more --texts, --budget or contexts.")
    unclear = [row.setting for row in rows if row.decision == UNDECIDED]
    greedy = [each.name for each in unclear if each.sampling.greedy]
    # Where nothing is drafted no bound is waited for.
    few = [
        each.name for each in unclear if each.is_plain and each.weights == FLOAT32 and each.name not in greedy
    ]
    leaks = [each.name for each in unclear if each.name not in (*few, *greedy)]
    if unclear:
        more = ", a higher --temperature, or a wider --bound" if leaks else ""
        whys = [f"that less than {bound:.1%} leaks could not be shown: {'; '.join(leaks)}"] if leaks else []
        if few:
            whys.append(f"plain sampling is judged after {PLAIN_TEXTS} texts: {'; '.join(few)}")
        if greedy:
            whys.append(f"greedy text is judged once every prompt has a text: {'; '.join(greedy)}")
        remedy = f"Give more --texts or --budget{more}."
        raise IncompleteError(f"{'; '.join(whys)}.", flag="--bound" if leaks else "--texts", remedy=remedy)
    if without:
        raise IncompleteError(
            f"not audited: {'; '.join(f'{row.setting.name} ({row.result.cannot})' for row in without)}.",
            flag="--engine",
            remedy="Leave these settings out to judge the others alone.",
        )

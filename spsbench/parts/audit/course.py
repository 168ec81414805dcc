"""An audit of an engine as it goes: prompts, models and settings to a table, a verdict and its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base import GateFailed, IncompleteError, UnavailableError, UsageError, make_folder, results_dir
from spsbench.cli import Common, data_by_task, out, print_json, say
from spsbench.config import ModelRef, model_name
from spsbench.parts.audit.messages import engines as messages
from spsbench.parts.audit.options import AuditOptions, settings_asked

if TYPE_CHECKING:
    from spsbench.base import Drafting, SamplingParams
    from spsbench.config import MaterialSettings
    from spsbench.parts.audit.engine_audit import Effort, Row, Setting, Subject, Watch
    from spsbench.parts.audit.evidence_file import Paths
    from spsbench.parts.external.registry import PeerKind
    from spsbench.runner import Material
    from spsbench.store import Evidence, ReproFacts


_PROBES = 24
_EVERY_S = 10.0


def audited(wanted: AuditOptions, kind: PeerKind) -> tuple[Course, str | None]:
    """Audit an engine; return the audit and, if it was given up, the reason."""
    from spsbench.base import PeerGone

    planned = settings_asked(wanted, kind)
    kind = planned.kind
    caches = planned.caches
    weights = planned.weights
    from spsbench.cli import continued_by, typed
    from spsbench.decode import bound
    from spsbench.parts.audit.engine_audit import Effort, Setting, audit_engine
    from spsbench.parts.audit.evidence_file import Paths
    from spsbench.parts.external.engine import ids_that_end
    from spsbench.store import fresh_directory

    quiet = wanted.quiet
    say(messages.CHECKING, quiet=quiet)
    with data_by_task():
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
    effort = Effort(
        bound=planned.bound,
        texts=planned.texts,
        budget_s=planned.budget_s,
        max_new_tokens=material.max_new_tokens,
        fewest=planned.texts if wanted.bound is None else 0,
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
    course.give_evidence()
    if wanted.repro:
        course.reproduce()
    return course, gone


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

    from spsbench.report import AuditProgress

    last = time.monotonic()

    def report(setting: Setting, count: int, evidence: Evidence | None, bound: float | None) -> None:
        nonlocal last
        if time.monotonic() - last >= _EVERY_S:
            say(str(AuditProgress(setting.name, count, effort.texts, evidence, bound)), quiet=quiet)
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

    def give_evidence(self) -> None:
        """Write the evidence file, if it was asked for."""
        from spsbench.parts.audit.evidence_file import write

        if (path := self.wanted.evidence) is not None:
            source = self.material.source
            write(
                path,
                self.rows,
                subject=self.subject,
                sources=(source.target, source.draft),
                effort=self.effort,
                request=self.request,
                seed=self.material.seed,
                paths=self.paths,
                folder=self.folder,
            )
            say(str(messages.EvidenceWritten(path)), quiet=self.wanted.quiet)

    def reproduce(self) -> None:
        """Look for a context that shows the clearest alarm, if there is one and the engine still runs."""
        from spsbench.base import PeerGone
        from spsbench.parts.audit.repro import reproduce, reproducible

        quiet = self.wanted.quiet
        row = reproducible(self.rows)
        if row is None:
            say(messages.NO_ALARM, quiet=quiet)
            return
        say(str(messages.Reproducing(row.setting.name)), quiet=quiet)
        pair = self.material.pair
        try:
            self.repro = reproduce(
                row,
                self.subject,
                self.folder,
                names=(model_name(pair.target), model_name(pair.draft)),
                max_new_tokens=self.effort.max_new_tokens,
                seed=self.material.seed,
            )
        except PeerGone as error:
            say(str(messages.NotReproduced(error)), quiet=quiet)
        else:
            self.write()

    def show(self) -> None:
        from spsbench.report import ReproMeasured

        facts: dict[str, Any] = {"folder": str(self.folder), "label": self.material.label()}
        facts |= {"rows": [row.facts() for row in self.rows]}
        more = [] if self.repro is None else [str(ReproMeasured(self.repro, self.folder))]
        if self.repro is not None:
            facts |= {"repro": self.repro}
        title = f"{self.material.pair.name}, {self.material.label()}"
        print_rows(self.rows, title, self.effort.bound, facts, self.wanted, more)
        if not self.wanted.json:
            say(str(messages.TextsWritten(self.folder)), quiet=self.wanted.quiet)


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
    from spsbench.parts.audit.engine_audit import CANNOT, UNDECIDED
    from spsbench.report import AnotherModel
    from spsbench.stats import ALARM

    without = [row for row in rows if row.decision == CANNOT]
    if len(without) == len(rows) and gone is None:
        why = "; ".join(dict.fromkeys(f"{row.result.cannot}" for row in rows))
        raise UnavailableError(f"none of the settings can be audited: {why}.", flag="--engine")
    alarms = [row.setting.name for row in rows if row.decision == ALARM and row.convention is None]
    if alarms:
        why = f"not the target's distribution: {'; '.join(alarms)}."
        first = next((row.forward for row in rows if row.forward is not None), None)
        more = "" if first is None else f" {AnotherModel(first)}"
        raise GateFailed(f"{why}{more}", flag="--engine")
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
    _require_decided([row.setting for row in rows if row.decision == UNDECIDED], bound)
    if without:
        raise IncompleteError(
            f"not audited: {'; '.join(f'{row.setting.name} ({row.result.cannot})' for row in without)}.",
            flag="--engine",
            remedy="Leave these settings out to judge the others alone.",
        )


def _require_decided(unclear: Sequence[Setting], bound: float | None) -> None:
    from spsbench.base import FLOAT32
    from spsbench.parts.audit.engine_audit import PLAIN_TEXTS

    if not unclear:
        return
    greedy = [each.name for each in unclear if each.sampling.greedy]
    # Where nothing is drafted no bound is waited for.
    few = [
        each.name for each in unclear if each.is_plain and each.weights == FLOAT32 and each.name not in greedy
    ]
    leaks = [each.name for each in unclear if each.name not in (*few, *greedy)]
    why = [
        *([f"that less than {bound:.1%} leaks could not be shown: {'; '.join(leaks)}"] if leaks else []),
        *([f"plain sampling is judged after {PLAIN_TEXTS} texts: {'; '.join(few)}"] if few else []),
        *([f"greedy text is judged once every prompt has a text: {'; '.join(greedy)}"] if greedy else []),
    ]
    remedy = "Give more --texts or --budget"
    remedy = f"{remedy}, a higher --temperature, or a wider --bound." if leaks else f"{remedy}."
    raise IncompleteError(f"{'; '.join(why)}.", flag="--bound" if leaks else "--texts", remedy=remedy)

"""An engine audited at several settings: texts are drawn until it is clear whether they follow the target.

After every text the e-value may speak, the mean of that of any re-scored text and that of ``Bets``: a right
engine ever reaches 1,000 with odds below 1 in 1,000, however often one looks (Ville 1939). The bound on the
leakage is that of a fixed number of texts. It is evaluated whenever their number has doubled, each time at
the same share of 5%.

Each sampling comes first without speculation, then with each K. What the plain sampling of an engine does
otherwise than asked is not charged to its speculation: where another law explains the plain texts, those of
speculation are held against that law.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch

from spsbench.engines.external.engine import sampling_of
from spsbench.engines.external.protocol import (
    Ask,
    Described,
    Load,
    Peer,
    PeerError,
    PeerGone,
    checked,
    request_seed,
)
from spsbench.engines.external.registry import PeerKind
from spsbench.engines.external.server import require_same_model
from spsbench.files import ordinary, write_text
from spsbench.models.causal_lm import CausalLM
from spsbench.records import SamplingParams
from spsbench.runner.stopping import derive_seed
from spsbench.stats.losslessness import ALARM, ALARM_LOG10_E, FEWEST_POSITIONS
from spsbench.summary_types import EngineAuditRow, Evidence
from spsbench.verify.audit import Audit, Drawn, Foreign, reading_of
from spsbench.verify.bets import Bets
from spsbench.verify.localise import Law, Located, locate, read_under

Decision = Literal["alarm", "quiet", "undecided"]
QUIET: Decision = "quiet"
UNDECIDED: Decision = "undecided"

Told = Callable[[int, Evidence | None, float | None], None]
"""Takes the number of texts so far, what they say and the leakage that is ruled out."""

FIRST_LOOK = 20
"""Texts after which the bound is first evaluated; then at twice as many, and so on."""

LEVEL = 0.05
"""How often the bound may be wrong, over all looks."""

PLAIN_TEXTS = 80
"""Texts without an alarm after which plain sampling is quiet: no draft can leak there."""

TO_LOCATE = 40
"""Texts that are drawn at least where the verdict is an alarm, to say where it comes from."""


@dataclass(frozen=True, slots=True)
class Effort:
    """When to stop."""

    # Quiet as soon as the leakage is known to be below this; plain sampling, without one, after PLAIN_TEXTS.
    bound: float | None
    texts: int
    budget_s: float
    max_new_tokens: int
    fewest: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """What came of auditing an engine with one setting."""

    decision: Decision
    evidence: Evidence | None
    decided_after: int
    bound: float | None
    drawn: Sequence[Drawn]
    failures: Sequence[str]
    seconds: float
    gone: str | None
    leading: tuple[str, str | None] | None = None

    @property
    def tokens(self) -> int:
        return sum(len(each.text.completion) for each in self.drawn)


class EngineAudit:
    def __init__(
        self,
        peer: Peer,
        models: tuple[CausalLM, CausalLM | None],
        prompts: Sequence[tuple[int, ...]],
        sampling: SamplingParams,
        stop_ids: Collection[int],
        effort: Effort,
        seed: int = 0,
        law: Law | None = None,
        k: int | None = None,
        rule: str | None = None,
    ) -> None:
        self._peer, self._models, self._prompts = peer, models, prompts
        self._sampling, self._stop_ids, self._effort = sampling, sorted(stop_ids), effort
        self._seed, self._law = seed, law
        self._audit = Audit(*models, seed=seed)
        # Where tokens are judged together, whether a loop goes on depends on tokens that are yet to come.
        self._places = "block" not in (rule or "")
        modified = "modified rejection" in (rule or "")
        self._bets = None if sampling.greedy else Bets(stop_ids, k, sampling.temperature, modified=modified)
        self._drawn: list[Drawn] = []
        self._failures: list[str] = []
        self._gone: str | None = None

    def run(
        self, keep: Callable[[Drawn], None], kept: Sequence[Drawn] = (), told: Told = lambda *_: None
    ) -> Found:
        began = time.monotonic()
        decision: Decision = UNDECIDED
        after, bound = 0, None
        alarm, leading = None, None
        looks = _looks(self._effort.texts)
        for drawn in chain(kept, self._texts(began, kept, keep)):
            self._add(drawn)
            count = len(self._drawn)
            evidence = None if decision == ALARM else self._evidence()
            if evidence is not None and evidence["verdict"] == ALARM:
                decision, after, alarm = ALARM, count, evidence
                is_bet = evidence["log10_e_values"].get("bets", 0.0) >= ALARM_LOG10_E
                leading = self._bets.leading() if is_bet and self._bets is not None else None
            told(count, alarm or evidence, bound)
            if decision == ALARM:
                if count >= TO_LOCATE:
                    break
            elif count in looks:
                bound = self._audit.bound(LEVEL / len(looks))
                if self._is_quiet(evidence, bound):
                    decision, after = QUIET, count
                    break
        if decision == UNDECIDED:
            after = len(self._drawn)
        evidence = self._evidence()
        if evidence is not None and alarm is not None:
            for name in ("verdict", "reasons", "log10_e_value", "log10_e_values"):
                evidence[name] = alarm[name]
        texts, failures, spent = self._drawn, self._failures, time.monotonic() - began
        return Found(decision, evidence, after, bound, texts, failures, spent, self._gone, leading)

    def _evidence(self) -> Evidence | None:
        return self._audit.evidence(None if self._bets is None else self._bets.log_e)

    def _texts(self, began: float, kept: Sequence[Drawn], keep: Callable[[Drawn], None]) -> Iterator[Drawn]:
        """Valid answers, up to the limits."""
        longest, sampling = self._effort.max_new_tokens, sampling_of(self._sampling)
        for number in range(kept[-1].text.line if kept else 0, self._effort.texts):
            if time.monotonic() - began > self._effort.budget_s:
                return
            prompt = self._prompts[number % len(self._prompts)]
            seed = request_seed(derive_seed(self._seed, "audit", number, "text"))
            ask = Ask(list(prompt), longest, self._stop_ids, [], sampling, seed)
            try:
                told = self._peer.generate(ask)
                answer = checked(told, ask, self._models[0].vocab_size)
            except PeerGone as error:
                self._gone = str(error)
                return
            except PeerError as error:
                self._failures.append(str(error))
                continue
            if answer.output_ids:
                ids = tuple(answer.output_ids)
                text = Foreign(number + 1, prompt, ids, self._sampling, answer.retokenised)
                free = None if told.decoded is None else int(told.decoded < len(told.output_ids))
                drawn = Drawn(text, told.accepted_per_loop, free, told.drafted_ids)
                keep(drawn)
                yield drawn

    def _add(self, drawn: Drawn) -> None:
        self._drawn.append(drawn)
        reading = read_under(reading_of(drawn.text, self._models), self._law)
        self._audit.add(drawn.text, reading)
        if self._bets is not None:
            told = (drawn.accepted_per_loop, drawn.free, drawn.drafted_ids) if self._places else ()
            self._bets.add(drawn.text.prompt, drawn.text.completion, reading, *told)

    def _is_quiet(self, evidence: Evidence | None, bound: float | None) -> bool:
        """Whether enough is known: the bound, or of greedy texts, which have none, every prompt once."""
        if evidence is None:
            return False
        if evidence["greedy"]:
            return len(self._drawn) >= len(self._prompts)
        if len(self._drawn) < min(self._effort.fewest, self._effort.texts):
            return False
        if evidence["positions"] < FEWEST_POSITIONS:
            return False
        if self._effort.bound is None:
            return len(self._drawn) >= PLAIN_TEXTS
        return bound is not None and bound <= self._effort.bound


def _looks(texts: int) -> list[int]:
    """Numbers of texts after which the bound is evaluated: twice as many each time, and at the end."""
    doubled = [FIRST_LOOK << n for n in range(max(texts // FIRST_LOOK, 1).bit_length())]
    return [*(count for count in doubled if count < texts), texts]


def row_of(drawn: Drawn) -> dict[str, Any]:
    """A text as ``spsbench audit SAMPLES`` reads it."""
    text, names = drawn.text, ("temperature", "top_p", "top_k")
    sampling = {name: getattr(text.sampling, name) for name in names}
    row = {
        "prompt_ids": text.prompt,
        "completion_ids": text.completion,
        "sampling": {"greedy": True} if text.sampling.greedy else sampling,
        "request": text.line,
        "retokenised": text.retokenised,
        "accepted_per_loop": drawn.accepted_per_loop,
        "free": drawn.free,
        "drafted_ids": drawn.drafted_ids,
    }
    return {name: value for name, value in row.items() if value is not None}


def drawn_of(row: Mapping[str, Any], sampling: SamplingParams) -> Drawn:
    ids = tuple(row["prompt_ids"]), tuple(row["completion_ids"])
    text = Foreign(row["request"], *ids, sampling, row["retokenised"])
    return Drawn(text, row.get("accepted_per_loop"), row.get("free"), row.get("drafted_ids"))


# --- several settings ---

Watch = Callable[["Setting", int, Evidence | None, float | None], None]
"""Takes a setting, its texts so far, what they say, and the leakage that is ruled out."""


_COMPARED = 16  # prompts by which a server's model is known
_CONTEXT = 256  # what some engines allot caches by, in tokens


@dataclass(frozen=True, slots=True)
class Setting:
    sampling: SamplingParams
    k: int | None

    @property
    def name(self) -> str:
        """For the screen, e.g. ``K=4, T=0.8``."""
        s = self.sampling
        cuts = [f"top-k {s.top_k}"] if s.top_k else []
        cuts += [f"top-p {s.top_p:g}"] if s.top_p < 1 else []
        drawn = ["greedy"] if s.greedy else [f"T={s.temperature:g}", *cuts]
        return ", ".join([self._drafting(), *drawn, *([] if s.process is None else [s.process.described])])

    @property
    def file(self) -> str:
        """Of its texts, e.g. ``k4-t0.8-p1-top0.jsonl``."""
        s = self.sampling
        drawn = "greedy" if s.greedy else f"t{s.temperature:g}-p{s.top_p:g}-top{s.top_k}"
        drawn += "" if s.process is None else f"-{s.process.key}"
        return f"{self._drafting().lower().replace(' ', '-').replace('=', '')}-{drawn}.jsonl"

    @property
    def is_plain(self) -> bool:
        return self.k == 0

    @property
    def lookahead(self) -> int:
        """K; 0 where nothing is drafted or K is not known."""
        return self.k or 0

    def _drafting(self) -> str:
        if self.k is None:
            return "as served"
        return f"K={self.k}" if self.k else "plain"


@dataclass(frozen=True, slots=True)
class Subject:
    kind: PeerKind
    models: tuple[CausalLM, CausalLM]
    folders: tuple[Path, Path]
    prompts: Sequence[tuple[int, ...]]
    stop_ids: Sequence[int]
    threads: int | None
    dtype: str = "float32"

    def load(self, k: int | None, max_new_tokens: int) -> Load:
        """What the engine is to load for a lookahead; 0 for none, None for what is there already."""
        target, draft = (self.kind.converted(folder) for folder in self.folders)
        longest = max(map(len, self.prompts)) + max_new_tokens + (k or 0) + 1
        context = -(-longest // _CONTEXT) * _CONTEXT
        return Load(target, draft if k else None, k or 0, self.threads, context, self.dtype)


@dataclass(frozen=True, slots=True)
class Row:
    """One setting of an engine, audited."""

    setting: Setting
    described: Described
    found: Found
    against: Law | None  # held against this law; None for the one that was asked for
    located: Located | None

    @property
    def decision(self) -> Decision:
        return self.found.decision

    @property
    def convention(self) -> Law | None:
        """Of plain texts that follow another reading of the same parameters: that one."""
        if not self.setting.is_plain or self.located is None or self.located.explanation is None:
            return None
        law = self.located.explanation.law
        return law if law.convention else None

    def facts(self) -> EngineAuditRow:
        found, evidence = self.found, self.found.evidence
        leakage = None if evidence is None else evidence["leakage"]
        return {
            "setting": self.setting.name,
            "k": self.setting.k,
            "is_plain": self.setting.is_plain,
            "sampling": self.setting.sampling.described,
            "decision": self.decision,
            "decided_after": found.decided_after,
            "texts": len(found.drawn),
            "retokenised": sum(each.text.retokenised for each in found.drawn),
            "tokens": found.tokens,
            "impossible": 0 if evidence is None else evidence["impossible"],
            "leakage": leakage,
            "bound": found.bound,
            "log10_e_value": None if evidence is None else evidence["log10_e_value"],
            "reasons": [] if evidence is None or self.decision != ALARM else evidence["reasons"],
            "place": None if found.leading is None else found.leading[0],
            "law": None if found.leading is None else found.leading[1],
            "against": None if self.against is None else self.against.name,
            "convention": None if self.convention is None else self.convention.name,
            "located": None if self.located is None else self.located.facts(),
            "failures": list(found.failures),
            "gone": found.gone,
            "seconds": found.seconds,
            "engine": asdict(self.described),
            "texts_file": self.setting.file,
        }


def audit_engine(
    subject: Subject,
    settings: Sequence[Setting],
    effort: Effort,
    seed: int,
    folder: Path,
    say: Callable[[str], None],
    watch: Watch = lambda *_: None,
) -> Iterator[Row]:
    """Audit an engine with every setting, those without a draft first.

    Texts that are in the folder already are read and not asked for again.
    """
    laws: dict[SamplingParams, Law] = {}
    folder.mkdir(parents=True, exist_ok=True)
    for setting in sorted(settings, key=lambda each: not each.is_plain):
        say(setting.name)
        row = _audited(subject, setting, effort, seed, folder, laws.get(setting.sampling), watch)
        if setting.is_plain and (law := _explains(row, subject)) is not None:
            laws[setting.sampling] = law
        yield row


def _audited(
    subject: Subject, setting: Setting, effort: Effort, seed: int, folder: Path, law: Law | None, watch: Watch
) -> Row:
    log = folder / "engine.log"
    peer = subject.kind.open(subject.load(setting.k, effort.max_new_tokens), log, False)
    try:
        told = peer.describe()
        if subject.kind.served:
            require_same_model(peer, _first_tokens(subject), subject.kind.name)
        effort = replace(effort, bound=None, fewest=0) if setting.is_plain else effort
        audit = EngineAudit(
            peer,
            subject.models,
            subject.prompts,
            setting.sampling,
            subject.stop_ids,
            effort,
            seed,
            law,
            setting.k,
            told.rule,
        )
        kept = _kept(folder / setting.file, setting.sampling)
        # A last line that was cut off is gone.
        write_text(folder / setting.file, "".join(json.dumps(row_of(each)) + "\n" for each in kept))
        with open(folder / setting.file, "a", opener=ordinary) as file:

            def keep(drawn: Drawn) -> None:
                file.write(json.dumps(row_of(drawn)) + "\n")
                file.flush()

            found = audit.run(keep, kept, partial(watch, setting))
    finally:
        peer.close()
    if found.gone is not None and not found.drawn:
        raise PeerGone(found.gone)
    located = None
    if found.decision == ALARM and not setting.sampling.greedy:
        k = setting.k if "modified rejection" in (told.rule or "modified rejection") else None
        located = locate(found.drawn, subject.models, setting.sampling, k)
    return Row(setting, told, found, law, located)


def _kept(file: Path, sampling: SamplingParams) -> list[Drawn]:
    """Texts of an audit that was interrupted, up to a line that is not whole."""
    found: list[Drawn] = []
    if not file.exists():
        return found
    with open(file, opener=ordinary) as lines:
        texts = lines.read().splitlines()
    for line in texts:
        try:
            found.append(drawn_of(json.loads(line), sampling))
        except (ValueError, KeyError):
            break
    return found


def _first_tokens(subject: Subject) -> list[tuple[list[int], int, float]]:
    """Prompts, the target's best token after each, and how far it is ahead of the second."""
    found = []
    for prompt in subject.prompts[:_COMPARED]:
        row = subject.models[0].score_uncached(torch.tensor(prompt), last=1)[-1].float()
        best, second = row.topk(2).values.tolist()
        found.append((list(prompt), int(row.argmax()), best - second))
    return found


def _explains(row: Row, subject: Subject) -> Law | None:
    """The law that the plain texts follow in place of the one asked for, if they raise no alarm under it."""
    explained = None if row.located is None else row.located.explanation
    if explained is None or explained.law.share:
        return None
    audit = Audit(*subject.models)
    for each in row.found.drawn:
        audit.add(each.text, read_under(reading_of(each.text, subject.models), explained.law))
    again = audit.evidence()
    return None if again is None or again["verdict"] == ALARM else explained.law

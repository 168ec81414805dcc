"""An engine audited at several settings: each sampling first without speculation, then with each K.

What the plain sampling of an engine does otherwise than asked is not charged to its speculation: where
another law explains the plain texts, those of speculation are held against that law.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

from spsbench.files import ordinary, write_text
from spsbench.models.causal_lm import CausalLM
from spsbench.peers.protocol import Described, Load, PeerGone
from spsbench.peers.registry import PeerKind
from spsbench.peers.server import require_same_model
from spsbench.records import SamplingParams
from spsbench.stats.losslessness import ALARM
from spsbench.summary_types import EngineAuditRow, Evidence
from spsbench.verify.audit import described
from spsbench.verify.engine_audit import (
    QUIET,
    Decision,
    Drawn,
    Effort,
    EngineAudit,
    Found,
    drawn_of,
    judged_again,
    row_of,
)
from spsbench.verify.laws import Law
from spsbench.verify.localise import Located, facts_of, locate

Say = Callable[[str], None]

Watch = Callable[["Setting", int, Evidence | None, float | None], None]
"""Takes a setting, its texts so far, what they say, and the leakage that is ruled out."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the matrix."""

    sampling: SamplingParams
    k: int | None

    @property
    def name(self) -> str:
        """For the screen, e.g. ``K=4, T=0.8``."""
        return f"{self._drafting()}, {_short(self.sampling)}"

    @property
    def file(self) -> str:
        """Of its texts, e.g. ``k4-t0.8-p1-top0.jsonl``."""
        s = self.sampling
        drawn = "greedy" if s.greedy else f"t{s.temperature:g}-p{s.top_p:g}-top{s.top_k}"
        return f"{self._drafting().lower().replace(' ', '-').replace('=', '')}-{drawn}.jsonl"

    @property
    def is_plain(self) -> bool:
        """Whether nothing is drafted."""
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
    """What is audited."""

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


def _short(sampling: SamplingParams) -> str:
    if sampling.greedy:
        return "greedy"
    cuts = [f"top-k {sampling.top_k}"] if sampling.top_k else []
    cuts += [f"top-p {sampling.top_p:g}"] if sampling.top_p < 1 else []
    return ", ".join([f"T={sampling.temperature:g}", *cuts])


_COMPARED = 16  # prompts by which a server's model is known
_CONTEXT = 256  # what some engines allot caches by, in tokens


@dataclass(frozen=True, slots=True)
class Row:
    """One setting of an engine, audited.

    Attributes:
        found: against the law that was asked for, or ``against``.
    """

    setting: Setting
    described: Described
    found: Found
    against: Law | None
    located: Located | None

    @property
    def decision(self) -> Decision:
        """Of ``found``."""
        return self.found.decision

    @property
    def convention(self) -> Law | None:
        """Of plain texts that follow another reading of the same parameters: that one."""
        if not self.setting.is_plain or self.located is None or self.located.explanation is None:
            return None
        law = self.located.explanation.law
        return law if law.convention else None

    def facts(self) -> EngineAuditRow:
        """All of it, for JSON and for reports."""
        found, evidence = self.found, self.found.evidence
        leakage = None if evidence is None else evidence["leakage"]
        settled = found.bound if self.decision == QUIET else None
        return {
            "setting": self.setting.name,
            "k": self.setting.k,
            "is_plain": self.setting.is_plain,
            "sampling": described(self.setting.sampling),
            "decision": self.decision,
            "decided_after": found.decided_after,
            "texts": len(found.drawn),
            "retokenised": sum(each.text.retokenised for each in found.drawn),
            "tokens": found.tokens,
            "impossible": 0 if evidence is None else evidence["impossible"],
            "leakage": leakage,
            "bound": settled if settled is not None else found.bound,
            "log10_e_value": None if evidence is None else evidence["log10_e_value"],
            "reasons": [] if evidence is None or self.decision != ALARM else evidence["reasons"],
            "place": None if found.leading is None else found.leading[0],
            "law": None if found.leading is None else found.leading[1],
            "against": None if self.against is None else self.against.name,
            "convention": None if self.convention is None else self.convention.name,
            "located": None if self.located is None else facts_of(self.located),
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
    say: Say,
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
            *(peer, subject.models, subject.prompts, setting.sampling, subject.stop_ids, effort, seed, law),
            *(setting.k, told.rule),
        )
        kept = _kept(folder / setting.file, setting.sampling)
        # A last line that was cut off is gone.
        write_text(folder / setting.file, "".join(map(_line, kept)))
        with open(folder / setting.file, "a", opener=ordinary) as file:

            def keep(drawn: Drawn) -> None:
                file.write(_line(drawn))
                file.flush()

            found = audit.run(keep, kept, partial(watch, setting))
    finally:
        peer.close()
    if found.gone is not None and not found.drawn:
        raise PeerGone(found.gone)
    is_alarm = found.decision == ALARM and not setting.sampling.greedy
    located = None
    if is_alarm:
        k = setting.k if "modified rejection" in (told.rule or "modified rejection") else None
        located = locate(found.drawn, subject.models, setting.sampling, k)
    return Row(setting, told, found, law, located)


def _line(drawn: Drawn) -> str:
    return json.dumps(row_of(drawn)) + "\n"


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
    if explained is None or explained.law.warped is None:
        return None
    again = judged_again(row.found.drawn, subject.models, explained.law)
    return None if again is None or again["verdict"] == ALARM else explained.law

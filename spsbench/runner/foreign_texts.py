"""Text that another engine wrote, tested against the target's own rows.

Every text is read by one uncached forward. The judgement is that of a run's own re-score, with one
difference: a file is there from the start, so that tests for a fixed sample may speak too, each with
one false alarm in 10,000.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from spsbench.base.messages import Message
from spsbench.base.protocol import LENGTH, Answer, Ask, ProtocolError, read
from spsbench.base.records import SamplingParams
from spsbench.decode.processors import bound
from spsbench.engines.rescore import Reading, score_stats, teacher_force
from spsbench.law.evidence import Sums, added
from spsbench.models.causal_lm import CausalLM
from spsbench.models.tokenizer import Tokenizer
from spsbench.runner.messages import GREEDY_TOKENS_ARE_BEST, LeakageAboveZero, LogScoreOff, TransformOff
from spsbench.stats import evidence_stats
from spsbench.stats.losslessness import ALARM, NO_EVIDENCE, OK, evidence_of
from spsbench.store.summary_types import Evidence
from spsbench.tasks.text_lines import TextLine, bad_line, numbered

if TYPE_CHECKING:
    import pandas as pd


FLAG = "SAMPLES"


@dataclass(frozen=True, slots=True)
class Foreign:
    """One text with what is said of its making."""

    line: int
    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    sampling: SamplingParams
    retokenised: bool
    told: Answer | None = None  # with what the engine reports of it
    ask: Ask | None = None
    free: int | None = None  # tokens before the first loop
    category: str = ""


REPORTED = ("accepted_per_loop", "drafted_ids", "decoded", "loops", "drafted", "accepted", "logprobs")
"""Fields of ``Answer`` that a line may have; one that means something else there is left out."""


def reported_answer(row: Mapping[str, Any], completion: Sequence[int], *, retokenised: bool) -> Answer:
    fields: dict[str, Any] = {"output_ids": [*completion], "finish": LENGTH, "retokenised": retokenised}
    for name in REPORTED:
        with suppress(ProtocolError):
            read(Answer, fields | {name: row.get(name)})
            fields[name] = row.get(name)
    return read(Answer, fields)


def reading_of(
    text: Foreign, models: tuple[CausalLM, CausalLM | None], dtype: torch.dtype | None = None
) -> Reading:
    """Run one uncached forward of each model over a text, which was written in ``dtype`` if that is known."""
    return teacher_force(*models, text.prompt, text.completion, text.sampling, dtype)


@dataclass(frozen=True, slots=True)
class Reader:
    tokenizer: Tokenizer
    vocab_size: int
    context_window: int
    sampling: SamplingParams
    flag: str = FLAG

    def read(self, path: Path) -> Iterator[Foreign]:
        """Yield the texts of a file of JSON lines (``.gz`` too), or of another tool's."""
        for line, row in numbered(path, self.flag):
            try:
                text = self.text(line, row)
            except ValueError as problem:
                raise bad_line(line, path, problem, self.flag) from problem
            if text.completion:
                yield text

    def text(self, line: int, row: Mapping[str, Any]) -> Foreign:
        """Return the text of one line, or the first of another tool's line; ValueError says what is wrong."""
        said = TextLine.of(row, self.sampling)
        prompt = self._token_ids(said.prompt, "prompt", special=True)
        completion = self._token_ids(said.completion, "completion", special=False)
        retokenised = isinstance(said.completion, str)
        if not prompt:
            raise ValueError("the prompt is empty, so that nothing precedes the first token")
        border = self.tokenizer.border
        source = 0 if border is None else border.source_length(prompt)
        for length in (source, len(prompt) - source + len(completion)):
            if length > self.context_window:
                raise ValueError(f"{length} tokens do not fit the target's window of {self.context_window}")
        answer = reported_answer(said.row, completion, retokenised=retokenised)
        category = str(said.row.get("category") or "")
        drawn = bound(said.sampling, self.tokenizer)
        return Foreign(line, prompt, completion, drawn, retokenised, answer, category=category)

    def _token_ids(self, part: list[int] | str, name: str, *, special: bool) -> tuple[int, ...]:
        if isinstance(part, str):
            return tuple(self.tokenizer.encode(part, special=special))
        wrong = next((token for token in part if not 0 <= token < self.vocab_size), None)
        if wrong is not None:
            raise ValueError(f"{name}_token_ids holds {wrong}, and the target has {self.vocab_size} tokens")
        return tuple(part)


LEVEL = 1e-4
_Z = 3.719  # one-sided at LEVEL
_EXACT = (torch.float32, torch.float64)


class Audit:
    """Reads text after text; of each only sums are kept, and where a token of probability 0 stands first."""

    def __init__(
        self, target: CausalLM, draft: CausalLM | None, dtype: torch.dtype | None = None, seed: int = 0
    ) -> None:
        self.texts = self.tokens = self.retokenised = 0
        self.samplings: Counter[str] = Counter()
        self.first_impossible: dict[str, int | float] | None = None
        self._target = target
        self._draft = draft
        self._dtype = dtype
        self._seed = seed
        self._sums: dict[str, Sums] = {}
        self._tokens_of: Counter[str] = Counter()

    def read(self, text: Foreign) -> Reading:
        """Score one text, within the models' windows, and add it to the sums of its prompt."""
        reading = reading_of(text, (self._target, self._draft), self._dtype)
        self.add(text, reading)
        return reading

    def add(self, text: Foreign, reading: Reading) -> None:
        key = hashlib.sha256(repr(text.prompt).encode()).hexdigest()
        sums = score_stats(reading, self._seed + text.line)
        self._sums[key] = added(self._sums.get(key, {}), sums)
        self._tokens_of[key] += len(text.completion)
        self.texts += 1
        self.tokens += len(text.completion)
        self.retokenised += text.retokenised
        self.samplings[text.sampling.described] += 1
        wrong = reading.impossible.nonzero()
        if len(wrong) and self.first_impossible is None:
            index = int(wrong[0])
            row = reading.logits[index].float()
            token = text.completion[index]
            gap = float(row.max() - row[token])
            self.first_impossible = {"line": text.line, "index": index, "token_id": token, "gap": gap}

    def bound(self, level: float) -> float | None:
        """Return the leakage that the texts rule out at error probability ``level``; None without a draft."""
        _, prompts = evidence_stats.per_prompt(self._table())
        if prompts.empty:
            return None
        leakage = evidence_stats.leakage(prompts, everywhere=self._is_exact(), level=level)
        return None if leakage is None else leakage["bound"]

    def evidence(self, log_e: float | None = None) -> Evidence | None:
        """Return what holds after any text, however often it is evaluated: see ``evidence_of``."""
        return evidence_of(self._table(), exact=self._is_exact(), log_e=log_e)

    def judged(self) -> dict[str, Any]:
        """The facts of ``evidence_of`` over all texts, with ``verdict`` and ``reasons`` that count the tests
        for a fixed sample too, and this object's own counts."""
        evidence = self.evidence()
        facts: dict[str, Any] = {"reasons": ["no text"]} if evidence is None else {**evidence}
        facts.setdefault("verdict", NO_EVIDENCE)
        alarms = [] if facts["verdict"] == NO_EVIDENCE else _fixed_sample_alarms(facts)
        if alarms:
            before = facts["reasons"] if facts["verdict"] == ALARM else []
            facts["reasons"] = [*map(str, alarms), *before]
            facts["verdict"] = ALARM
        elif facts["verdict"] == OK and facts["greedy"]:
            facts["reasons"] = [GREEDY_TOKENS_ARE_BEST]
        names = ("texts", "tokens", "retokenised", "first_impossible")
        return facts | {name: getattr(self, name) for name in names} | {"samplings": dict(self.samplings)}

    def _table(self) -> pd.DataFrame:
        import pandas as pd

        columns = {"example_id": list(self._sums), "losslessness": list(self._sums.values())}
        return pd.DataFrame(columns).assign(
            new_tokens=list(self._tokens_of.values()), finish_reason="length", error=None
        )

    def _is_exact(self) -> bool:
        return is_exact(self._target, self._dtype)


def is_exact(target: CausalLM, theirs: torch.dtype | None) -> bool:
    """Return whether rounding on both sides is so fine that one impossible token proves a fault."""
    return all(dtype in _EXACT for dtype in (target.dtype, theirs or torch.float32))


def _fixed_sample_alarms(facts: dict[str, Any]) -> list[Message]:
    alarms: list[Message] = []
    score = facts["log_score"]
    cells = facts["transform"]
    leak = facts["leakage"]
    if score is not None and score["p_value"] < LEVEL:
        alarms.append(LogScoreOff(score["z"]))
    if cells is not None and cells["p_value"] < LEVEL:
        alarms.append(TransformOff(cells["p_value"]))
    if leak is not None and leak["estimate"] > _Z * leak["standard_error"]:
        alarms.append(LeakageAboveZero(leak["estimate"], leak["standard_error"]))
    return alarms

"""One short context where an engine's next token is not the target's, measured over many seeds.

Contexts are taken from the drawn texts, where draft and target, or the target and the law that explains the
texts best, are farthest apart. A few are tried with few outputs, short ones first. The clearest spot is
measured over new seeds; if it shows nothing, the next, up to three, and the p-value is that of all of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spsbench.decode.sampling import warp
from spsbench.engines.rescore import Reading, own_entries, teacher_force
from spsbench.files import write_text
from spsbench.models.causal_lm import CausalLM
from spsbench.peers.engine import sampling_of
from spsbench.peers.protocol import Ask, Peer, PeerError, PeerGone, checked, request_seed
from spsbench.records import SamplingParams
from spsbench.runner.stopping import derive_seed
from spsbench.stats.losslessness import ALARM, ALARM_LOG10_E
from spsbench.summary_types import ReproFacts
from spsbench.verify.audit import reading_of
from spsbench.verify.engine_audit import Row, Subject
from spsbench.verify.localise import MOST_TEXTS, Law, read_under
from spsbench.verify.repro_parts import LEAST, LEVEL, followers, p_value, seeds
from spsbench.verify.repro_parts import shown as p_shown
from spsbench.verify.repro_script import options_of, script

_TRIED = 3
"""Contexts that are tried of each kind: the first token after them is wrong, or a later one."""

_MEASURED = 3
"""Contexts that are measured at most."""

_CLEAR = 1e-6
"""p-value of a try after which no longer context is tried."""

_RARE = 0.02
"""Probability from which a token is counted by itself."""

_KEPT = 0.9
"""Share of its score that a context keeps when it is shortened."""

_LENGTHS = (8, 16, 32, 64, 128)
_MOST_CELLS, _TOP = 200, 24
_GAP = 1e-3  # of logits: below it rounding decides


@dataclass(frozen=True, slots=True)
class Draws:
    """How many outputs are asked for.

    Attributes:
        budget_s: the longest for all of them, in seconds.
    """

    tried: int = 40
    measured: int = 300
    budget_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Spot:
    """One token of an output: the one after ``prefix``, after ``context``; both are token ids."""

    context: tuple[int, ...]
    prefix: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Expected:
    """The target's row at a spot: the most probable tokens, and what all others have together."""

    tokens: dict[int, float]
    rest: float


@dataclass(frozen=True, slots=True)
class Shown:
    """What a spot shows."""

    spot: Spot
    outputs: int
    counts: Counter[int]
    expected: Expected
    p_value: float


def reproducible(rows: Iterable[Row]) -> Row | None:
    """The alarm with the most evidence, a sampled one first; None without an alarm."""
    alarms = [row for row in rows if row.decision == ALARM and row.convention is None]
    return max(alarms, key=_evidence, default=None)


def _evidence(row: Row) -> tuple[bool, float]:
    found = row.found.evidence
    e_value = None if found is None else found["log10_e_value"]
    return not row.setting.sampling.greedy, e_value or 0.0


def reproduce(
    row: Row,
    subject: Subject,
    names: tuple[str, str],
    max_new_tokens: int,
    seed: int,
    folder: Path,
    draws: Draws | None = None,
) -> ReproFacts:
    """Find a context, measure it, and write ``repro.py``."""
    setting, draws = row.setting, draws or Draws()
    if setting.sampling.greedy:
        draws = replace(draws, tried=LEAST, measured=2 * LEAST)  # another seed is the same text
    load = subject.load(setting.lookahead, max_new_tokens)
    peer = subject.kind.open(load, folder / "engine.log", False)
    try:
        search = _Search(row, subject, peer, draws, seed)
        shown, first = search.clearest()
    finally:
        peer.close()
    case = _asked(row, subject, shown) | {
        "context": load.context,
        "prefix_probability": search.reached(shown.spot),
        "draws": draws.measured,
        "first_seed": first,
        "expected": shown.expected.tokens,
        "rest": shown.expected.rest,
    }
    path = folder / "repro.py"
    write_text(path, script(subject.kind.name, _title(row, shown, names), case))
    return _facts(row, shown, path)


def _asked(row: Row, subject: Subject, shown: Shown) -> dict[str, Any]:
    """What the script asks for, and of which engine."""
    setting = row.setting
    return {
        "prompt_ids": list(shown.spot.context),
        "prefix_ids": list(shown.spot.prefix),
        "max_new_tokens": _length(setting.lookahead),
        "stop_ids": list(subject.stop_ids),
        "sampling": setting.sampling.record(),
        "k": setting.lookahead,
        "threads": subject.threads,
        "dtype": subject.dtype,
        "vocab_size": subject.models[0].vocab_size,
        **options_of(subject.kind.name, subject.threads),
        "held_against": None if row.against is None else row.against.name,
    }


class _Search:
    """Looks for the spot that shows an alarm most clearly."""

    def __init__(self, row: Row, subject: Subject, peer: Peer, draws: Draws, seed: int) -> None:
        self._row, self._subject, self._peer, self._draws = row, subject, peer, draws
        self._seed, self._end = seed, time.monotonic() + draws.budget_s

    def clearest(self) -> tuple[Shown, int]:
        """The spot over new seeds, and what those were made of."""
        tried: list[Shown] = []
        found = contexts(self._row, self._subject.models, self._subject.stop_ids)
        for number, context in enumerate(sorted(found, key=len)):
            if any(each.p_value < _CLEAR for each in tried):
                break  # the next ones are longer
            outputs = self._outputs(context, self._first("try", number), self._draws.tried)
            tried += [self._shown(spot, outputs) for spot in self._spots(context, outputs)]
        if not tried:
            raise PeerGone("no context had enough outputs that begin alike")
        best: dict[tuple[int, ...], Shown] = {}  # of each context, the clearest first
        for each in sorted(tried, key=lambda each: each.p_value):
            best.setdefault(each.spot.context, each)
        measured = []
        for number, each in enumerate(list(best.values())[:_MEASURED]):
            first = self._first("measured", number)
            outputs = self._outputs(each.spot.context, first, self._draws.measured)
            measured.append((self._shown(each.spot, outputs), first))
            if measured[-1][0].p_value < LEVEL / _MEASURED:
                break
        shown, first = min(measured, key=lambda each: each[0].p_value)
        return replace(shown, p_value=min(1.0, len(measured) * shown.p_value)), first

    def reached(self, spot: Spot) -> float:
        """The probability that an output begins with the prefix."""
        found = 1.0
        for place, token in enumerate(spot.prefix):
            logits = self._logits(Spot(spot.context, spot.prefix[:place]))
            row = expected(logits, self._row.setting.sampling, self._row.against, [token])
            found *= row.tokens.get(token, 0.0)
        return found

    def _spots(self, context: tuple[int, ...], outputs: Sequence[Sequence[int]]) -> Iterator[Spot]:
        """One a place: after the most frequent prefix, while enough outputs have it."""
        for place in range(_length(self._row.setting.lookahead) - 1):
            prefixes = Counter(tuple(ids[:place]) for ids in outputs if len(ids) > place)
            prefix, count = max(prefixes.items(), key=lambda item: item[1], default=((), 0))
            if count < LEAST:
                return
            spot = Spot(context, prefix)
            if is_firm(self._logits(spot), self._row.setting.sampling):
                yield spot

    def _shown(self, spot: Spot, outputs: Sequence[Sequence[int]]) -> Shown:
        counts = followers(outputs, spot.prefix)
        row = expected(self._logits(spot), self._row.setting.sampling, self._row.against, counts)
        return Shown(spot, len(outputs), counts, row, p_value(counts, (row.tokens, row.rest)))

    @torch.inference_mode()
    def _logits(self, spot: Spot) -> Tensor:
        """[1, V] of the target."""
        target = self._subject.models[0]
        ids = torch.tensor([*spot.context, *spot.prefix], device=target.device)
        return target.score_uncached(ids, last=1).float()

    def _outputs(self, context: tuple[int, ...], first: int, count: int) -> list[list[int]]:
        """Valid ones, up to the budget."""
        sampling = sampling_of(self._row.setting.sampling)
        found = []
        for seed in seeds(first, count):
            if time.monotonic() > self._end:
                break
            length, stop = _length(self._row.setting.lookahead), list(self._subject.stop_ids)
            ask = Ask(list(context), length, stop, [], sampling, seed)
            try:
                answer = checked(self._peer.generate(ask), ask, self._subject.models[0].vocab_size)
            except PeerGone:
                raise
            except PeerError:
                continue
            found.append(answer.output_ids)
        return found

    def _first(self, what: str, number: int) -> int:
        return request_seed(derive_seed(self._seed, "repro", number, what))


def _length(k: int) -> int:
    """Of an output: one loop, and a token of the next."""
    return k + 2


def expected(
    logits: Tensor, sampling: SamplingParams, law: Law | None, observed: Iterable[int] = ()
) -> Expected:
    """The target's row. All of its tokens where they are few, else the most probable and the observed ones.

    Args:
        logits: [1, V].
    """
    row = (warp(logits, sampling) if law is None or law.share else law.warped(logits))[0].double()
    possible = int((row > 0).sum())
    few = possible <= _MOST_CELLS
    top = row.topk(possible if few else _TOP).indices.tolist()
    every = {*top, *(token for token in observed if row[token] > 0)}
    known = {
        token: float(f"{float(row[token]):.7g}") for token in sorted(every, key=lambda t: -float(row[t]))
    }
    return Expected(known, 0.0 if few else max(0.0, 1.0 - sum(known.values())))


def is_firm(logits: Tensor, sampling: SamplingParams) -> bool:
    """Whether rounding cannot change which tokens are possible; logits: [1, V]."""
    best = logits.topk(2).values[0]
    if sampling.greedy:
        return float(best[0] - best[1]) > _GAP
    if sampling.top_p >= 1:
        return True
    near = [min(1.0, sampling.top_p + shift) for shift in (-1e-4, 1e-4)]
    sizes = {int((warp(logits, replace(sampling, top_p=top_p)) > 0).sum()) for top_p in near}
    return len(sizes) == 1


# --- contexts -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Start:
    """A context of a text."""

    score: float
    later: bool
    ids: tuple[int, ...]
    onwards: tuple[int, ...]


def contexts(row: Row, models: tuple[CausalLM, CausalLM], stop_ids: Sequence[int]) -> list[tuple[int, ...]]:
    """Contexts to try, shortened; the best ones whole too."""
    starts: list[_Start] = []
    for each in row.found.drawn[:MOST_TEXTS]:
        found = _starts(reading_of(each.text, models), row, each.text.prompt, stop_ids)
        starts += found
    starts.sort(key=lambda start: -start.score)
    best: list[_Start] = []
    for later in (False, True):
        best += [start for start in starts if start.later == later][:_TRIED]
    short = [_shortened(start, row, models, stop_ids) for start in best]
    whole = [start.ids for start in best[:1] + best[_TRIED : _TRIED + 1]]
    return list(dict.fromkeys([*short, *whole]))


def _starts(reading: Reading, row: Row, prompt: tuple[int, ...], stop_ids: Sequence[int]) -> list[_Start]:
    """The best two starts of a text: for the first token, and for a later one."""
    apart = _apart(reading, row, stop_ids)
    law = read_under(reading, row.against)
    own = own_entries(law.q, reading.tokens).double()
    tokens = reading.tokens.tolist()
    reach = row.setting.lookahead + 1
    found: list[_Start] = []
    best_later = None
    for start in range(len(tokens)):
        scores = _scores(own[start : start + reach], apart[start : start + reach])
        place = int(scores[1:].argmax()) + 1 if len(scores) > 1 else 0
        ids = (*prompt, *tokens[:start])
        onwards = tuple(tokens[start : start + reach])
        found.append(_Start(float(scores[0]), False, ids, onwards))
        if place and (best_later is None or float(scores[place]) > best_later.score):
            best_later = _Start(float(scores[place]), True, ids, onwards)
    first = max(found, key=lambda each: each.score)
    return [first] if best_later is None else [first, best_later]


def _scores(own: Tensor, apart: Tensor) -> Tensor:
    """[n] the distance at each place times the probability of getting there."""
    reached = torch.cat([own.new_ones(1), own.cumprod(0)[:-1]])
    return reached * apart


def _apart(reading: Reading, row: Row, stop_ids: Sequence[int]) -> Tensor:
    """[n] how far the engine's rows may be from the target's, in total variation."""
    held = read_under(reading, row.against)
    found = torch.zeros(len(reading.tokens), dtype=torch.float64)
    if row.setting.lookahead and held.p is not None:
        found = _distance(held.q, held.p)
    if row.located is not None:
        best = row.located.fits[0].law.rows(reading.logits.float(), reading.draft_logits)
        found = torch.maximum(found, _distance(held.q, best))
    if stop_ids and _leaves_stops_out(row):
        stops = held.q[:, list(stop_ids)].sum(-1).double()
        found = torch.maximum(found, stops.where(stops < 1, 0.0))
    return found + 0.5 * reading.impossible


def _leaves_stops_out(row: Row) -> bool:
    """Whether the bet that no token which ends an output is ever drawn raises the alarm by itself."""
    evidence = row.found.evidence
    return evidence is not None and evidence["log10_e_values"].get("stop_left_out", 0.0) >= ALARM_LOG10_E


def _distance(q: Tensor, other: Tensor) -> Tensor:
    """[n] total variation of rows, where all tokens too rare to be counted one by one are taken together."""
    counted = q >= _RARE
    apart = ((q - other) * counted).double()
    return (apart.abs().sum(-1) + apart.sum(-1).abs()) / 2


def _shortened(
    start: _Start, row: Row, models: tuple[CausalLM, CausalLM], stop_ids: Sequence[int]
) -> tuple[int, ...]:
    """The shortest end of a context that promises about as much."""
    for length in _LENGTHS:
        ids = start.ids[-length:]
        if len(ids) == len(start.ids):
            break
        reading = teacher_force(*models, ids, start.onwards, row.setting.sampling)
        own = own_entries(read_under(reading, row.against).q, reading.tokens).double()
        scores = _scores(own, _apart(reading, row, stop_ids))
        reached = float(scores[1:].max()) if start.later else float(scores[0])
        if reached >= _KEPT * start.score:
            return ids
    return start.ids


# --- the docstring of the script
# -------------------------------------------------------------------------------------


def _title(row: Row, shown: Shown, names: tuple[str, str]) -> str:
    """Paragraphs of the docstring."""
    told, spot = row.described, shown.spot
    behind = f", among outputs that begin with {list(spot.prefix)}" if spot.prefix else ""
    total = sum(shown.counts.values())
    drafting = f"drafts by {names[1]}" if row.setting.lookahead else "no draft"
    verdict = "not the target's" if shown.p_value < LEVEL else "no clear deviation"
    law = "" if row.against is None else f"\nExpected: what its plain texts follow, {row.against.name}."
    return (
        f"{told.engine} {told.version}, {row.setting.name}: does a token follow the target?\n\n"
        f"One prompt of {len(spot.context)} ids, many seeds, output token {len(spot.prefix) + 1}{behind}.\n"
        f"When this was written: {total} tokens of {shown.outputs} outputs, "
        f"p-value {p_shown(shown.p_value)}: {verdict}.\n"
        f"The expected probabilities are those of transformers' float32 forward.{law}\n\n"
        f"Models: {names[0]}, {drafting}."
    )


def _facts(row: Row, shown: Shown, path: Path) -> ReproFacts:
    return {
        "setting": row.setting.name,
        "script": path.name,
        "context": list(shown.spot.context),
        "prefix": list(shown.spot.prefix),
        "outputs": shown.outputs,
        "observed": {str(token): count for token, count in shown.counts.most_common()},
        "expected": {str(token): value for token, value in shown.expected.tokens.items()},
        "rest": shown.expected.rest,
        "p_value": shown.p_value,
        "clear": shown.p_value < LEVEL,
    }

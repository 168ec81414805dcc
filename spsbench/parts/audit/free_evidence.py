"""Evidence beside the law of an engine's texts: logprobs, counters, acceptance, seeds, streams, ends.

Counters are held against the tokens of their text, which is arithmetic, and against the law of the loops
over that text (``law.text_loops``), which is statistics. All statistics are e-values: products of ratios
whose mean is at most 1 for a right engine, whatever came before. Each of the four (a rate of 1, acceptance,
independence, ends) raises an alarm at 10,000, so a right engine sees one in at most 4 of 10,000 settings,
however often one looks (Ville 1939). The rule is not taken on trust: acceptance is wrong only where it fits
none of ``_RULES``.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch

from spsbench.base import Answer, Ask, Drafting, Floats, Ints, Message
from spsbench.engines import Reading, own_entries
from spsbench.law import TextLoops, anchored, loops_over, ratio_by_token
from spsbench.parts.audit.bet_table import TINY, cut_to
from spsbench.parts.audit.bets import copied, tilted
from spsbench.parts.audit.messages import evidence as messages
from spsbench.parts.external.engine import add_up
from spsbench.parts.external.serving import lacking
from spsbench.parts.verify.effort import Finding, skipped

ALARM_LOG_E: Final = math.log(1e4)
_E_VALUE = "e-value 10^4"

FINE, COARSE, MOST = 5e-3, 0.1, 0.5
"""By how much a logprob may differ: in float32 or 64, in 16 bits, and at most."""
_MANY = 0.01  # share of logprobs that may differ by more
_BACK = 8  # earlier requests that a request is held against
_ROUNDING, _MORE_ROUNDING = 1e-3, 0.1  # in a loop, of a law that rounding moves
_FEWEST_LOOPS, _FEWEST_TEXTS = 20, 5
_HUGE = 300.0  # logs of ratios are cut here

_RULES = {
    messages.MODIFIED: (messages.DRAFTED, False),
    messages.MODIFIED_RAW: (messages.DRAFT, False),
    messages.MODIFIED_UNCUT: (messages.UNCUT, False),
    messages.BLOCK: (messages.DRAFTED, True),
    messages.COMPARED: ("compared", False),
    messages.COMPARED_TO_BEST: ("best", False),
}
"""By which a text's tokens may have been drafted and accepted: see ``_Text.accepted``."""

_OF_TARGET = (messages.LOGITS, messages.RAW, messages.TEMPERED, messages.PROCESSED)

_OTHER_DRAFTS = ("tree", "lookup", "gram", "suffix", "eagle", "head")
"""Words of a rule whose drafts are no chain of the draft model's."""

Numbers = dict[str, float | int | str | None]


class FreeEvidence:
    """Takes every answer of an engine under one setting, and says what is wrong beside the law of a text.

    Args:
        k: of its chains of drafted tokens; 0 without a draft, None where it is not known.
        rule: as the engine reports it.
        slack: by how much a logprob may differ, at most ``MOST``; that of the rows' dtype unless given. Of
            weights in fewer bits ``MOST``: how their kernels round is not known.
        drawn: whether the requests are known: their seeds and their longest text.
        drafting: how the engine says that it drafts: the draft's warped rows of a reading are cut so.
    """

    def __init__(
        self,
        k: int | None,
        rule: str | None = None,
        slack: float | None = None,
        *,
        drawn: bool = True,
        drafting: Drafting | None = None,
    ) -> None:
        drafting = drafting or Drafting()
        self._top_k = drafting.top_k or 0
        k = None if any(word in (rule or "").lower() for word in _OTHER_DRAFTS) else k
        adapts = bool(k) and drafting.n_max is not None
        most = drafting.n_max if adapts else k
        rounding = _ROUNDING if slack is None else _MORE_ROUNDING
        by_token = "block" not in (rule or "").lower()
        self._logprobs, self._by_step = _Logprobs(slack), by_token and bool(k)
        self._counters = _Counters(most, rounding, self._top_k, by_token=by_token)
        self._lengths = _Lengths(most or 0, rounding, drafting.p_min, adapts=adapts)
        self._steps = _Steps(rounding)
        self._streams, self._ends, self._drawn = _Streams(), _Ends(k), drawn

    def add(self, ask: Ask, answer: Answer, reading: Reading, free: int | None = None) -> None:
        """Add an answer, with the token that ended it.

        ``free`` tokens came before the first loop (None: unknown).
        """
        if answer.retokenised or not answer.output_ids:
            return
        text = _Text.of(ask, answer, reading, self._top_k)
        self._logprobs.add(text, FINE if reading.logits.dtype.itemsize >= 4 else COARSE)
        frees = self._counters.add(answer, len(text.x), free, reading)
        self._lengths.add(text, frees)
        if self._by_step:
            self._steps.add(text, frees)
        if self._drawn and not reading.sampling.greedy:
            self._streams.add(text)
            self._ends.add(text)

    def findings(self) -> list[Finding]:
        lengths = self._steps if self._lengths.varies and self._steps.tests else self._lengths
        parts = (self._logprobs, self._counters, lengths, self._streams, self._ends)
        return [*(part.finding() for part in parts), self._streams.seeds()]


@dataclass(frozen=True, slots=True)
class _Text:
    """One answer, n tokens, with what the re-scored rows say of each."""

    ask: Ask
    answer: Answer
    x: Ints
    q: Floats  # [n, V]
    own: dict[str, Floats]  # [n] log-probability of each token, by law
    best: Floats | None  # [n] whether it is the draft's most probable

    @classmethod
    def of(cls, ask: Ask, answer: Answer, reading: Reading, top_k: int = 0) -> _Text:
        """Score an answer; ``top_k`` is of the drafts, 0 where they are not cut."""

        def own(rows: torch.Tensor) -> Floats:
            return np.asarray(own_entries(rows, reading.tokens).cpu().numpy())

        logits = reading.logits.double()
        drafts = reading.draft_logits
        best = None
        q = reading.q.double()
        logprobs = {messages.LOGITS: own(logits.log_softmax(-1)), messages.PROCESSED: own(q.log())}
        if reading.raw is not None:
            logprobs[messages.RAW] = own(reading.raw.double().log_softmax(-1))
        if not reading.sampling.greedy:
            logprobs[messages.TEMPERED] = own((logits / reading.sampling.temperature).log_softmax(-1))
        if drafts is not None and reading.p is not None:
            logprobs[messages.DRAFT] = own(drafts.double().log_softmax(-1))
            logprobs[messages.DRAFTED] = own(reading.p.double().log())
            logprobs[messages.UNCUT] = own(drafted_alone(reading, drafts, reading.p, top_k).double().log())
            best = (drafts.argmax(-1) == reading.tokens).double().cpu().numpy()
        return cls(ask, answer, reading.tokens.cpu().numpy(), q.cpu().numpy(), logprobs, best)

    def accepted(self, by: str) -> Floats:
        """[n] the ratio p / q of each token, or the chance that it was drafted and accepted."""
        if by == "best" and self.best is not None:
            return self.best
        if by == "compared":
            return np.asarray(np.exp(self.own[messages.DRAFTED]))
        return ratio_by_token(self.own[messages.PROCESSED], self.own[by])


# --- logprobs -----------------------------------------------------------------------------------------


class _Logprobs:
    """Returned logprobs against those of the re-scored rows: whose are they?"""

    def __init__(self, slack: float | None) -> None:
        self._given, self._slack = slack, 0.0
        self._tokens = self._misfits = self._foreign = 0
        self._off: dict[str, list[Floats]] = defaultdict(list)  # by law of the target
        self._draft: Counter[str] = Counter()  # the same: tokens that are the draft's in place of it
        self._sources: Counter[str] = Counter()  # texts whose logprobs belong elsewhere as a whole
        self._last: deque[tuple[Floats, dict[str, Floats]]] = deque(maxlen=_BACK)

    def add(self, text: _Text, slack: float) -> None:
        if text.answer.logprobs is None:
            return
        self._slack = slack if self._given is None else min(max(slack, self._given), MOST)
        logprobs = np.asarray(text.answer.logprobs, dtype=np.float64)
        n = len(text.x)
        n -= len(logprobs) == n - 1 and int(text.x[-1]) in text.ask.stop_ids  # that was kept back
        if len(logprobs) != n or not (logprobs <= self._slack).all():  # NaN neither
            self._misfits += 1
            return
        off = {law: np.minimum(abs(values[:n] - logprobs), _HUGE) for law, values in text.own.items()}
        drafted = [
            values <= self._slack for law, values in off.items() if law in (messages.DRAFT, messages.DRAFTED)
        ]
        laws = {law: text.own[law][:n] for law in _OF_TARGET if law in text.own}
        if self._slack == FINE:  # in float32 no rounding moves one so far; in 16 bits it may
            apart = np.min([off[law] for law in laws], axis=0)
            self._foreign += int(((apart > MOST) & (apart < _HUGE)).sum())
        for law in laws:
            self._off[law].append(off[law])
            theirs = np.any(drafted, axis=0) if drafted else False
            self._draft[law] += int((theirs & (off[law] > self._slack)).sum())
        self._tokens += n
        if not self._fits(logprobs, laws):
            places = self._elsewhere(logprobs, laws)
            hit = next((name for name, logs, rows in places if self._fits(logs, rows)), None)
            self._sources.update([hit] if hit else [])
        self._last.append((logprobs, laws))

    def _elsewhere(
        self, logprobs: Floats, laws: dict[str, Floats]
    ) -> Iterator[tuple[str, Floats, dict[str, Floats]]]:
        yield "the token before", logprobs[1:], {law: values[:-1] for law, values in laws.items()}
        yield "the next token", logprobs[:-1], {law: values[1:] for law, values in laws.items()}
        for back, (other, theirs) in enumerate(reversed(self._last), start=1):
            yield f"the request {back} before", logprobs, theirs
            yield f"the request {back} after", other, laws

    def _fits(self, logprobs: Floats, laws: dict[str, Floats]) -> bool:
        n = min(len(logprobs), *map(len, laws.values()))
        hits = [(abs(values[:n] - logprobs[:n]) <= self._slack).mean() for values in laws.values() if n > 2]
        return max(hits, default=0.0) > 1 - 2 * _MANY

    def _nearest(self) -> tuple[str, Floats]:
        joined = {law: np.concatenate(parts) for law, parts in self._off.items()}
        return min(joined.items(), key=lambda each: int((each[1] > self._slack).sum()))

    def finding(self) -> Finding:
        misfits = self._misfits
        if not self._tokens:
            nothing = skipped("logprobs", messages.NO_LOGPROBS)
            return Finding("logprobs", False, messages.LogprobsUnusable(misfits), "0") if misfits else nothing
        law, off = self._nearest()
        wrong = int((off > self._slack).sum())
        drafts = self._draft[law]
        passed = wrong <= max(2, _MANY * self._tokens) and not misfits and not self._foreign
        fit = messages.LogprobsFit(law, self._tokens, self._tokens - wrong)
        message = fit
        if not passed:
            sources = self._sources.most_common(1)
            message = messages.LogprobsDiffer(
                law, self._tokens, fit.right, drafts, self._foreign, MOST, sources, misfits
            )
        numbers: Numbers = {"law": law, "tokens": self._tokens, "off": wrong, "of_the_draft": drafts}
        numbers |= {"of_other_rows": self._foreign}
        numbers |= {"within_99": float(np.quantile(off, 0.99)), "misfits": misfits, **self._sources}
        return Finding("logprobs", passed, message, f"{self._slack:g}", numbers)


# --- counters -----------------------------------------------------------------------------------------


class _Counters:
    """Counts of an answer against its tokens.

    That nothing is rejected is odd only where the rows say otherwise: a target may be its own draft.
    """

    def __init__(self, k: int | None, rounding: float, top_k: int, *, by_token: bool) -> None:
        self._k = k
        self._frees = {0, 1}
        self._rounding = rounding
        self._top_k = top_k
        self._by_token = by_token  # blocks are judged as a whole
        self._log_e = 0.0  # of the bet that what was rejected is not counted
        self._texts = self._past = 0
        # Texts with drafts, with all accepted, with too many tokens.
        self._rated = self._whole = self._gaps = 0
        self._wrong: Counter[str] = Counter()
        self._spans: list[tuple[int, int, int]] = []  # of a text: counted, past its end at most, emitted

    def add(self, answer: Answer, n: int, free: int | None, reading: Reading) -> set[int]:
        """Add an answer's counts; return how many tokens may precede the first loop, none if unknown."""
        kept = answer.accepted
        drafted = answer.drafted
        loops = answer.loops
        per_loop = answer.accepted_per_loop
        emitted, n = n, max(n, answer.decoded or 0)  # some go on after a stop token, and say so
        if per_loop is not None:
            loops = len(per_loop) if loops is None else loops
            kept = sum(per_loop) if kept is None else kept
            whole = sum(per_loop)
            sums = whole - (per_loop[-1] if per_loop else 0) <= kept <= whole and loops == len(per_loop)
            self._wrong[messages.SUMS_DIFFER] += not sums
        kept = 0 if self._k == 0 and kept is None else kept
        if kept is None or (loops is None and drafted is None):
            return set()
        self._texts += 1
        if drafted is not None:
            self._drafted(kept, drafted, loops, n, reading)
        known, k = loops is not None, self._k or 0
        if loops is None:  # at least so many
            loops = -(-(drafted or 0) // k) if k else 0
        most = per_loop[-1] if per_loop else kept if self._k is None else k
        counted = kept + loops
        frees = {0, 1} if free is None else {free}
        fits = {
            f
            for f in frees
            if counted - most <= n - f <= counted and (not per_loop or add_up([*per_loop], n - f))
        }
        self._past += max(0, counted - emitted)
        self._wrong[messages.TOO_MANY_COUNTED] += counted - most > n - min(frees)
        self._wrong[messages.TOO_FEW_COUNTED] += known and counted < n - max(frees)
        self._spans.append((counted, most, n - max(frees)))
        if not known:
            return set()
        self._frees = fits & self._frees or self._frees
        return fits & self._frees

    def _drafted(self, kept: int, drafted: int, loops: int | None, n: int, reading: Reading) -> None:
        self._wrong[messages.MORE_THAN_DRAFTED] += kept > drafted
        self._rated += drafted > 0
        if self._k:
            self._wrong[messages.BEYOND_K] += loops is not None and drafted > self._k * loops
            self._whole += (whole := 0 < drafted == kept)
            if whole and kept + -(-kept // self._k) < n - 1 and reading.p is not None and self._by_token:
                self._gaps += 1
                self._log_e -= log_all_stand(reading, kept, self._rounding, self._top_k)

    def _requests_away(self) -> int | None:
        """Where the texts are that the counts fit, if they do not fit their own."""
        spans, shares = self._spans, {0: 0.0}
        for lag in range(-_BACK, _BACK + 1):
            pairs = [(a, spans[i + lag][2]) for i, a in enumerate(spans) if 0 <= i + lag < len(spans)]
            fits = [n <= counted <= n + most + 1 for (counted, most, _), n in pairs]
            shares[lag] = sum(fits) / len(fits) if len(fits) >= _FEWEST_TEXTS else 0.0
        best = max(shares, key=lambda lag: shares[lag])
        return best if shares[best] == 1.0 > shares[0] else None

    def finding(self) -> Finding:
        if not self._texts:
            return skipped("counters", messages.NO_COUNTERS)
        wrong, lag = +self._wrong, self._requests_away()
        if self._whole == self._rated and self._log_e >= ALARM_LOG_E:
            wrong[messages.ALL_ACCEPTED] = self._gaps
        numbers: Numbers = {"texts": self._texts, "past_the_end": self._past, "lag": lag, **wrong}
        short = wrong[messages.TOO_FEW_COUNTED]
        # Loops that draft nothing need not be counted.
        if not wrong[messages.TOO_MANY_COUNTED] and lag is None:
            del wrong[messages.TOO_FEW_COUNTED]
        passed = not +wrong
        fit = messages.CountersFit(self._texts, self._past, short)
        message = fit if passed else messages.CountersDiffer(self._texts, (+wrong).most_common(), lag)
        return Finding("counters", passed, message, "0", numbers)


def drafted_alone(reading: Reading, drafts: torch.Tensor, p: torch.Tensor, top_k: int) -> torch.Tensor:
    """Return [n, V] what a draft of these logits is drawn from where the request's cuts are not the draft's.

    It is cut to ``top_k`` tokens (0: not at all); ``p`` where the request cuts nothing.
    """
    sampling = reading.sampling
    if sampling.greedy or not (sampling.top_k or sampling.top_p < 1 or sampling.process is not None):
        return p
    rows = (drafts.double() / sampling.temperature).softmax(-1)
    return torch.from_numpy(cut_to(rows.cpu().numpy(), top_k)).to(rows.device)


def log_all_stand(reading: Reading, drafts: int, rounding: float, top_k: int = 0) -> float:
    """Return the log of the highest probability that so many drafted tokens of a text all stand.

    At whichever places, as long as they are chosen before their tokens: there one stands with at most 1 - TV.
    """
    q, p, logits = reading.q, reading.p, reading.draft_logits
    assert p is not None
    assert logits is not None
    best = own_entries(q, logits.argmax(-1))
    rows = p, logits.softmax(-1), drafted_alone(reading, logits, p, top_k)
    stands = torch.stack([*(torch.minimum(q, each).sum(-1) for each in rows), best])
    most = (stands.max(0).values.double() + rounding).clamp(max=1.0)
    return float(most.topk(min(drafts, len(most))).values.log().sum())


# --- acceptance ---------------------------------------------------------------------------------------


class _Lengths:
    """How many tokens loops accept, against the law of the loops over the same texts.

    Bet is that lengths do not depend on the text: that they follow their own frequencies so far, or, where
    only totals are reported, that texts have one number of tokens per loop. This covers an acceptance that is
    made up, all of it and none of it.

    Of an engine whose K adapts nothing is said here, for its loops are others: among its texts those whose
    loops all drafted K tokens are those that accepted most. ``_Steps`` judges it where it tells its drafts.
    """

    def __init__(self, k: int, rounding: float, p_min: float, *, adapts: bool = False) -> None:
        self._k, self._rounding, self._p_min = k, rounding, p_min
        self._adapts = adapts  # as the engine declares; K is the most that it drafts then
        self._texts = self._loops = self._tokens = self._drafted = self._kept = 0
        self._other = self._early = self._late = 0  # texts by what they say of K: see ``_is_full``
        self._seen = np.full(k + 1, 0.5)  # loops by the drafts they kept
        self._log_e = {(rule, free): 0.0 for rule in _RULES for free in (0, 1)}
        self._frees = {0, 1}
        self._expected = defaultdict[str, float](float)
        self._steps: list[str] = []  # on logits, which the drafts of a right engine need not know

    def add(self, text: _Text, frees: set[int]) -> None:
        answer = text.answer
        k = self._k
        if not k or text.best is None:
            return
        per_loop = answer.accepted_per_loop
        drafted = answer.drafted
        if drafted is None and answer.drafted_ids is not None:
            drafted = sum(map(len, answer.drafted_ids))
        loops = answer.loops if per_loop is None else len(per_loop)
        self._texts += 1
        self._drafted += 1 if drafted is None else drafted
        if not frees or not loops or drafted is None or max(per_loop or [0]) > k:
            return  # K may adapt, or the counters are wrong
        if self._adapts or not self._is_full(text, drafted, loops, frees):
            self._other += 1
            return
        self._frees &= frees
        self._steps = lacking(text.ask.sampling, ("min_p", "typical_p"))
        for rule, (by, block) in _RULES.items():
            ratios = anchored(text.accepted(by), k)
            for free in frees:
                law = loops_over(ratios[free:], block=block)
                self._log_e[rule, free] += (
                    self._log_e_of_total(law, loops)
                    if per_loop is None
                    else self._log_e_by_loop(law, per_loop)
                )
            self._expected[rule] += law.loops
        np.add.at(self._seen, (per_loop or [])[:-1], 1.0)
        self._tokens += len(text.x) - min(frees)
        self._loops += loops
        self._kept += (answer.accepted or 0) if per_loop is None else sum(per_loop)

    @property
    def varies(self) -> bool:
        """Whether loops did not draft K tokens each."""
        return bool(self._other and self._drafted)

    def _is_full(self, text: _Text, drafted: int, loops: int, frees: set[int]) -> bool:
        """Each loop drafted K tokens, or those that fit before the limit.

        Both have one law: a loop that keeps all that fit ends the text. To leave such texts out would choose
        them by how their loops came to lie. Of fewer near the limit totals say little: they count only
        beside texts that end earlier.
        """
        per_loop = text.answer.accepted_per_loop
        most = text.ask.max_new_tokens
        k = self._k
        early, whole = len(text.x) <= most - k, drafted == k * loops
        self._early += early
        if whole or (per_loop is None and early):
            return whole
        if per_loop is None:
            self._late += 1
            return 0 <= k * loops - drafted <= k * (k + 1) // 2
        begun = np.cumsum([0, *(kept + 1 for kept in per_loop[:-1])])
        lefts = [most - begun - taken for taken in {taken + one for taken in frees for one in (0, 1)}]
        return any(drafted == left.clip(0, k).sum() for left in lefts)

    def _log_e_by_loop(self, law: TextLoops, accepted: Sequence[int]) -> float:
        """Of bets on what loops keep that do not reach the end.

        That a loop reaches the end is not bet on: the end cuts it.
        """
        log_e = 0.0
        place = 0
        seen = self._seen.copy()
        for count in accepted[:-1]:
            short = slice(law.ends.shape[1] - place - 1)  # a loop that keeps more is the last
            ends = law.ends[0, place]
            other = seen[count] / seen[short].sum()
            own = (ends[count] + self._rounding) / (ends[short].sum() + self._rounding)
            log_e += math.log(other / own)
            seen[count] += 1
            place += count + 1
        return log_e

    def _log_e_of_total(self, law: TextLoops, loops: int) -> float:
        """Of a bet on the number of loops, which begins where some are known."""
        n = law.ends.shape[1]
        if self._loops < _FEWEST_LOOPS or loops > n:
            return 0.0
        z = (np.arange(n + 1) - n * self._loops / self._tokens) / np.array([[0.5], [1.0], [2.0]])
        bells = np.exp(-0.5 * z * z) + TINY
        bet = (bells / bells.sum(1, keepdims=True)).mean(0)
        *_, one, more = law.begun(loops + 1)  # the chances of so many loops, and of one more
        return float(np.log(bet[loops] / (one - more + self._rounding)))

    def finding(self) -> Finding:
        if self.varies:
            return skipped("acceptance", messages.DraftsNotReported(self._texts, self._other, self._adapts))
        unknown = not self._loops or (self._late and self._early < _FEWEST_TEXTS)
        if not self._texts or (self._drafted and unknown):
            return skipped("acceptance", messages.LOOPS_UNKNOWN)
        if not self._drafted and self._p_min:
            return skipped("acceptance", messages.NoSureRow(self._p_min))
        if not self._drafted:
            nothing = messages.NothingDrafted(self._texts)
            return Finding("acceptance", self._texts < _FEWEST_TEXTS, nothing, "0", {"texts": self._texts})
        rule, log_e = min(
            ((rule, value) for (rule, free), value in self._log_e.items() if free in self._frees),
            key=lambda each: each[1],
        )
        passed = log_e < ALARM_LOG_E
        mean = self._tokens / self._loops
        least, *_, most = sorted(self._tokens / count for count in self._expected.values())
        lengths = messages.LoopLengths(self._loops, mean, least, most)
        message: Message = lengths
        if not passed and self._steps:
            message = messages.OtherDrafts(lengths, self._steps)
        elif not passed and not self._kept:
            message = messages.NoneAccepted(self._loops, mean, least, most)
        elif not passed and self._kept == self._k * self._loops:
            message = messages.AllAccepted(self._loops, mean, least, most)
        elif not passed:
            message = messages.LengthsUnlikeText(lengths, np.flatnonzero(self._seen > 1).tolist())
        numbers: Numbers = {"loops": self._loops, "tokens_per_loop": mean, "least": least, "most": most}
        numbers |= {"nearest_rule": rule, "log10_e_value": log_e / math.log(10)}
        numbers |= {"unlike": not passed}
        return Finding("acceptance", passed or bool(self._steps), message, _E_VALUE, numbers)


class _Steps:
    """Whether each tested draft was accepted, against its chance given the text: for loops of any length.

    Whether a token is drafted at a place may follow from what stands before it, as from the draft's row there
    or the loops so far, but not from the token. Then it is accepted with the ratio of its text's token
    there, however long the loop is. Bet is that acceptance follows its own frequencies by place in the loop.
    """

    def __init__(self, rounding: float) -> None:
        self._rounding, self.tests, self._kept = rounding, 0, 0
        self._seen = defaultdict[int, list[float]](lambda: [0.5, 0.5])  # by place: rejected, accepted
        self._log_e = {
            (rule, free): 0.0 for rule, (_, block) in _RULES.items() if not block for free in (0, 1)
        }
        self._expected = dict.fromkeys(self._log_e, 0.0)
        self._frees = {0, 1}

    def add(self, text: _Text, frees: set[int]) -> None:
        per_loop = text.answer.accepted_per_loop
        drafted = text.answer.drafted_ids
        if not frees or not per_loop or drafted is None or len(drafted) != len(per_loop) or text.best is None:
            return
        self._frees &= frees
        # Also of the last loop, up to the end: to leave it out would choose loops by what they kept.
        tests = [
            (place, step, step < count)
            for loop, (count, ids) in enumerate(zip(per_loop, drafted, strict=True))
            for step in range(min(count + 1, len(ids)))
            if (place := sum(per_loop[:loop]) + loop + step) + max(frees) < len(text.x)
        ]
        for rule, free in self._log_e:
            if free not in frees:
                continue
            chances = np.minimum(text.accepted(_RULES[rule][0]), 1.0)
            for place, step, kept in tests:
                chance = float(chances[place + free])
                seen = self._seen[step]
                self._expected[rule, free] += chance
                bet = seen[kept] / sum(seen)
                self._log_e[rule, free] += math.log(bet / ((chance if kept else 1 - chance) + self._rounding))
        for _, step, kept in tests:  # nothing of a text is known when it is bet on
            self._seen[step][kept] += 1
        self.tests, self._kept = self.tests + len(tests), self._kept + sum(kept for *_, kept in tests)

    def finding(self) -> Finding:
        possible = {key: value for key, value in self._log_e.items() if key[1] in self._frees}
        (rule, free), log_e = min(possible.items(), key=lambda each: each[1])
        passed = log_e < ALARM_LOG_E
        shares = sorted(self._expected[key] / self.tests for key in possible)
        message = messages.TestedDrafts(self._kept, self.tests, shares[0], shares[-1], passed)
        numbers: Numbers = {"tests": self.tests, "accepted": self._kept, "nearest_rule": rule}
        numbers |= {"log10_e_value": log_e / math.log(10), "expected": self._expected[rule, free]}
        return Finding("acceptance", passed, message, _E_VALUE, numbers)


# --- requests that know of each other -----------------------------------------------------------------


class _Streams:
    """Whether a request's random numbers are those of an earlier one: texts copied, numbers used again.

    A number lies in an interval of the cumulated row, in the order of ids or of descending probability. Bet
    is that it lies in the interval of an earlier request's number at the same place, that both are high or
    low, and, for engines that draw by noise per token, that an earlier winner wins again.
    """

    def __init__(self) -> None:
        self._log_e = dict.fromkeys((messages.UNSEEDED, messages.SEEDED), 0.0)
        self._texts: Counter[str] = Counter()
        self._products = defaultdict[str, list[float]](list)
        self._of = defaultdict[tuple[int, ...], list[Sequence[int]]](list)  # a prompt
        self._last: deque[tuple[Ints, Floats]] = deque(maxlen=_BACK)
        self._drawn: dict[tuple[tuple[int, ...], int], Ints] = {}
        self._repeated = self._equal = 0

    def add(self, text: _Text) -> None:
        seed = text.ask.seed
        prompt = tuple(text.ask.prompt_ids)
        first = text.x if seed is None else self._drawn.setdefault((prompt, seed), text.x)
        if first is not text.x:
            n = min(len(first), len(text.x))
            self._repeated += 1
            self._equal += bool((first[:n] == text.x[:n]).all())
            return
        kind = messages.UNSEEDED if seed is None else messages.SEEDED
        earlier = self._of[prompt]
        own = np.exp(text.own[messages.PROCESSED])
        every = np.arange(len(text.x))
        smaller = np.arange(text.q.shape[1]) < text.x[:, None]
        chance = text.q[every, text.x][:, None]
        lower = (smaller, (text.q > chance) | (smaller & (text.q == chance)))
        low = np.stack([np.where(ahead, text.q, 0.0).sum(-1) for ahead in lower])
        intervals = np.stack([low, low + own])  # [ends, orders, n]
        if self._last:
            again = [
                np.exp(np.minimum(self._reuse_log_ratios(text, own, intervals, *each), _HUGE))
                for each in self._last
            ]
            texts = copied(earlier, text.x, np.maximum(own, TINY), own > 0) if earlier else 1.0
            self._log_e[kind] += math.log(0.5 + 0.25 * np.mean(again) + 0.25 * texts)
            n = min(len(text.x), len(self._last[-1][0]))
            one, other = (ends[:, 0, :n].mean(0) - 0.5 for ends in (intervals, self._last[-1][1]))
            self._products[kind].extend(12 * one * other)
        self._texts[kind] += 1
        earlier.append(text.x.tolist())
        self._last.append((text.x, intervals))

    def _reuse_log_ratios(
        self, text: _Text, own: Floats, intervals: Floats, ids: Ints, before: Floats
    ) -> Floats:
        """[lenses] logs of the ratios of a text if it used the numbers of another one."""
        n = min(len(text.x), len(ids))
        (low, high), (start, end) = intervals[..., :n], before[..., :n]
        shared = np.maximum(np.minimum(high, end) - np.maximum(low, start), 0.0)
        ratios = [
            tilted(text.x[:n] == ids[:n], text.q[np.arange(n), ids[:n]], 4.0)[None],
            0.5 + 0.5 * shared / (np.maximum(end - start, 1e-9) * np.maximum(own[:n], TINY)),
            1 + 0.9 * (low + high - 1) * (start + end - 1),
        ]
        logs = np.log(np.maximum(np.concatenate(ratios), TINY))
        return np.asarray(np.where(own[:n] > 0, logs, 0.0).sum(-1))

    def finding(self) -> Finding:
        if self._texts.total() < 2:
            return skipped("independence", messages.TOO_FEW_SAMPLED)
        wrong = [kind for kind, log_e in self._log_e.items() if log_e >= ALARM_LOG_E + math.log(2)]
        message = messages.Dependent(wrong) if wrong else messages.Independent(self._texts)
        numbers: Numbers = {}
        for kind, count in self._texts.items():
            name = kind.replace(" ", "_")
            log_e = self._log_e[kind]
            numbers |= {f"texts_{name}": count, f"log10_e_value_{name}": log_e / math.log(10)}
            products = self._products[kind]
            numbers[f"correlation_{name}"] = float(np.mean(products)) if products else None
        return Finding("independence", not wrong, message, _E_VALUE, numbers)

    def seeds(self) -> Finding:
        """Report, as a fact, how often a seed gave the same text: the protocol allows another draw."""
        if not self._repeated:
            return skipped("seeds", messages.NO_SEED_TWICE)
        repeated = messages.SeedsRepeated(self._equal, self._repeated)
        return Finding("seeds", True, repeated, "-", {"repeated": self._repeated, "equal": self._equal})


# --- ends of texts ------------------------------------------------------------------------------------


class _Ends:
    """Bets on how texts end: the last token that fits is a draft, and texts that do not end are drawn again.

    The law of a text that is drawn again until it ends is the target's under the condition that it ends: its
    hazard of ending is h / P(the text ends | prefix), a Doob transform. That probability is in no row, but
    any guess made beforehand gives a law, so that the ratios have mean 1: h for this token, and the mean
    hazard of earlier texts from the next one on. A text that is drawn again once is a mixture of both laws.
    """

    _SHARES = np.array([0.3, 0.6, 0.9])

    def __init__(self, k: int | None) -> None:
        self._drafts = k != 0
        self._log_e = {messages.LAST_UNTESTED: np.zeros(3), messages.DRAWN_AGAIN: np.zeros(3)}
        self._texts = self._full = self._places = 0
        self._hazards = 0.0

    def add(self, text: _Text) -> None:
        n = len(text.x)
        own = text.own[messages.PROCESSED]
        stops = text.ask.stop_ids
        ended, full = int(text.x[-1]) in stops, n == text.ask.max_new_tokens
        self._texts, self._full = self._texts + 1, self._full + (full and not ended)
        if full and self._drafts and messages.DRAFTED in text.own and own[-1] > -math.inf:
            self._bet(messages.LAST_UNTESTED, text.own[messages.DRAFTED][-1] - own[-1])
        if not stops or not (ended or full):
            return
        hazard = np.minimum(text.q[:, stops].sum(-1), 1 - 1e-12)
        if self._hazards:
            left = text.ask.max_new_tokens - 1 - np.arange(n)
            later = -np.expm1(left * np.log1p(-self._hazards / self._places))  # P(ends | not now)
            now = np.append(later[:-1], 1.0 if ended else later[-1])
            logs = np.log(np.maximum(now, TINY)) - np.log(hazard + (1 - hazard) * later + TINY)
            self._bet(messages.DRAWN_AGAIN, logs.sum())
        self._hazards, self._places = self._hazards + float(hazard.sum()), self._places + n

    def _bet(self, what: str, log_ratio: float) -> None:
        self._log_e[what] += np.log(1 - self._SHARES + self._SHARES * math.exp(min(log_ratio, _HUGE)))

    def finding(self) -> Finding:
        if not self._texts:
            return skipped("ends", messages.NOTHING_SAMPLED)
        logs = {what: float(np.logaddexp.reduce(each)) - math.log(6) for what, each in self._log_e.items()}
        log_e = float(np.logaddexp.reduce([*logs.values()]))
        passed = log_e < ALARM_LOG_E
        message = messages.TextEnds(self._texts, self._full)
        if not passed:
            message = replace(message, fault=max(logs, key=lambda fault: logs[fault]))
        numbers: Numbers = {"texts": self._texts, "full": self._full, "log10_e_value": log_e / math.log(10)}
        return Finding("ends", passed, message, _E_VALUE, numbers)


def probes(prompts: Sequence[Sequence[int]], ask: Ask, count: int, tokens: int = 16) -> list[Ask]:
    """Return short requests: half of one prompt, each seed twice, and half of two prompts without a seed."""
    most = min(max(tokens, ask.sampling.min_new_tokens), ask.max_new_tokens)
    short = replace(ask, max_new_tokens=most, logprobs=True)
    if ask.sampling.greedy:
        return [replace(short, prompt_ids=list(prompts[i % len(prompts)])) for i in range(count // 4)]
    two = [list(prompt) for prompt in prompts[:2]]
    seeds = [*range(1, count // 4 + 1)]
    half = [
        replace(short, prompt_ids=two[i % len(two)], seed=None, logprobs=False) for i in range(count // 2)
    ]
    return [*(replace(short, prompt_ids=two[0], seed=seed) for seed in [*seeds, *seeds]), *half]

"""Evidence of losslessness for one sequence, from an uncached forward after its clock has stopped.

Two witnesses. From the loops' own rows every decision is derived again (``engines.derivation``), but they are
the very rows that the tokens were accepted with: blind to a wrong row, a stale cache or a wrong position. A
second reading of the finished text by one forward without any cache knows nothing of loops: it gives evidence
of its own, and says how far the loops' rows lie from the model's.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from spsbench.base.records import RESCORED, UNRANKED, Generation, SamplingParams, TokenEvidence
from spsbench.decode import rows as loop_rows
from spsbench.decode.processors import with_history
from spsbench.engines.buffer import transform_numbers
from spsbench.law.evidence import Sums, added, rows_in_chunk, sums_of
from spsbench.models.causal_lm import CausalLM

# How far rounding may move the nucleus (in mass) or the best logit (in units of the logits' spread).
_SLACK = {torch.float32: 1e-4, torch.float64: 1e-9}
_COARSE_SLACK = 3e-2


def token_slack(dtype: torch.dtype) -> float:
    """Return how far rounding may move what decides whether a token is possible."""
    return _SLACK.get(dtype, _COARSE_SLACK)


@dataclass(frozen=True, slots=True)
class Reading:
    """A finished text as one uncached forward of each model sees it, n tokens after the prompt.

    Logits are those that temperature and cuts are applied to: after penalties, bans and a grammar.
    """

    tokens: Tensor  # [n] the emitted ids
    sampling: SamplingParams
    logits: Tensor  # [n, V] of the target
    draft_logits: Tensor | None  # [n, V] of the draft; None without one
    q: Tensor  # [n, V] warped rows of the target
    p: Tensor | None  # [n, V] warped rows of the draft; None without one
    impossible: Tensor  # [n] whether the token has probability 0 under the target, rounding granted
    edge: Tensor  # [n] whether only rounding puts it outside
    raw: Tensor | None = None  # [n, V] of the target before its processing; None where there is none
    prompt: tuple[int, ...] = ()


@torch.inference_mode()
def teacher_force(
    target: CausalLM,
    draft: CausalLM | None,
    prompt: Sequence[int],
    tokens: Sequence[int],
    sampling: SamplingParams,
    dtype: torch.dtype | None = None,
) -> Reading:
    """Score a text by teacher forcing, without cache or loops; the draft's sampling is the target's."""
    text = _Text(target, draft, prompt, tokens, sampling, sampling, dtype or target.dtype)
    raw = target.score_uncached(text.sequence[:-1], last=len(tokens))
    other = text.draft
    drafts = None if other is None else other.score_uncached(text.sequence[:-1], last=len(tokens))
    return text.reading(0, raw, drafts)


ROWS = 64
"""Positions of a text that are read at a time, where a vocabulary is large: its rows as tensors."""


def rows_at_a_time(vocab_size: int) -> int:
    """Return how many positions are read at a time; more for a small vocabulary."""
    return max(ROWS, rows_in_chunk(vocab_size))


def readings(
    target: CausalLM,
    draft: CausalLM | None,
    prompt: Sequence[int],
    tokens: Sequence[int],
    sampling: SamplingParams,
    draft_sampling: SamplingParams | None = None,
    rows: int | None = None,
) -> Iterator[tuple[int, Reading]]:
    """As ``teacher_force``, ``rows`` positions at a time, each part with its first position in the text.

    The forwards are of the whole text. Their heads, whose rows would take gigabytes, are computed part by
    part; a caller that lets go of a part before it takes the next one holds the rows of one. It is for the
    caller to be in inference mode: torch's decorator of a generator would hold on to every part.
    """
    text = _Text(target, draft, prompt, tokens, sampling, draft_sampling or sampling, target.dtype)
    rows = rows or rows_at_a_time(target.vocab_size)
    read, n = text.sequence[:-1], len(tokens)
    drafts = None if text.draft is None else text.draft.score_uncached_parts(read, n, rows)
    first = 0
    for raw in target.score_uncached_parts(read, n, rows):
        count = len(raw)
        yield first, text.reading(first, raw, None if drafts is None else next(drafts))
        first += count
        del raw  # before the next ones are made


class _Text:
    """A finished text, and whose logits at some of its positions become a ``Reading``."""

    def __init__(
        self,
        target: CausalLM,
        draft: CausalLM | None,
        prompt: Sequence[int],
        tokens: Sequence[int],
        sampling: SamplingParams,
        draft_sampling: SamplingParams,
        dtype: torch.dtype,
    ) -> None:
        self._ids, self._prompt = [*prompt, *tokens], tuple(prompt)
        self._sampling, self._draft_sampling = sampling, draft_sampling
        self._slack = max(token_slack(kind) for kind in (dtype, target.dtype))
        self.sequence = torch.tensor(self._ids, device=target.device)
        # The draft-only arm has the draft as its target: one forward serves both.
        self._is_one = draft is target and draft_sampling == sampling
        self.draft = None if self._is_one else draft

    def reading(self, first: int, raw: Tensor, drafts: Tensor | None) -> Reading:
        """Return the reading of the positions from ``first`` on, from both models' logits [n, V] there."""
        sampling = self._sampling
        start = len(self._prompt) + first
        emitted = self.sequence[start : start + len(raw)]
        before = self._ids[: start + len(raw) - 1]
        logits = with_history(raw, sampling.history, before, len(self._prompt))
        q = _warped(logits, sampling)
        if self._is_one:
            drafts, p = logits, q
        elif drafts is not None:
            drafts = with_history(drafts, self._draft_sampling.history, before, len(self._prompt))
            p = _warped(drafts, self._draft_sampling)
        else:
            p = None
        outside = own_entries(q, emitted) <= 0
        near = _at_the_edge(logits, emitted, sampling, self._slack)
        return Reading(
            tokens=emitted,
            sampling=sampling,
            logits=logits,
            draft_logits=drafts,
            q=q,
            p=p,
            impossible=outside & ~near,
            edge=outside & near,
            raw=None if sampling.process is None else raw,
            prompt=self._prompt,
        )


def _warped(logits: Tensor, sampling: SamplingParams) -> Tensor:
    """Warp [n, V] logits a few rows at a time: sorting a large vocabulary takes several times its memory."""
    rows = rows_in_chunk(logits.shape[-1])
    return torch.cat([loop_rows.warped(part, sampling).dense() for part in torch.split(logits, rows)])


def score_stats(reading: Reading, seed: int) -> Sums:
    """Sum ``evidence`` over a reading; a token at the edge is counted as ``edge`` and left out."""
    return Scores(seed, len(reading.tokens)).of(reading)


class Scores:
    """``score_stats`` of the n positions of a text, part by part."""

    def __init__(self, seed: int, n: int) -> None:
        self._numbers = transform_numbers(n, seed, torch.empty(0))
        self._taken = 0

    def of(self, reading: Reading) -> Sums:
        """Add the sums over the next part."""
        tokens = reading.tokens
        q = reading.q
        p = reading.p
        edge = int(reading.edge.sum())
        # Chunk by chunk: dropping the edge's rows from all rows at once would copy the others.
        rows = rows_in_chunk(q.shape[-1]) if edge else max(len(tokens), 1)
        sums: Sums = {}
        for start in range(0, max(len(tokens), 1), rows):
            part = slice(start, start + rows)
            kept = tokens[part]
            target = q[part]
            draft = None if p is None else p[part]
            if edge:
                inside = ~reading.edge[part]
                kept = kept[inside]
                target = target[inside]
                draft = None if draft is None else draft[inside]
            numbers = self._numbers[self._taken : self._taken + len(kept)].to(q.device)
            self._taken += len(kept)
            sums = added(sums, sums_of(kept, target, draft, numbers))
        return sums | {"edge": float(edge)}


def rescored(sums: Sums) -> Sums:
    """Return ``Scores`` of a whole text with the prefix ``rescored_``.

    The draft's rows are there at every position, so that on ArS text ``overlap / overlap_positions``
    is Leviathan's alpha.
    """
    return {RESCORED + name: value for name, value in sums.items()}


def spans(generation: Generation) -> list[tuple[int, int]]:
    """Return per loop where it began in the output, and how many of its drafted tokens have places there."""
    spans_of_loops, at = [], 0
    for loop, drafts in zip(generation.loops or (), generation.proposed or (), strict=True):
        spans_of_loops.append((at, min(loop.emitted, len(drafts))))
        at += loop.emitted
    return spans_of_loops


def recorded_rows(generation: Generation, first: int, like: Tensor) -> Tensor | None:
    """[n, V] the rows that drafted tokens were drawn from, as the drafter showed them.

    They are of the positions from ``first`` on, and shaped as ``like``.
    """
    if generation.kept_rows is None or generation.kept_rows.every > 1:
        return None
    rows = torch.zeros(like.shape, device=like.device)
    for (start, count), own_rows in zip(spans(generation), generation.kept_rows.draft, strict=True):
        low = max(start, first)
        high = min(start + count, first + len(rows))
        if own_rows is not None and low < high:
            rows[low - first : high - first] = own_rows.part(low - start, high - low).dense()
    return rows


def with_draft(
    reading: Reading, generation: Generation, first: int, recorded: Tensor, logits: Tensor | None
) -> Reading:
    """Return a reading of the positions from ``first`` on with the rows of the draft.

    Those are the drafter's, or, where given, an independent forward's ``logits`` [n, V].
    """
    rows = recorded.clone()
    for (start, count), drafts in zip(spans(generation), generation.proposed or (), strict=True):
        low = max(start, first)
        high = min(start + count, first + len(rows))
        span = slice(low - first, high - first)
        if low >= high:
            continue
        if logits is not None:
            rows[span] = _warped(logits[span], reading.sampling).to(rows.dtype)
        elif not bool(rows[span].any()):
            ids = torch.tensor(drafts[low - start : high - start])
            rows[span] = one_hot(ids, rows.shape[1]).to(rows)
    return replace(reading, draft_logits=logits, p=rows)


def possible(logits: Tensor, tokens: Tensor, sampling: SamplingParams, dtype: torch.dtype) -> Tensor:
    """[n] whether each token has a probability under logits [n, V], or lacks one only by rounding."""
    inside = own_entries(_warped(logits, sampling), tokens) > 0
    return inside | _at_the_edge(logits, tokens, sampling, token_slack(dtype))


def _at_the_edge(logits: Tensor, tokens: Tensor, sampling: SamplingParams, slack: float) -> Tensor:
    """[n] whether a token would be possible if rounding had moved its logit up and the nucleus's mass."""
    rows = rows_in_chunk(logits.shape[-1])
    parts = zip(torch.split(logits, rows), torch.split(tokens, rows), strict=True)
    return torch.cat([_few_at_the_edge(part.float(), own, sampling, slack) for part, own in parts])


def _few_at_the_edge(logits: Tensor, tokens: Tensor, sampling: SamplingParams, slack: float) -> Tensor:
    column = tokens.unsqueeze(-1)
    logit = logits.gather(-1, column)
    best = logits.max(-1, keepdim=True).values
    never = logits.isneginf()  # what a draft cannot propose is not part of it
    mean = logits.masked_fill(never, 0.0).sum(-1, keepdim=True) / (~never).sum(-1, keepdim=True)
    shift = slack * (best - mean)
    if sampling.greedy:
        return (best - logit <= shift).squeeze(-1)
    wider = replace(sampling, top_p=min(1.0, sampling.top_p + slack))
    if (process := sampling.process) is not None:
        mass = min(1.0, process.typical_p + slack)
        wider = replace(wider, process=replace(process, typical_p=mass, min_p=process.min_p * (1 - slack)))
    return own_entries(_warped(logits.scatter(-1, column, logit + shift), wider), tokens) > 0


@torch.inference_mode()
def token_evidence(tokens: Tensor, q: Tensor, p: Tensor | None, draft_logits: Tensor | None) -> TokenEvidence:
    """Look every emitted token up in its rows.

    Args:
        tokens: [n] emitted ids.
        q: [n, V] warped rows of the target.
        p: [n, V] warped rows of the draft; None without a draft model.
        draft_logits: [n, V] what ``p`` was warped from; None without a draft model.
    """
    log_target = _floats(own_entries(q, tokens).log())
    if p is None or draft_logits is None:
        unknown = array("f", [float("nan")]) * len(tokens)
        unranked = array("i", [UNRANKED]) * len(tokens)
        return TokenEvidence(log_target, unknown, unranked, unknown[:], unknown[:])
    rows = rows_in_chunk(q.shape[-1])
    parts = [slice(start, start + rows) for start in range(0, max(len(tokens), 1), rows)]
    ranks = [_ranks(draft_logits[part], tokens[part]) for part in parts]
    return TokenEvidence(
        log_target=log_target,
        log_draft=_floats(own_entries(p, tokens).log()),
        draft_rank=array("i", torch.cat(ranks).tolist()),
        draft_max=_floats(torch.cat([p[part].max(-1).values for part in parts])),
        draft_entropy=_floats(torch.cat([torch.special.entr(p[part]).sum(-1) for part in parts])),
    )


def own_entries(rows: Tensor, tokens: Tensor) -> Tensor:
    """Return [n] each token's own entry in its row."""
    return rows.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def _ranks(logits: Tensor, tokens: Tensor) -> Tensor:
    """[n] how many tokens are more probable, of equal ones those of smaller id; a row of NaN has no ranks.

    By the logit and not the warped probability: temperature, top-k and nucleus keep the order, but make all
    tokens that they cut off equal.
    """
    logit = logits.gather(-1, tokens.unsqueeze(-1))
    smaller_id = torch.arange(logits.shape[-1], device=logits.device) < tokens.unsqueeze(-1)
    ahead = (logits > logit) | ((logits == logit) & smaller_id)
    return ahead.sum(-1).masked_fill_(logits.isnan().any(-1), UNRANKED)


def _floats(values: Tensor) -> array[float]:
    return array("f", values.tolist())

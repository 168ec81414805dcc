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

from spsbench.decode import rows as loop_rows
from spsbench.decode.processors import with_history
from spsbench.engines.buffer import transform_numbers
from spsbench.law.apart import rows_apart
from spsbench.law.evidence import DECIDED, Sums, added, evidence
from spsbench.law.rederive import own_law, rounding_slack
from spsbench.models.causal_lm import CausalLM
from spsbench.records import RESCORED, UNRANKED, Generation, SamplingParams, TokenEvidence

# How far rounding may move the nucleus (in mass) or the best logit (in units of the logits' spread).
_SLACK = {torch.float32: 1e-4, torch.float64: 1e-9}
_COARSE_SLACK = 3e-2


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
    draft_sampling: SamplingParams | None = None,
) -> Reading:
    """Score a text by teacher forcing, without cache or loops; the draft's sampling is the target's unless
    given."""
    ids = [*prompt, *tokens]
    sequence = torch.tensor(ids, device=target.device)
    raw = target.score_uncached(sequence[:-1], last=len(tokens))
    logits = with_history(raw, sampling.history, ids[:-1], len(prompt))
    q = _warped(logits, sampling)
    # The draft-only arm has the draft as its target: one forward serves both.
    other = draft_sampling or sampling
    drafts = logits if draft is target and other == sampling else None
    if draft is not None and drafts is None:
        drafts = draft.score_uncached(sequence[:-1], last=len(tokens))
        drafts = with_history(drafts, other.history, ids[:-1], len(prompt))
    p = None if drafts is None else _warped(drafts, other)
    emitted = sequence[len(prompt) :]
    outside = own_entries(q, emitted) <= 0
    slack = max(_SLACK.get(kind, _COARSE_SLACK) for kind in (dtype or target.dtype, target.dtype))
    near = _at_the_edge(logits.float(), emitted, sampling, slack)
    unprocessed = None if sampling.process is None else raw
    given = (emitted, sampling, logits, drafts, q, p, outside & ~near, outside & near)
    return Reading(*given, unprocessed, tuple(prompt))


def _warped(logits: Tensor, sampling: SamplingParams) -> Tensor:
    """[n, V] warped a few rows at a time: sorting a large vocabulary takes several times its memory."""
    rows = max(1, _CHUNK_ELEMENTS // logits.shape[-1])
    return torch.cat([loop_rows.warped(part, sampling).dense() for part in torch.split(logits, rows)])


def score_stats(reading: Reading, seed: int) -> Sums:
    """The sums of ``evidence`` over a reading; a token at the edge is counted as ``edge`` and left out."""
    kept = ~reading.edge
    v = transform_numbers(int(kept.sum()), seed, reading.q)
    p = None if reading.p is None else reading.p[kept]
    return evidence(reading.tokens[kept], reading.q[kept], p, v) | {"edge": float(reading.edge.sum())}


def rescored(reading: Reading, seed: int) -> Sums:
    """``score_stats`` with the prefix ``rescored_``.

    The draft's rows are there at every position, so that on ArS text ``overlap / overlap_positions``
    is Leviathan's alpha.
    """
    return {RESCORED + name: value for name, value in score_stats(reading, seed).items()}


@torch.inference_mode()
def rows_held_against(
    role: str,
    model: CausalLM,
    kept: Sequence[loop_rows.Rows | None],
    generation: Generation,
    logits: Tensor,
    sampling: SamplingParams,
    prompt: Sequence[int],
    k: int,
    seed: int,
) -> Sums:
    """How far the rows that the loops had lie from an independent forward of the finished text.

    Args:
        role: ``target`` or ``draft``; it stands in the names.
        model: of the independent forward; in 16 bits it reads a part of the text again in blocks, which
            shows what rounding alone does.
        kept: per loop its rows at the positions of the output; None where there are none.
        logits: [n, V] of the independent forward at every position.
        k: lookahead.
        seed: decides which part is read in blocks.

    Returns:
        ``decisions_rows_ROLE``, how many rows were compared; of these ``_apart``, the sum of their distances
        (``law.apart``), and ``_beyond``, how many lie farther away than float32 explains. In 16 bits also
        ``_measured``, how many positions were read in blocks, and ``_blocks``, the sum of the distances of
        the forward in blocks, of 1 or K+1 whichever is farther away.
    """
    precise = model.dtype in _SLACK
    slack = rounding_slack(model.dtype if precise else torch.float32)
    sums: Sums = {}
    for places, own in _portions_of(kept, generation, logits.shape[-1]):
        found = rows_apart(own.to(logits.device), logits[places], sampling, slack)
        beyond = float(found.beyond.sum()) if precise else 0.0
        portion = {"": float(len(places)), "_apart": float(found.distance.sum()), "_beyond": beyond}
        sums = added(sums, portion)
    if sums and not precise:
        first, end = _part_in_blocks(len(generation.tokens), seed)
        sums["_measured"] = float(end - first)
        ids = [*prompt, *generation.tokens][: len(prompt) + end - 1]
        distances = []
        for width in sorted({1, k + 1}):
            blocks = model.score_in_blocks(
                torch.tensor(ids, device=model.device), len(prompt) + first - 1, width
            )
            if blocks is None:
                break
            law = own_law(with_history(blocks, sampling.history, ids, len(prompt)), sampling, slack)
            apart = rows_apart(law.probs, logits[first:end], sampling, slack)
            distances.append(float(apart.distance.sum()))
        if distances:
            sums["_blocks"] = max(distances)
    return {f"{DECIDED}_rows_{role}{name}": value for name, value in sums.items()}


_IN_BLOCKS = 16
"""Tokens of each text that are read in blocks: a forward each at a width of 1."""


def _part_in_blocks(n: int, seed: int) -> tuple[int, int]:
    """First and end of the positions that are read again in blocks, of n."""
    count = min(_IN_BLOCKS, n)
    first = seed % (n - count + 1)
    return first, first + count


def _portions_of(
    kept: Sequence[loop_rows.Rows | None], generation: Generation, vocab_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Positions [m] of the output and the rows [m, V] that were kept of them, a few loops at a time."""
    places, rows, taken, at = list[Tensor](), list[Tensor](), 0, 0
    for loop, own in zip(generation.loops or (), kept, strict=True):
        if own is not None and len(own):
            places.append(torch.arange(at, at + len(own)))
            rows.append(own.dense())
            taken += len(own) * vocab_size
        at += loop.emitted
        if taken > _CHUNK_ELEMENTS:
            yield torch.cat(places), torch.cat(rows)
            places, rows, taken = [], [], 0
    if rows:
        yield torch.cat(places), torch.cat(rows)


def spans(generation: Generation) -> list[tuple[int, int]]:
    """Per loop where in the output it began, and how many of its drafted tokens' places are in the output."""
    found, at = [], 0
    for loop, drafts in zip(generation.loops or (), generation.proposed or (), strict=True):
        found.append((at, min(loop.emitted, len(drafts))))
        at += loop.emitted
    return found


def recorded_rows(generation: Generation, like: Tensor) -> Tensor | None:
    """[n, V] the rows that drafted tokens were drawn from, as the drafter showed them, shaped as ``like``."""
    if generation.kept_rows is None or generation.kept_rows.every > 1:
        return None
    rows = torch.zeros(like.shape, device=like.device)
    for (start, count), told in zip(spans(generation), generation.kept_rows.draft, strict=True):
        if told is not None:
            rows[start : start + count] = told.dense()[:count]
    return rows


def with_draft(reading: Reading, generation: Generation, recorded: Tensor, logits: Tensor | None) -> Reading:
    """A reading with the rows of whatever drafted, or of an independent forward's ``logits`` [n, V]."""
    rows = recorded.clone()
    for (start, count), drafts in zip(spans(generation), generation.proposed or (), strict=True):
        own = slice(start, start + count)
        if logits is not None:
            rows[own] = _warped(logits[own], reading.sampling).to(rows.dtype)
        elif count and not bool(rows[own].any()):
            rows[own] = one_hot(torch.tensor(drafts[:count]), rows.shape[1]).to(rows)
    return replace(reading, draft_logits=logits, p=rows)


def _at_the_edge(logits: Tensor, tokens: Tensor, sampling: SamplingParams, slack: float) -> Tensor:
    """[n] whether a token would be possible if rounding had moved its logit up and the nucleus's mass."""
    column = tokens.unsqueeze(-1)
    own, best = logits.gather(-1, column), logits.max(-1, keepdim=True).values
    never = logits.isneginf()  # what a draft cannot propose is not part of it
    mean = logits.masked_fill(never, 0.0).sum(-1, keepdim=True) / (~never).sum(-1, keepdim=True)
    shift = slack * (best - mean)
    if sampling.greedy:
        return (best - own <= shift).squeeze(-1)
    wider = replace(sampling, top_p=min(1.0, sampling.top_p + slack))
    if (process := sampling.process) is not None:
        mass = min(1.0, process.typical_p + slack)
        wider = replace(wider, process=replace(process, typical_p=mass, min_p=process.min_p * (1 - slack)))
    return own_entries(_warped(logits.scatter(-1, column, own + shift), wider), tokens) > 0


# Elements of a row block: a whole sequence of a large vocabulary would take gigabytes beside its rows.
_CHUNK_ELEMENTS = 1 << 20


@torch.inference_mode()
def token_evidence(
    tokens: Tensor,
    q: Tensor,
    p: Tensor | None,
    draft_logits: Tensor | None,
    chunk_elements: int = _CHUNK_ELEMENTS,
) -> TokenEvidence:
    """Look every emitted token up in its rows.

    Args:
        tokens: [n] emitted ids.
        q: [n, V] warped rows of the target.
        p: [n, V] warped rows of the draft; None without a draft model.
        draft_logits: [n, V] what ``p`` was warped from; None without a draft model.
    """
    log_target = _floats(own_entries(q, tokens).log())
    if p is None or draft_logits is None:
        unknown, unranked = (array("f", [float("nan")]) * len(tokens), array("i", [UNRANKED]) * len(tokens))
        return TokenEvidence(log_target, unknown, unranked, unknown[:], unknown[:])
    rows = max(chunk_elements // q.shape[-1], 1)
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
    """[n] each token's own entry in its row."""
    return rows.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def _ranks(logits: Tensor, tokens: Tensor) -> Tensor:
    """[n] how many tokens are more probable, of equal ones those of smaller id; a row of NaN has no ranks.

    By the logit and not the warped probability: temperature, top-k and nucleus keep the order, but make all
    tokens that they cut off equal.
    """
    own = logits.gather(-1, tokens.unsqueeze(-1))
    smaller_id = torch.arange(logits.shape[-1], device=logits.device) < tokens.unsqueeze(-1)
    ahead = (logits > own) | ((logits == own) & smaller_id)
    return ahead.sum(-1).masked_fill_(logits.isnan().any(-1), UNRANKED)


def _floats(values: Tensor) -> array[float]:
    return array("f", values.tolist())

"""One forward of an engine against ours: whether an alarm comes from its model and not from its sampling.

An engine may read another model from the same checkpoint, e.g. rotary positions of another base, or another
prompt than was sent. Its texts then fit no law of the target, and say nothing of how tokens were drawn. The
first token behind a prompt is of a single forward: its log-probability, where the engine returns it, or which
is the most probable one, is compared with ours. Only an alarm is explained so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from spsbench.base import SamplingParams, protocol
from spsbench.engines import own_entries
from spsbench.models import CausalLM
from spsbench.parts.audit.free_evidence import COARSE, FINE
from spsbench.parts.audit.localise import laws_beside
from spsbench.parts.external.engine import sampling_of
from spsbench.parts.external.server import NEAR_TIE
from spsbench.store import FirstForward

FEWEST = 3
"""Prompts on fewer of which nothing is said."""

_TRIED = torch.logspace(-1, 1, 231, base=5.0, dtype=torch.float64)  # temperatures, 1.4% apart
_NEARER = torch.linspace(0.985, 1.015, 61, dtype=torch.float64)

Models = tuple[CausalLM, CausalLM | None]


@torch.inference_mode()
def differing_forward(
    peer: protocol.Peer, asks: Sequence[protocol.Ask], models: Models, *, exact: bool, plain: bool
) -> FirstForward | None:
    """Return how the engine's first forward differs from ours at most of the prompts, None if it does not.

    Differences that rounding, another temperature, a cut or the draft's rows explain are no other model.

    Args:
        exact: whether the engine computes in float32.
        plain: whether it drafts nothing. Where it does, a greedy token is also what it accepts drafts by, and
            only log-probabilities tell of its model.
    """
    asks = [replace(ask, max_new_tokens=1, sampling=sampling_of(SamplingParams())) for ask in asks]
    try:
        answers = [peer.generate(replace(ask, logprobs=True)) for ask in asks]
        reported = [
            (ask, answer) for ask, answer in zip(asks, answers, strict=True) if _reports_one_logprob(answer)
        ]
        if len(reported) >= FEWEST:
            return _by_logprobs(reported, models, FINE if exact else COARSE)
        return _by_best(peer, asks, models[0]) if plain else None
    except protocol.PeerError:
        return None


def _reports_one_logprob(answer: protocol.Answer) -> bool:
    return len(answer.output_ids) == 1 and answer.logprobs is not None and len(answer.logprobs) == 1


def _rows(asks: Sequence[protocol.Ask], model: CausalLM) -> Tensor:
    """[n, V] logits behind each prompt."""
    rows = [model.score_uncached(torch.tensor(ask.prompt_ids), last=1)[-1] for ask in asks]
    return torch.stack(rows).double()


def _by_logprobs(
    reported: Sequence[tuple[protocol.Ask, protocol.Answer]], models: Models, slack: float
) -> FirstForward | None:
    asks = [ask for ask, _ in reported]
    tokens = torch.tensor([answer.output_ids[0] for _, answer in reported])
    log_probs = torch.tensor(
        [answer.logprobs[0] for _, answer in reported if answer.logprobs], dtype=torch.float64
    )
    logits = _rows(asks, models[0])
    if any(_agree(rows, tokens, log_probs, slack) for rows in _explained_log_probs(logits, asks, models[1])):
        return None
    if _agree(_log_probs_at_best_temperature(logits, tokens, log_probs), tokens, log_probs, slack):
        return None
    away = (own_entries(logits.log_softmax(-1), tokens) - log_probs).abs()
    most = int(away.nan_to_num(nan=0.0).argmax())
    return {
        "prompts": len(asks),
        "differ": int((~(away <= slack)).sum()),
        "token": int(tokens[most]),
        "nats": float(away[most]),
        "expected": None,
    }


def _explained_log_probs(
    logits: Tensor, asks: Sequence[protocol.Ask], draft: CausalLM | None
) -> Iterator[Tensor]:
    """Those of no other model: of the target by each law, and of the draft."""
    yield logits.log_softmax(-1)
    for law in laws_beside(SamplingParams(), draft=False):
        if law.processed is None:
            yield law.warped(logits).log()
    if draft is not None:
        yield _rows(asks, draft).log_softmax(-1)


def _agree(rows: Tensor, tokens: Tensor, log_probs: Tensor, slack: float) -> bool:
    close = (own_entries(rows, tokens) - log_probs).abs() <= slack
    return bool(2 * close.sum() >= len(log_probs))


def _log_probs_at_best_temperature(logits: Tensor, tokens: Tensor, log_probs: Tensor) -> Tensor:
    best = torch.tensor(1.0, dtype=torch.float64)
    for grid in (_TRIED, _NEARER):
        tried = [(logits / (best * each)).log_softmax(-1) for each in grid]
        away = torch.stack([(own_entries(rows, tokens) - log_probs).abs().median() for rows in tried])
        best = best * grid[int(away.argmin())]
    return (logits / best).log_softmax(-1)


def _by_best(peer: protocol.Peer, asks: Sequence[protocol.Ask], target: CausalLM) -> FirstForward | None:
    """Compare most probable tokens; an engine that draws where it is to be greedy shows none."""
    logits = _rows(asks, target)
    best, second = logits.topk(2).values.T
    greedy = protocol.Sampling(greedy=True)
    ours, theirs = list[int](), list[int]()
    for at, ask in enumerate(asks):
        if best[at] - second[at] < NEAR_TIE:
            continue
        first = [peer.generate(replace(ask, sampling=greedy, seed=seed)).output_ids for seed in (1, 2)]
        if first[0] != first[1]:
            return None
        if first[0]:  # else a stop token that is not shown
            ours.append(int(logits[at].argmax()))
            theirs.append(first[0][0])
    wrong = [at for at, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
    if len(ours) < FEWEST or 2 * len(wrong) <= len(ours):
        return None
    return {
        "prompts": len(ours),
        "differ": len(wrong),
        "token": theirs[wrong[0]],
        "nats": None,
        "expected": ours[wrong[0]],
    }

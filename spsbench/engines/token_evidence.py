"""What both models say of every emitted token, one value a token: from the rows of a second reading."""

from __future__ import annotations

from array import array

import torch
from torch import Tensor

from spsbench.records import UNRANKED, TokenEvidence

# Elements of a row block: a whole sequence of a large vocabulary would take gigabytes beside its rows.
_CHUNK_ELEMENTS = 1 << 22


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
        chunk_elements: how many elements of a row block are looked at together.
    """
    log_target = _floats(_own(q, tokens).log())
    if p is None or draft_logits is None:
        unknown = array("f", [float("nan")]) * len(tokens)
        return TokenEvidence(
            log_target, unknown, array("i", [UNRANKED]) * len(tokens), unknown[:], unknown[:]
        )
    rows = max(chunk_elements // q.shape[-1], 1)
    parts = [slice(start, start + rows) for start in range(0, max(len(tokens), 1), rows)]
    tops = [p[part].max(-1).values for part in parts]
    entropies = [torch.special.entr(p[part]).sum(-1) for part in parts]
    ranks = [_ranks(draft_logits[part], tokens[part]) for part in parts]
    return TokenEvidence(
        log_target=log_target,
        log_draft=_floats(_own(p, tokens).log()),
        draft_rank=array("i", torch.cat(ranks).tolist()),
        draft_max=_floats(torch.cat(tops)),
        draft_entropy=_floats(torch.cat(entropies)),
    )


def _own(rows: Tensor, tokens: Tensor) -> Tensor:
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

"""A second warper, written from the definition alone, to test the production one.

Everything else that looks at a distribution calls ``decode.sampling.warp`` or, in a loop,
``decode.rows.warped``, and would share their faults.
This one shares nothing with it: numpy, float64, one row, a full sort.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spsbench.decode import rows as loop_rows
from spsbench.decode.sampling import warp
from spsbench.records import SamplingParams
from spsbench.verify.audit import described
from spsbench.verify.effort import Finding
from spsbench.verify.subject import SamplerUnderTest, written

Row = NDArray[np.float64]


def brute_force(logits: Sequence[float] | Row, params: SamplingParams) -> Row:
    """Temperature, then top-k, then nucleus, of one row; tokens that tie at an edge are all kept.

    Args:
        logits: [V], finite or minus infinity.
        params: temperature, top_k, top_p, greedy (the one-hot row of the first largest logit).

    Returns:
        [V] probabilities that sum to 1.
    """
    scores = np.asarray(logits, dtype=np.float64)
    if params.greedy:
        return np.asarray(np.arange(len(scores)) == scores.argmax(), dtype=np.float64)
    scores = scores / params.temperature
    if 0 < params.top_k < len(scores):
        scores = np.where(scores < np.sort(scores)[-params.top_k], -np.inf, scores)
    probs: Row = np.exp(scores - scores.max())
    probs /= probs.sum()
    if params.top_p < 1.0:
        mass = 0.0
        for probability in np.sort(probs)[::-1].tolist():
            mass += probability
            if mass >= params.top_p:
                break
        probs[probs < float(probability)] = 0.0
        probs /= probs.sum()
    return probs


def is_clear(logits: Sequence[float] | Row, params: SamplingParams, slack: float) -> bool:
    """Whether rounding by ``slack`` leaves the same tokens: at an edge no two warpers need agree.

    Args:
        logits: [V].
        slack: of the nucleus' mass, and of a logit relative to the largest.
    """
    if params.greedy:
        return True
    scores = np.asarray(logits, dtype=np.float64)
    least = slack * float(np.abs(scores[np.isfinite(scores)]).max())
    near = (params.top_p - slack, params.top_p, params.top_p + slack) if params.top_p < 1.0 else ()
    kept = [brute_force(scores, replace(params, top_p=min(max(p, 0.0), 1.0))) > 0 for p in near]
    before = brute_force(scores, replace(params, top_p=1.0)) > 0
    same = all(bool((some == kept[0]).all()) for some in kept)
    return same and all(_gap(scores, some) > least for some in (before, *kept))


def _gap(scores: Row, kept: NDArray[np.bool_]) -> float:
    """How far the least kept score lies above the largest dropped one."""
    return np.inf if kept.all() else float(scores[kept].min() - scores[~kept].max())


# Each stage alone can be right and their order wrong: so two of them at a time, with rows made flat
# enough that the cuts fall at different tokens.
_OTHERS = (
    SamplingParams(temperature=0.5, top_p=0.8),
    SamplingParams(temperature=2.0, top_p=0.8),
    SamplingParams(temperature=2.0, top_k=4, top_p=0.7),
    SamplingParams(temperature=1.5, top_k=20, top_p=0.9),
    SamplingParams(greedy=True),
)
_ROWS = 6
_SLACK = 1e-4
_LIMIT = 1e-4


@torch.inference_mode()
def same_warp(subject: SamplerUnderTest, prompts: Sequence[Sequence[int]]) -> Finding:
    """Compare both warpers on rows of target and draft, under the subject's sampling and others.

    Each row is warped alone, as a draft's are, and among others, as the target's are.
    """
    distances: list[tuple[float, SamplingParams]] = []
    skipped = 0
    for rows in _flat_rows(subject, prompts):
        for sampling in dict.fromkeys((subject.sampling, *_OTHERS)):
            together = _warped(rows, sampling)
            for index, row in enumerate(rows.double().cpu().numpy()):
                if not is_clear(row, sampling, _SLACK):
                    skipped += 1
                    continue
                truth = torch.from_numpy(brute_force(row, sampling))
                for found in (together[:, index], _warped(rows[index : index + 1], sampling)[:, 0]):
                    distance = float((found.double().cpu() - truth).abs().sum(-1).max()) / 2
                    distances.append((distance, sampling))
    worst, where = max(distances, key=lambda each: each[0], default=(0.0, None))
    said = "-" if where is None else described(where)
    return Finding(
        "warp",
        len(distances) > 0 and all(distance <= _LIMIT for distance, _ in distances),
        f"total variation at most {worst:.1e} ({said}) over {len(distances)} rows",
        f"a total variation above {_LIMIT:g} from a brute-force warper, in any row whose edge is clear",
        {
            "compared": len(distances),
            "skipped_at_an_edge": skipped,
            "worst": worst,
            "worst_sampling": said,
            "limit": _LIMIT,
        },
    )


def _flat_rows(subject: SamplerUnderTest, prompts: Sequence[Sequence[int]]) -> Iterator[Tensor]:
    """[n, V] logits of either model in each prompt and its text, where most is left to chance."""
    for prompt in prompts:
        tokens = torch.tensor(written(subject, prompt, subject.seed), device=subject.device)
        for model in (subject.target, subject.draft):
            logits = model.score_uncached(tokens)
            entropy = torch.special.entr(logits.float().softmax(-1)).sum(-1)
            yield logits[entropy.topk(min(_ROWS, len(logits))).indices]


def _warped(rows: Tensor, sampling: SamplingParams) -> Tensor:
    """[2, n, V] by the warper, and as a loop on their device holds its rows."""
    return torch.stack([warp(rows, sampling), loop_rows.warped(rows, sampling).dense()])

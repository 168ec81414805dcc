"""Is the warper right? Production's on real rows against the brute-force one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spsbench.decode.sampling import warp
from spsbench.models.causal_lm import CausalLM
from spsbench.records import SamplingParams
from spsbench.verify.brute_force import brute_force, is_clear
from spsbench.verify.finding import Finding
from spsbench.verify.foreign import described
from spsbench.verify.subject import Subject

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


@dataclass(slots=True)
class _Worst:
    """The comparison so far; ``distance`` is a total variation."""

    distance: float = 0.0
    sampling: SamplingParams | None = None
    compared: int = 0
    skipped: int = 0

    def add(self, distance: float, sampling: SamplingParams) -> None:
        self.compared += 1
        if distance > self.distance or self.sampling is None:
            self.distance, self.sampling = distance, sampling


@torch.inference_mode()
def same_warp(subject: Subject, prompts: Sequence[Sequence[int]]) -> Finding:
    """Compare both warpers on rows of target and draft, under the subject's sampling and others.

    Each row is warped alone, as a draft's are, and among others, as the target's are.
    """
    worst = _Worst()
    for rows in _flat_rows(subject, prompts):
        for sampling in dict.fromkeys((subject.sampling, *_OTHERS)):
            _compare(rows, sampling, worst)
    said = "-" if worst.sampling is None else described(worst.sampling)
    return Finding(
        "warp",
        worst.compared > 0 and worst.distance <= _LIMIT,
        f"total variation at most {worst.distance:.1e} ({said}) over {worst.compared} rows",
        f"a total variation above {_LIMIT:g} from a brute-force warper, in any row whose edge is clear",
        {
            "compared": worst.compared,
            "skipped_at_an_edge": worst.skipped,
            "worst": worst.distance,
            "worst_sampling": said,
            "limit": _LIMIT,
        },
    )


def _flat_rows(subject: Subject, prompts: Sequence[Sequence[int]]) -> Iterator[Tensor]:
    """[n, V] logits of either model behind each prompt's tokens, where most is left to chance."""
    for prompt in prompts:
        tokens = torch.tensor(prompt, device=subject.device)
        for model in (subject.target, subject.draft):
            yield _flattest(model, tokens)


def _flattest(model: CausalLM, tokens: Tensor) -> Tensor:
    logits = model.score_uncached(tokens)
    entropy = torch.special.entr(logits.float().softmax(-1)).sum(-1)
    return logits[entropy.topk(min(_ROWS, len(logits))).indices]


def _compare(rows: Tensor, sampling: SamplingParams, worst: _Worst) -> None:
    together = warp(rows, sampling)
    for index, row in enumerate(rows.double().cpu().numpy()):
        if not is_clear(row, sampling, _SLACK):
            worst.skipped += 1
            continue
        truth = torch.from_numpy(brute_force(row, sampling))
        alone = warp(rows[index : index + 1], sampling)[0]
        for found in (together[index], alone):
            worst.add(float((found.double().cpu() - truth).abs().sum()) / 2, sampling)

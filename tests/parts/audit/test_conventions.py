"""Which processing a text follows is among the laws that the audit tries."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from spsbench.base.records import Processing, SamplingParams
from spsbench.decode.processors import with_history
from spsbench.decode.sampling import draw, warp
from spsbench.engines.rescore import Reading, own_entries
from spsbench.parts.audit.localise import FLOOR, laws_beside

PROMPT, V = (0, 1, 2, 3), 12


def written(sampling: SamplingParams, logits: torch.Tensor) -> list[int]:
    """A text of [n, V] logits that depend on the place alone."""
    assert sampling.process is not None
    generator, tokens = torch.Generator().manual_seed(1), list(PROMPT)
    for row in logits:
        q = warp(with_history(row.unsqueeze(0), sampling.process, tokens, len(PROMPT)), sampling)
        tokens.append(int(draw(q, torch.rand(1, generator=generator))))
    return tokens


@pytest.mark.parametrize(
    ("asked", "followed", "named"),
    [
        ({"frequency_penalty": 0.3}, {"frequency_penalty": 0.3}, "the target as asked for"),
        (
            {"frequency_penalty": 0.3},
            {"frequency_penalty": 0.3, "convention": "llama-cpp"},
            "the convention llama-cpp",
        ),
        ({"frequency_penalty": 0.3}, {"frequency_penalty": 0.6}, "the frequency penalty twice"),
        ({"min_p": 0.3, "repetition_penalty": 1.5}, {"repetition_penalty": 1.5}, "no min p"),
    ],
)
def test_the_law_of_a_text_is_named(asked: dict[str, float], followed: dict[str, float], named: str) -> None:
    sampling = SamplingParams(temperature=0.9, process=Processing(**asked))  # type: ignore[arg-type]
    truth = replace(sampling, process=Processing(**followed))  # type: ignore[arg-type]
    raw = torch.randn(500, V, generator=torch.Generator().manual_seed(0)) * 2
    tokens = written(truth, raw)
    assert sampling.process is not None
    logits = with_history(raw, sampling.process, tokens[:-1], len(PROMPT))
    q, own = warp(logits, sampling), torch.tensor(tokens[len(PROMPT) :])
    no = torch.zeros(len(own), dtype=torch.bool)
    reading = Reading(own, sampling, logits, None, q, None, no, no, raw, PROMPT)
    laws = [law for law in laws_beside(sampling, draft=False) if "emperature" not in law.name]
    fits = {law.name: float(own_entries(law.rows(reading), own).clamp_min(FLOOR).log().sum()) for law in laws}
    assert max(fits, key=lambda name: fits[name]) == named

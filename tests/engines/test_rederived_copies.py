"""Decisions over copied drafts derived anew: point masses have no rows, their tests do follow."""

from __future__ import annotations

import pytest
import torch
from tiny_models import TOKENS, make_pair

from spsbench.decode import algorithms, rejection
from spsbench.decode.clock import FakeClock
from spsbench.decode.evidence import Sums, added
from spsbench.decode.rows import HostRow
from spsbench.drafters.lookup import LookupDrafter
from spsbench.engines.local import EagerEngine
from spsbench.engines.rescore import decided_again, recorded_rows, teacher_force
from spsbench.models.causal_lm import CausalLM
from spsbench.models.torch_lm import TorchLM
from spsbench.records import Request, SamplingParams
from spsbench.testing import Letters

CPU = torch.device("cpu")
K = 4
LETTERS = Letters("".join(chr(0x100 + i) for i in range(TOKENS)))
SAMPLINGS = (SamplingParams(temperature=0.5), SamplingParams(top_k=5, top_p=0.9), SamplingParams(greedy=True))


@pytest.fixture(scope="module")
def target() -> CausalLM:
    return TorchLM(make_pair("llama", late=0.5)[0])


def decisions(target: CausalLM, sampling: SamplingParams, sequences: int = 6) -> Sums:
    """Over prompts that repeat themselves, so that there is something to copy."""
    engine = EagerEngine(
        target,
        None,
        K,
        LETTERS,
        CPU,
        FakeClock(0.001),
        make_drafter=lambda sampling: LookupDrafter(3, 1),
        keep_drafts=True,
    )
    total: Sums = {}
    for seed in range(sequences):
        prompt = tuple((7 * i * (seed + 1)) % 5 + 10 for i in range(16))
        asked = Request(prompt, 32, (), sampling, seed=seed)
        generation = engine.generate(asked)
        reading = teacher_force(target, None, prompt, generation.tokens, sampling)
        shown = recorded_rows(generation, reading.logits)
        found = decided_again(reading, generation, sampling, K, seed, target.model.dtype, recorded=shown)
        total = added(total, found)
    return total


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_honest_copies_follow(target: CausalLM, sampling: SamplingParams) -> None:
    found = decisions(target, sampling)
    assert found["decisions_contradicted"] == 0
    assert found["decisions"] > 6 * 32  # tests of copied tokens, too, not only the draws


@pytest.mark.parametrize("wrong", ["accepts all", "keeps the token in the residual"])
def test_wrong_rules_contradict(target: CausalLM, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def all_stand(q: torch.Tensor, draft: rejection.Draft, u: torch.Tensor) -> rejection.Verdict:
        return rejection.accept_draft(q, draft, torch.cat([u[:-1] * 0, u[-1:]]))

    if wrong == "accepts all":
        monkeypatch.setattr(algorithms, "accept_draft", all_stand)
    else:
        monkeypatch.setattr(HostRow, "without", lambda row, token: row.weights)
    assert decisions(target, SAMPLINGS[0], sequences=12)["decisions_contradicted"] > 0

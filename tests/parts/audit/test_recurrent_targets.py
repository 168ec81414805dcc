"""Engines of recurrent and hybrid targets are audited as all others, for an audit rolls nothing back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from support import tiny_models
from support.tiny_engine import InProcess, served

from benchmarks.architectures import saved
from spsbench.base.errors import UsageError
from spsbench.base.protocol import Answer, Ask
from spsbench.base.records import SamplingParams
from spsbench.config import PairConfig
from spsbench.config.models import TORCH, ModelRef
from spsbench.models.causal_lm import CausalLM
from spsbench.models.loading import load
from spsbench.models.pair import find_pair
from spsbench.parts.audit import engine_audit
from spsbench.parts.audit.engine_audit import Effort, EngineAudit, SettingResult
from spsbench.parts.verify.served import Served

K, TOKENS = 2, 16
COOL = SamplingParams(temperature=0.2)  # random weights say little at 1


class FromAWrongState(InProcess):
    """Requests whose first tokens are dropped: what a state is that was not put back to where it stood."""

    def generate(self, ask: Ask) -> Answer:
        return super().generate(replace(ask, prompt_ids=ask.prompt_ids[:2]))


def audited(
    peer: type[InProcess], engine: Served, models: tuple[CausalLM, CausalLM], texts: int
) -> SettingResult:
    prompts = [tuple(range(3 + n, 11 + n)) for n in range(8)]
    effort = Effort(1e-9, texts, 600.0, TOKENS)
    audit = EngineAudit(peer(engine), models, prompts, COOL, [], effort, 0, None, K, engine.describe().rule)
    return audit.run(lambda _: None)


@pytest.mark.thorough_but("mamba")
@pytest.mark.parametrize("kind", ["qwen3_next", "mamba", "lfm2"])
def test_a_right_engine_is_quiet_and_a_wrong_state_is_found(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_audit, "TO_LOCATE", 1)
    target, draft, _ = saved(kind, tmp_path)
    source = tiny_models.pair_of(target, draft)
    given = ("float32", torch.device("cpu"), source.vocab_size)
    models = tuple(load(part, *given, "--target", TORCH) for part in (source.target, source.draft))
    engine = served((target, draft), None, K)
    right = audited(InProcess, engine, (models[0], models[1]), 12)
    assert right.evidence is not None
    assert right.evidence["verdict"] != "alarm", right.evidence
    assert not right.failures
    assert right.tokens > 100
    assert audited(FromAWrongState, engine, (models[0], models[1]), 40).decision == "alarm"


def test_a_state_outside_of_the_cache_is_read_where_nothing_rolls_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run needs it put back and refuses it."""
    folder = tiny_models.save(tiny_models.make_pair("llama")[0], tmp_path / "model")
    model = ModelRef(id=str(folder))
    config = PairConfig(name="stateful", target=model, draft=model)
    monkeypatch.setattr(transformers.LlamaForCausalLM, "_is_stateful", True)
    with pytest.raises(UsageError, match="keeps its running state outside of its cache"):
        find_pair(config)
    assert find_pair(config, rolls_back=False).target.name

"""The worker of transformers: each request begins with the settings that were asked for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.tiny_mtp import save_with_mtp

from spsbench.base.protocol import Ask, Load, Sampling
from spsbench.parts.external.workers import transformers as module


class _Library:
    class GenerationConfig(SimpleNamespace):
        pass


def _worker(options: dict[str, Any]) -> Any:
    """Over a target whose generate() leaves a longer draft behind, as the schedule ``heuristic`` does."""
    torch = pytest.importorskip("torch")
    worker: Any = module.Transformers.__new__(module.Transformers)
    worker._torch, worker._device, worker._library = torch, "cpu", _Library
    worker._load, worker._head_folder = Load("t", "d", 4, options=options), None
    worker._draft = SimpleNamespace(
        generation_config=SimpleNamespace(num_assistant_tokens=4, assistant_confidence_threshold=0.4)
    )
    worker._drafting = SimpleNamespace(**vars(worker._draft.generation_config))
    worker.began = []

    def generate(prompt: Any, assistant_model: Any, **_: Any) -> Any:
        settings = assistant_model.generation_config
        worker.began.append((settings.num_assistant_tokens, settings.assistant_confidence_threshold))
        settings.num_assistant_tokens += 2
        settings.assistant_confidence_threshold = 0.9
        return torch.cat([prompt, prompt], dim=1)

    worker._target = SimpleNamespace(generate=generate)
    return worker


def test_a_schedule_begins_each_request_anew() -> None:
    worker = _worker({"num_assistant_tokens_schedule": "heuristic"})
    for _ in range(3):
        worker.generate(Ask([1, 2], 2, seed=0))
    assert worker.began == [(4, 0.4)] * 3


def test_whether_a_threshold_is_fitted_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = _worker({"assistant_confidence_threshold": 0.4})
    monkeypatch.setattr(module, "version", lambda name: "1.8.0")
    fitted = worker._threshold_settings()
    assert fitted == {"threshold": "fitted between rounds by scikit-learn 1.8.0"}

    def absent(name: str) -> str:
        raise module.PackageNotFoundError(name)

    monkeypatch.setattr(module, "version", absent)
    assert worker._threshold_settings() == {"threshold": "as given, without scikit-learn"}
    assert _worker({})._threshold_settings() == {}


def test_the_targets_own_modules_draft(tmp_path: Path) -> None:
    """Greedy text is that of plain decoding, in loops that are counted; the draft model is not read."""
    folder = str(save_with_mtp("mellum", tmp_path / "t", bos_token_id=None, eos_token_id=None))
    ask = Ask([5, 9, 7], 24, sampling=Sampling(greedy=True))
    plain = module.Transformers(Load(folder, threads=1)).generate(ask)
    worker = module.Transformers(Load(folder, "none", 1, 1, options={"speculation": "mtp"}))
    drafted = worker.generate(ask)
    assert drafted.output_ids == plain.output_ids
    assert plain.loops is None
    assert drafted.loops
    assert worker._generation_config(ask).use_mtp


def test_another_k_than_the_targets_modules_have_is_refused(tmp_path: Path) -> None:
    folder = str(save_with_mtp("mellum", tmp_path / "t"))
    with pytest.raises(ValueError, match=r"one prediction module in mellum, .* and K is 4"):
        module.Transformers(Load(folder, "none", 4, 1, options={"speculation": "mtp"}))

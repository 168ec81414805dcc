"""Forwards behind several contexts: what is read, what is scored where, and what comes out of known times."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor
from transformers import LlamaConfig

from spsbench.base.errors import UsageError
from spsbench.base.records import SamplingParams
from spsbench.models import memory
from spsbench.models.causal_lm import CausalLM
from spsbench.models.loading import random_model
from spsbench.parts.whatif.bench import BenchConfig, forwards
from spsbench.parts.whatif.bench import study as bench_study
from spsbench.parts.whatif.bench.forwards import block_rows, time_in_turns
from spsbench.parts.whatif.bench.study import Held, best_by_context, few, require_context_room
from spsbench.parts.whatif.bench.study import study as study_pair
from spsbench.parts.whatif.commands.bench import lengths
from spsbench.parts.whatif.commands.screen import bench_screen, forwards_table, payoff_table
from spsbench.parts.whatif.messages.bench import short

CPU = torch.device("cpu")
SHAPE = LlamaConfig(
    vocab_size=90, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2
)


class Clock:
    """Stands still but for what models take; the machine gets slower as it goes on."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.drift = 1.0

    def work(self, seconds: float) -> None:
        self.now_s += seconds * self.drift


class Timed:
    """A model whose forward takes ``base + by_context * context + by_row * rows`` ms on a clock of ours."""

    vocab_size, device, border, backend = 50, CPU, None, "fake"
    rolled_back_by = "length"
    config = SHAPE

    def __init__(self, clock: Clock, base: float, by_context: float, by_row: float) -> None:
        self._clock, self._cost = clock, (base, by_context, by_row)
        self.cache: list[int] = []
        self.length, self.read = 0, 0
        self.scored: list[tuple[int, int]] = []

    def score(self, tokens: Tensor, last: int) -> Tensor:
        start, ids = self.length, tokens.tolist()
        known = self.cache[start : start + len(ids)]
        assert known == ids[: len(known)], "other tokens than lie there"
        self.read += len(ids) - len(known)
        self.cache[start : start + len(ids)] = ids
        self.length = start + len(ids)
        self.scored.append((start, len(ids)))
        base, by_context, by_row = self._cost
        self._clock.work((base + by_context * start + by_row * len(ids)) / 1e3)
        return torch.zeros(last, self.vocab_size)

    def rollback(self, length: int) -> None:
        self.length = min(self.length, length)

    def restore(self, length: int) -> None:
        assert length <= len(self.cache), "never read"
        self.length = length

    def forward_bytes(self, rows: int = 1) -> int:
        return 1_000_000

    @property
    def kv_bytes_per_token(self) -> int:
        return 1_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    own = Clock()
    monkeypatch.setattr(forwards, "device_now", lambda device: own.now_s)
    return own


def test_the_longest_context_is_read_once_in_blocks_and_no_other_is_read(clock: Clock) -> None:
    model: Any = Timed(clock, 1, 0, 0)
    time_in_turns([(model, (1, 3))], [700, 40, 1500], 0.0)
    assert model.read == 1500 + 3
    reading = [rows for start, rows in model.scored if rows > 3]
    assert reading == [512, 512, 476]
    starts = {start for start, rows in model.scored if rows <= 3}
    assert starts == {40, 700, 1500}
    assert model.length == 0


def test_a_drift_of_the_machine_cancels_since_every_round_has_every_place(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = forwards._Probe.settle

    def slower(probe: Any, context: int) -> None:
        clock.drift *= 1.01
        real(probe, context)

    monkeypatch.setattr(forwards._Probe, "settle", slower)
    target: Any = Timed(clock, 8, 0.02, 0.5)
    draft: Any = Timed(clock, 1, 0.01, 0.0)
    models, near_and_far = [(target, (1, 5)), (draft, (1, 2))], (100, 1000)
    of_target, of_draft = time_in_turns(models, near_and_far, 0.0)
    (before,), (behind,) = (time_in_turns([model], near_and_far, 0.0) for model in models)
    for context in near_and_far:
        own = 8.5 + 0.02 * context
        assert of_target[context].ratio(5)[0] == pytest.approx((own + 2) / own, rel=1e-6)
        c, low, high = of_draft[context].over(of_target[context])
        assert c == pytest.approx((1 + 0.01 * context) / own, rel=0.04)
        assert low <= c <= high
        one_after_the_other = behind[context].over(before[context])[0]
        assert one_after_the_other > 1.08 * (1 + 0.01 * context) / own


def study(clock: Clock, by_context: float, contexts: tuple[int, ...] = (100, 1024)) -> dict[str, Any]:
    target: Any = Timed(clock, 10, 0.01, 0.0)
    draft: Any = Timed(clock, 1, by_context, 0.0)
    config = BenchConfig((2, 4), contexts, 0.0, SamplingParams(), None, 0)
    return study_pair(target, draft, config) | {"device": "cpu"}


def test_known_times_give_known_figures(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_study, "measured_bandwidth", lambda device: 1e9)
    monkeypatch.setattr("spsbench.parts.whatif.bench.study.cache_bytes", lambda device: 1_500_000)
    facts = study(clock, 0.018)
    near, far = facts["contexts"]
    assert near["c"]["ratio"] == pytest.approx(2.8 / 11)
    assert far["c"]["ratio"] == pytest.approx((1 + 0.018 * 1024) / (10 + 10.24))
    assert far["read_bytes"]["target"] == {"weights": 1_000_000, "keys_and_values": 1_024_000}
    assert far["forwards"]["target"][0]["floor_ms"] == pytest.approx(2.024)
    assert far["payoff"]["costs"][4] == pytest.approx(1 + 4 * far["c"]["ratio"])
    assert [end["best"]["k"] for end in (near, far)] == [4, 0]
    assert facts["sentence"].startswith(
        "1.67x after 100 and 1.00x after 1k at alpha 0.8 (best K: 4, none gains)"
    )
    assert "c rises from 0.25 to 0.96; t(5)/t(1) does not clearly move" in facts["sentence"]
    assert [row[0] for row in forwards_table(facts).rows] == ["100", "1k"]  # type: ignore[index]
    assert [row[-1] for row in payoff_table(facts).rows][1] == "none gains"  # type: ignore[index]
    near["payoff"]["break_even"][2] = 0.004
    assert next(row[-2] for row in payoff_table(facts).rows) == "any (K=2)"  # type: ignore[index]


@pytest.mark.parametrize(("bandwidth", "said"), [(1e9, False), (1e8, True)])
def test_forwards_faster_than_their_floor_contradict_the_bandwidth(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, bandwidth: float, said: bool
) -> None:
    monkeypatch.setattr(bench_study, "measured_bandwidth", lambda device: bandwidth)
    monkeypatch.setattr(bench_study, "cache_bytes", lambda device: 1_000)
    model = {"name": "m", "random_weights": False, "parameters": 1e6, "model_type": "llama", "dtype": "f"}
    for contexts in ((100,), (100, 1024)):
        file = io.StringIO()
        facts = study(clock, 0.018, contexts) | {"target": model, "draft": model}
        Console(file=file, width=80).print(bench_screen(facts))
        text = " ".join(file.getvalue().split())
        assert ("Some forwards took less time than that: memory is faster than was measured" in text) is said


def test_what_fits_into_the_cache_with_short_contexts_need_not_with_long_ones(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_study, "measured_bandwidth", lambda device: 1e9)
    monkeypatch.setattr("spsbench.parts.whatif.bench.study.cache_bytes", lambda device: 3_000_000)
    near, far = study(clock, 0.0)["contexts"]
    assert (near["regime"], far["regime"]) == ("dispatch-bound", "bandwidth-bound")
    assert near["forwards"]["target"][0]["floor_ms"] is None


def test_a_direction_is_told_only_where_intervals_are_apart() -> None:
    def end(context: int, c: float, half: float) -> dict[str, Any]:
        ratio = {"ratio": c, "low": c - half, "high": c + half}
        rows = {"target": [{"rows": 3, **ratio}]}
        return {"context": context, "best": {"k": 2, "speedup": 1.5}, "c": ratio, "forwards": rows}

    said = best_by_context([end(1024, 0.3, 0.01), end(4096, 0.2, 0.01)])
    assert "c falls from 0.30 to 0.20" in str(said)
    assert "does not clearly move" in str(best_by_context([end(1024, 0.3, 0.06), end(4096, 0.2, 0.06)]))


@pytest.mark.parametrize("backend", ["onnxruntime", "torch"])
def test_a_rollback_is_taken_back_without_reading(backend: str) -> None:
    """The same tokens may be scored behind a rollback; others leave another cache, and the test sees it."""
    model = random_model(SHAPE, "float32", CPU, 90, backend, threads=1)
    tokens = torch.randint(90, (61,), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        expected = model.score_uncached(tokens, last=1)[0].clone()

        def behind(between: Tensor) -> Tensor:
            model.rollback(0)
            model.score(tokens[:60], last=1)
            model.rollback(20)
            model.score(between, last=1)
            model.restore(60)
            assert model.length == 60
            return model.score(tokens[60:], last=1)[0].clone()

        assert torch.allclose(behind(tokens[20:29]), expected, atol=1e-4)
        assert not torch.allclose(behind(tokens[30:39]), expected, atol=1e-4)


@pytest.mark.parametrize("backend", ["onnxruntime", "torch"])
def test_both_backends_are_timed_behind_several_contexts(backend: str) -> None:
    model: CausalLM = random_model(SHAPE, "float32", CPU, 90, backend, threads=1)
    (found,) = time_in_turns([(model, (1, 4))], [8, 600], 0.0)
    assert {context: own.rows for context, own in found.items()} == {8: (1, 4), 600: (1, 4)}
    assert all(own.seconds.shape == (5, 2) and (own.seconds > 0).all() for own in found.values())


def test_blocks_shrink_so_that_attention_stays_small() -> None:
    wide = SimpleNamespace(
        is_encoder_decoder=False, get_text_config=lambda: SimpleNamespace(num_attention_heads=32)
    )
    assert block_rows(wide, 1024) == 512
    assert block_rows(wide, 32 * 1024) == 64
    assert block_rows(wide, 1 << 25) == 16
    for context in (5_000, 100_000):
        assert 4 * 32 * context * block_rows(wide, context) <= 256 << 20


def test_what_does_not_fit_is_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [Held(SHAPE, 1 << 20, 4), Held(SHAPE, 1 << 20, 4)]
    tokens = 1 << 20
    caches = 2 * 2 * tokens * (2 * 2 * 2 * 16 * 4)
    needed = (2 << 20) + caches + 4 * 2 * tokens * 32
    monkeypatch.setattr(memory, "available_bytes", lambda device: needed)
    require_context_room(held, tokens, tokens, CPU, whole=False)
    monkeypatch.setattr(memory, "available_bytes", lambda device: needed - 1)
    with pytest.raises(UsageError, match=r"the models need 2.25 GiB .* cpu has 2.25 GiB free") as refused:
        require_context_room(held, tokens, tokens, CPU, whole=False)
    assert refused.value.flag == "--context"
    monkeypatch.setattr(memory, "available_bytes", lambda device: None)
    require_context_room(held, tokens, tokens, CPU, whole=False)


def test_a_context_read_at_once_takes_more(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [Held(SHAPE, 0, 4)]
    monkeypatch.setattr(memory, "available_bytes", lambda device: 10 << 30)
    require_context_room(held, 60_000, 60_000, CPU, whole=False)
    with pytest.raises(UsageError, match=r"attention 26.8"):
        require_context_room(held, 60_000, 60_000, CPU, whole=True)


def test_contexts_as_they_are_typed() -> None:
    assert lengths(None, 256) == (256,)
    assert lengths("16k, 1k,4K,1024", 256) == (1024, 4096, 16384)
    for wrong in ("", "1k,", "0", "0k", "-1", "1.5k", "1m", "٣"):
        with pytest.raises(UsageError, match="--context"):
            lengths(wrong, 256)


def test_names_of_contexts_and_which_lookaheads_are_shown() -> None:
    assert (short(1024), short(1000), short(32768)) == ("1k", "1000", "32k")
    assert few(range(1, 9)) == (1, 5, 8)
    assert few((4,)) == (4,)
    assert few((2, 8)) == (2, 8)

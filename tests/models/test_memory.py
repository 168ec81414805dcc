from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.tiny_models import config_of, make
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.tiny_types import tiny_config
from spsbench.models import memory
from spsbench.models.causal_lm import built
from spsbench.models.memory import experts_of, forward_bytes, kv_bytes_per_token


def _model(*, tied: bool) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=tied,
        )
    )


@pytest.mark.parametrize("tied", [True, False])
def test_an_input_embedding_counts_only_if_it_is_tied(tied: bool) -> None:
    model = _model(tied=tied)
    everything = sum(parameter.numel() for parameter in model.parameters())
    assert forward_bytes(model) == 4 * (everything if tied else everything - 50 * 16)


def test_the_head_of_a_wrapper_that_declares_none_is_not_tied() -> None:
    """Nemotron-H's of images and sounds: its embedding is a table of its own, of which a row is read."""
    model = built(tiny_config("nemotron_h_omni"), torch.float32)
    assert model.get_output_embeddings() is None
    before = forward_bytes(model)
    model.get_input_embeddings().weight = torch.nn.Parameter(model.get_input_embeddings().weight.repeat(3, 1))
    assert forward_bytes(model) == before


def test_keys_and_values_have_their_own_number_of_heads() -> None:
    model = _model(tied=True)
    assert kv_bytes_per_token(model) == 2 * 2 * 2 * 4 * 4  # k and v, layers, heads, width, bytes
    model.config.num_attention_heads = 0
    assert kv_bytes_per_token(model) is None


@pytest.mark.parametrize("architecture", ["mixtral", "qwen3-moe"])
def test_experts_count_by_their_expected_union(architecture: str) -> None:
    model = make(config_of(architecture))
    experts = experts_of(model)
    assert (experts.count, experts.per_token) == (4, 2)
    gates = [p for name, p in model.named_parameters() if ".experts." in name]
    assert experts.bytes == sum(p.nbytes for p in gates) > 0
    rest = forward_bytes(model, rows=1000) - experts.bytes
    assert forward_bytes(model) == rest + experts.bytes // 2
    assert forward_bytes(model, rows=2) == rest + experts.bytes * 3 // 4


def test_a_dense_model_reads_the_same_for_every_block() -> None:
    model = _model(tied=True)
    assert experts_of(model) is None
    assert forward_bytes(model, rows=9) == forward_bytes(model)


def test_bandwidth_is_bytes_over_the_best_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([5.0, 0.4, 0.2, 0.3, 0.4, 0.5])  # the first warms up
    sizes = []

    def timed(data: torch.Tensor) -> float:
        sizes.append(data.nbytes)
        return next(seconds)

    monkeypatch.setattr(memory, "_seconds_of_sum", timed)
    monkeypatch.setattr(memory, "cache_bytes", lambda device: 1 << 20)
    found = memory.measured_bandwidth(torch.device("cpu"))
    assert found == sizes[0] / 0.2
    assert sizes[0] >= 8 << 20


def test_without_memory_bandwidth_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(data: torch.Tensor) -> float:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(memory, "_seconds_of_sum", full)
    assert memory.measured_bandwidth(torch.device("cpu")) is None


def test_the_largest_cache_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index, size in enumerate(("32K\n", "33792K\n", "1M\n", "broken\n")):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        (folder / "size").write_text(size)
    (tmp_path / "index9").mkdir()
    monkeypatch.setattr(memory, "_SYSTEM_CACHES", tmp_path)
    assert memory.cache_bytes() == 33792 * 1024
    monkeypatch.setattr(memory, "_SYSTEM_CACHES", tmp_path / "nowhere")
    assert memory.cache_bytes(torch.device("cpu")) is None


def test_only_the_cache_of_a_cpu_in_a_virtual_machine_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    for virtual in (True, False, None):
        monkeypatch.setattr(memory, "is_virtual", lambda virtual=virtual: virtual)
        assert memory.cache_shared(torch.device("cpu")) is virtual
        assert memory.cache_shared(torch.device("cuda")) is False


SECOND_POOL = """
from spsbench.base.errors import UsageError
from spsbench.models.onnx_lm import session_options
session_options(1)
session_options(2)
session_options(2)
for threads in (1, 3):
    try:
        session_options(threads)
    except UsageError as error:
        print(error.flag, error.message)
"""


@pytest.mark.parametrize(
    ("parameters", "most", "expected"),
    [(1, 8, 1), (3_000_000, 8, 1), (3_000_001, 8, 2), (6_700_000, 2, 2), (135_000_000, 16, 16)],
)
def test_threads_follow_from_the_size_and_the_cores_alone(
    monkeypatch: pytest.MonkeyPatch, parameters: int, most: int, expected: int
) -> None:
    monkeypatch.setattr(memory, "_MOST", most)
    monkeypatch.setattr(memory, "cpus_left", lambda: most)
    assert memory.suitable_threads(parameters) == memory.threads_by_size(parameters) == expected
    monkeypatch.setattr(memory, "cpus_left", lambda: 1)
    assert memory.suitable_threads(parameters) == 1


@pytest.mark.thorough
def test_a_process_has_one_pool_of_one_size() -> None:
    done = subprocess.run([sys.executable, "-c", SECOND_POOL], capture_output=True, text=True, check=True)
    said = "--threads ONNX Runtime keeps one thread pool a process, and here it has 2, not"
    assert [line.startswith(said) for line in done.stdout.splitlines()] == [True, True]


def test_of_a_gpu_many_sums_share_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device on which a sum takes 120 us, and a launch from rest and a wait 20 more."""
    sums: list[object] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            self.timed = enable_timing

        def record(self, stream: str) -> None:
            assert stream == "of cuda:1"
            self.at = len(sums)

        def synchronize(self) -> None: ...

        def elapsed_time(self, after: Event) -> float:
            assert self.timed
            return 0.12 * (after.at - self.at) + 0.02

    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr("torch.cuda.current_stream", "of {}".format)
    monkeypatch.setattr("torch.sum", sums.append)
    data = SimpleNamespace(device=torch.device("cuda:1"))
    assert memory._seconds_of_sum(data) == pytest.approx(120e-6, rel=0.01)  # type: ignore[arg-type]

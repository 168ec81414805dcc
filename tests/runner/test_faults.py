"""Out of memory fails a sequence and leaves the next one its memory; a lost device ends the run at once."""

from __future__ import annotations

import gc
import json
import math
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.commandline import BRIEF, SMALL, call, journal

from spsbench.base.errors import DeviceFault, SpsbenchError, UsageError
from spsbench.base.records import Request, SamplingParams
from spsbench.decode.clock import SystemClock
from spsbench.engines.local import BatchedEngine, EagerEngine
from spsbench.models.causal_lm import require_exact_rollback
from spsbench.models.faults import is_out_of_memory, settle, shortage
from spsbench.models.hf_errors import typed_error
from spsbench.models.messages import TAKES_LESS
from spsbench.runner.engines import answers

SHORT = "CUDA out of memory. Tried to allocate 594.00 MiB. GPU 0 has a total capacity of 23.00 GiB of which"
ASSERT = "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported"
REQUEST = Request((1, 2), 4, (), SamplingParams(), seed=0)


class Held:
    """Stands for a tensor; a cycle keeps it beyond its frame."""

    def __init__(self) -> None:
        self.me = self


class Full:
    """An engine whose sequences fail while they hold something."""

    name = "full"

    def __init__(self) -> None:
        self.held = list[weakref.ref[Held]]()

    def generate(self, request: Request) -> Any:
        buffer = Held()
        self.held.append(weakref.ref(buffer))
        try:
            raise torch.OutOfMemoryError(SHORT)
        except torch.OutOfMemoryError as error:
            raise RuntimeError("the loop") from error


@pytest.fixture
def few_collections() -> Iterator[None]:
    """As a command has it: cycles are not looked for in time."""
    before = gc.get_threshold()
    gc.set_threshold(100_000)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("few_collections")
def test_what_a_failed_sequence_held_is_free_for_the_next() -> None:
    engine: Any = Full()
    found = []
    for place, answer in answers(engine, [REQUEST, REQUEST]):
        assert [held() for held in engine.held] == [None] * (place + 1)
        found.append(answer)
    assert all(is_out_of_memory(error) for error in found)


@pytest.mark.usefixtures("few_collections")
def test_so_is_what_the_rows_of_a_batch_held() -> None:
    held = list[weakref.ref[Held]]()

    class Batch:
        size = 2
        most_open = math.inf

        def end(self, row: int) -> None: ...

        def begin(self, row: int, *given: Any) -> None: ...

        def loop(self, watch: Any) -> Any:
            for sequence in engine._live.values():
                sequence.buffer.mark = Held()
                held.append(weakref.ref(sequence.buffer.mark))
            raise torch.OutOfMemoryError(SHORT)

    batch: Any = Batch()
    decoder: Any = SimpleNamespace(eos_ids=frozenset(), decode=lambda ids: "")
    engine = BatchedEngine(batch, decoder, torch.device("cpu"), SystemClock())
    found = list(answers(engine, [REQUEST] * 3))
    assert len(held) == 2
    assert all(isinstance(error, torch.OutOfMemoryError) for _, error in found)
    assert [mark() for mark in held] == [None, None]


def test_how_much_was_asked_for_is_said() -> None:
    assert (
        shortage(torch.OutOfMemoryError(SHORT)) == f"out of memory: 594.00 MiB more did not fit. {TAKES_LESS}"
    )
    assert shortage(MemoryError()) == f"out of memory. {TAKES_LESS}"


@pytest.mark.parametrize(
    ("message", "short"),
    [
        ("CUDA error: out of memory", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you", True),
        ("the size of tensor a (4) must match the size of tensor b (5)", False),
    ],
)
def test_what_libraries_call_out_of_memory(message: str, short: bool) -> None:
    assert is_out_of_memory(RuntimeError(message)) is short


@pytest.mark.parametrize("kind", [torch.AcceleratorError, RuntimeError])
def test_a_lost_device_is_no_failed_sequence(kind: Callable[[str], Exception]) -> None:
    with pytest.raises(DeviceFault, match="computes nothing more: CUDA error: device-side assert triggered"):
        settle(kind(ASSERT))
    settle(RuntimeError("no rows"))
    settle(kind("CUDA error: invalid argument"))  # fails a call and no more


def failing(
    monkeypatch: pytest.MonkeyPatch, error: Callable[[], Exception], when: Callable[[int, int], bool]
) -> Any:
    """The engine's sequences fail by their lookahead and number."""
    real, asked = EagerEngine.generate, list[int]()

    def generate(self: EagerEngine, request: Any) -> Any:
        asked.append(self._k)
        if when(self._k, len(asked)):
            raise error()
        return real(self, request)

    monkeypatch.setattr(EagerEngine, "generate", generate)
    return asked


def test_the_arm_that_fits_is_measured_beside_the_one_that_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, lambda: torch.OutOfMemoryError(SHORT), lambda k, _: k == 2)
    result = call("run", *BRIEF, *SMALL, "--no-score", "--no-proof", "--k", "2", "--out", tmp_path / "run")
    assert result.code == 5
    assert "of the sequences 1 failed" in result.err
    said = " ".join(result.err.split())
    assert f"out of memory: 594.00 MiB more did not fit. {TAKES_LESS}" in said
    assert "fault of spsbench" not in said
    assert {line["arm"]: line["error"] is None for line in journal(tmp_path / "run")} == {
        "ars-nucleus": True,
        "sps-k2-nucleus": False,
    }


NODE = "Non-zero status code returned while running MatMul node. Name:'q_proj'"
BUFFER = "Status Message: bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 98304"


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("RuntimeException", NODE, f"RuntimeError: ONNX Runtime: {NODE}"),
        ("RuntimeException", f"{NODE} {BUFFER}", f"out of memory. {TAKES_LESS}"),
        ("Fail", NODE, f"RuntimeError: ONNX Runtime: {NODE}"),
        ("EPFail", NODE, f"RuntimeError: ONNX Runtime: {NODE}"),
    ],
)
def test_a_forward_that_onnx_runtime_fails_is_a_failed_sequence_as_torchs_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, text: str, reason: str
) -> None:
    """Its own errors have no base that Python knows; ArS alone, whose forwards stand in no program."""
    from onnxruntime import InferenceSession
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    real, in_run, run = InferenceSession.run_with_iobinding, list[int](), tmp_path / "run"

    def forward(self: InferenceSession, binding: Any, options: Any = None) -> None:
        if in_run and len(in_run) < 2:
            in_run.append(1)
            raise getattr(state, kind)(f"[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : {text}")
        real(self, binding, options)

    def generate(self: EagerEngine, request: Request) -> Any:
        in_run.append(0)
        return begun(self, request)

    begun = EagerEngine.generate
    with monkeypatch.context() as patched:
        patched.setattr(InferenceSession, "run_with_iobinding", forward)
        patched.setattr(EagerEngine, "generate", generate)
        given = ("--limit", 2, "--arms", "ars", "--no-score", "--no-proof", "--set", "warmup=false")
        result = call("run", *BRIEF, *SMALL, *given, "--out", run)
    assert result.code == 5, result.err
    assert "of the sequences 1 failed" in result.err
    assert "fault of spsbench" not in result.err
    assert [line["error"] for line in journal(run)] == [reason, None]
    assert call("run", "--resume", run).code == 0
    assert {line["error"] for line in journal(run)[-1:]} == {None}


def test_a_lost_device_ends_the_run_with_the_command_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patched:
        asked = failing(patched, lambda: torch.AcceleratorError(ASSERT), lambda _, number: number >= 2)
        given = ("--limit", 2, "--no-score", "--no-proof", "--k", "2")
        result = call("run", *BRIEF, *SMALL, *given, "--out", run)
    assert (result.code, len(asked)) == (1, 2), "nothing more is tried"
    assert "the device failed and computes nothing more: CUDA error: device-side assert" in result.err
    assert result.err.rstrip().splitlines()[-1] == f"  spsbench run --resume {run}"
    assert "fault of spsbench" not in result.err
    assert [line["error"] for line in journal(run)] == [None]
    assert json.loads((run / "run.json").read_text())["models"]
    assert call("run", "--resume", run).code == 0
    assert [line["error"] for line in journal(run)] == [None] * 4


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (torch.AcceleratorError(ASSERT), DeviceFault, "the device failed while m was tested: CUDA error: d"),
        (torch.OutOfMemoryError(SHORT), SpsbenchError, "out of memory while m was tested: 594.00 MiB more"),
        (RuntimeError("mat1 and mat2"), UsageError, "the cache of m cannot be rolled back exactly: Run"),
    ],
)
def test_a_self_test_that_cannot_run_says_nothing_of_the_architecture(
    error: Exception, kind: type[SpsbenchError], said: str
) -> None:
    def begin(prompt: Any) -> None:
        raise error

    config = SimpleNamespace(is_encoder_decoder=False, get_text_config=SimpleNamespace)
    model: Any = SimpleNamespace(
        config=config, vocab_size=9, context_window=64, device="cpu", as_prompt=lambda ids: ids, begin=begin
    )
    model.dtype, model.border = torch.float32, None
    model.score_uncached = lambda ids, last=None: torch.zeros(len(ids), 9)
    with pytest.raises(SpsbenchError) as caught:
        require_exact_rollback(model, "m")
    assert type(caught.value) is kind
    assert str(caught.value).startswith(said)
    assert ("architecture" in str(caught.value)) is (kind is UsageError)


def test_a_device_that_fails_while_weights_are_loaded_is_not_the_files_fault() -> None:
    found = typed_error(torch.AcceleratorError("CUDA error: no kernel image is available"), "m", "--target")
    assert (type(found), found.exit_code) == (DeviceFault, 1)
    assert "Download" not in str(found)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError(SHORT), torch.AcceleratorError(ASSERT)])
def test_anywhere_else_it_is_a_sentence_too(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*given: Any, **named: Any) -> None:
        raise error

    monkeypatch.setattr("spsbench.cli.main.app", breaks)
    result = call("list", "tasks")
    assert result.code == 1
    assert "fault of spsbench" not in result.err
    assert result.err.startswith(("error: out of memory: 594.00 MiB", "error: the device failed: CUDA error"))

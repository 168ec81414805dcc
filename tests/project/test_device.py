"""The emulated device has a real one's rules: each is seen to refuse, or to count, what it is there for."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support.device import CudaTensor, Device, emulated
from torch.utils._device import _device_constructors

Operation = Callable[[torch.Tensor], object]

WAITS: dict[str, tuple[Operation, str]] = {
    "item": (lambda x: x[0].item(), "item"),
    "bool": (lambda x: bool(x.sum() > 0), "item"),
    "int": (lambda x: int(x[1]), "item"),
    "tolist": (lambda x: x.tolist(), "copy down"),
    "cpu": (lambda x: x.cpu(), "copy down"),
    "to the host": (lambda x: torch.empty(4).copy_(x), "copy down"),
    "from the host": (lambda x: torch.ones(4).to(x.device), "copy up"),
    "tensor": (lambda x: torch.tensor([1.0], device=x.device), "copy up"),
    "new_tensor": (lambda x: x.new_tensor([1.0]), "copy up"),
    "a number into a tensor of none": (lambda x: x.__setitem__(0, 2.0), "copy up"),
    "not pinned": (lambda x: torch.ones(4).to(x.device, non_blocking=True), "copy up"),
    "mask": (lambda x: x[x > 2], "mask as index"),
    "list": (lambda x: x[[0, 1]], "index from the host"),
    "an empty list": (lambda x: x[[]], "index from the host"),
    "index of the host": (lambda x: x[torch.tensor([0])], "index from the host"),
    "nonzero": (lambda x: x.nonzero(), "nonzero"),
    "where": (lambda x: torch.where(x > 2), "nonzero"),
    "unique": (lambda x: x.unique(), "unique"),
    "equal": (lambda x: torch.equal(x, x), "equal"),
    "repeat_interleave": (lambda x: x.repeat_interleave(x.long()), "size"),
    "synchronize": (lambda x: torch.cuda.synchronize(), "synchronize"),
    "stream": (lambda x: torch.cuda.current_stream().synchronize(), "synchronize"),
}

FREE: dict[str, tuple[Operation, int]] = {
    "view": (lambda x: x[1:3].view(2, 1).t(), 0),
    "empty": (lambda x: torch.empty(3, device=x.device), 0),
    "sum": (lambda x: x.sum(), 1),
    "a number of the host": (lambda x: x + torch.tensor(2.0), 1),
    "index": (lambda x: x[x.long() - 1], 3),
    "fill": (lambda x: x.__setitem__(slice(2), 0.0), 1),
    "fill by a mask": (lambda x: x.__setitem__(x > 2, 0.0), 2),
    "of a size that is known": (lambda x: x.repeat_interleave(2, output_size=8), 1),
    "pinned": (lambda x: torch.ones(4).pin_memory().to(x.device, non_blocking=True), 0),
    "attention": (lambda x: torch.nn.functional.scaled_dot_product_attention(*[x.view(1, 1, 2, 2)] * 3), 1),
}


@pytest.fixture
def device() -> Iterator[Device]:
    with emulated() as device, torch.inference_mode():
        yield device


def numbers() -> torch.Tensor:
    return torch.arange(1.0, 5.0, device="cuda")


@pytest.mark.parametrize("name", WAITS)
def test_what_the_host_waits_for_is_counted_by_its_site_and_refused_in_a_capture(
    device: Device, name: str
) -> None:
    operation, kind = WAITS[name]
    values = numbers()
    with device.step("here"):
        operation(values)
    waits = {key: number for key, number in device.counts.waits.items() if key[0] == "here"}
    ((_, site, found),) = waits
    assert (found, waits[("here", site, found)]) == (kind, 1)
    assert site.startswith("test_device.py:")
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        capture(lambda: operation(values))
    assert not torch.cuda.is_current_stream_capturing()


@pytest.mark.parametrize("name", FREE)
def test_other_operations_are_launches_without_a_wait(device: Device, name: str) -> None:
    operation, launches = FREE[name]
    values = numbers()
    with device.step("here"):
        operation(values)
    assert (device.counts.launched("here"), device.counts.waited("here")) == (launches, 0)
    capture(lambda: operation(values))


@pytest.mark.parametrize(
    "mixed",
    [
        lambda x: x + torch.ones(4),
        lambda x: torch.cat([x, torch.ones(4)]),
        lambda x: torch.ones(4).add_(x),
        lambda x: torch.nn.functional.linear(x, torch.ones(2, 4)),
        lambda x: x.gather(0, torch.tensor([0])),
        lambda x: x.__setitem__(x.long() - 1, torch.ones(4)),
        lambda x: torch.stack([x, x], out=torch.empty(2, 4)),
    ],
)
def test_an_operation_that_mixes_host_and_device_fails(device: Device, mixed: Operation) -> None:
    with pytest.raises(RuntimeError, match="same device"):
        mixed(numbers())


def test_what_only_a_host_tensor_can_do_fails(device: Device) -> None:
    with pytest.raises(TypeError, match="numpy"):
        numbers().numpy()
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.zeros(1, device="cuda:1")


def test_memory_is_counted_while_it_is_referred_to_and_has_an_end() -> None:
    with emulated(limit_bytes=10_000) as device:
        values = torch.zeros(1000, device="cuda")
        view = values[10:]
        assert device.allocated_bytes == torch.cuda.memory_allocated() == 4000
        with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
            values.repeat(2)
        del values
        assert torch.cuda.mem_get_info() == (6000, 10_000)
        del view
        assert (device.allocated_bytes, torch.cuda.max_memory_allocated()) == (0, 4000)
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == 0


def test_memory_that_nothing_was_written_to_is_not_zero(device: Device) -> None:
    assert torch.empty(3, device="cuda").isnan().all()
    assert numbers().new_empty(2).isnan().all()


def capture(stage: Callable[[], object]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=torch.cuda.graph_pool_handle()):
        stage()
    return graph


def test_a_graph_reads_its_inputs_when_it_is_replayed_and_is_one_launch(device: Device) -> None:
    source, total = numbers(), torch.zeros(4, device="cuda")
    factor = torch.tensor(2.0)  # of the host: fixed by the capture
    last = torch.zeros((), device="cuda")

    def stage() -> None:
        total.add_(source * factor)
        last.copy_(total[-1])

    graph = capture(stage)
    assert (total.tolist(), last.item()) == ([0.0] * 4, 0.0), "a capture records, it does not compute"
    factor.fill_(100.0)
    graph.replay()
    source.fill_(1.0)
    with device.step("replay"):
        graph.replay()
    assert (total.tolist(), last.item()) == ([4.0, 6.0, 8.0, 10.0], 10.0)
    assert (device.counts.launched("replay"), device.counts.kernels["replay"]) == (1, 3)


def test_an_index_that_the_graph_itself_brings_into_range_does_not_break_its_capture(device: Device) -> None:
    source, place = numbers(), torch.full((1,), 9, device="cuda")
    found = torch.zeros(1, device="cuda")
    graph = capture(lambda: found.copy_(source.gather(0, place.add(0).clamp_(0, 3))))
    graph.replay()
    assert found.item() == source[3].item()
    with pytest.raises(torch.AcceleratorError, match="device-side assert"):
        source.gather(0, place)


def test_a_graph_whose_capture_failed_cannot_be_replayed(device: Device) -> None:
    graph, values = torch.cuda.CUDAGraph(), numbers()
    with pytest.raises(RuntimeError, match="capturing"), torch.cuda.graph(graph):
        values.tolist()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()


def test_a_copy_that_does_not_block_arrives_with_the_next_wait(device: Device) -> None:
    values, pinned = numbers(), torch.zeros(4).pin_memory()
    pinned.copy_(values, non_blocking=True)
    assert pinned.tolist() == [0.0] * 4
    assert not device.counts.waited("other")
    torch.cuda.current_stream().synchronize()
    assert pinned.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_events_are_of_the_stream_and_can_be_read_once_they_were_waited_for() -> None:
    with emulated(kernel_us=100.0, launch_us=10.0) as device:
        began = device.now()
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        values = torch.ones(4, device="cuda")
        before.record()
        for _ in range(5):
            values = values + 1
        after.record()
        assert device.now() - began == pytest.approx(60e-6), "the host goes on"
        assert not after.query()
        with pytest.raises(RuntimeError, match="not ready"):
            before.elapsed_time(after)
        after.synchronize()
        assert before.elapsed_time(after) == pytest.approx(0.5)
        assert time.perf_counter() == device.now() == pytest.approx(began + 610e-6)
        with pytest.raises(RuntimeError, match="timed"):
            before.elapsed_time(torch.cuda.Event())


def test_a_graph_takes_its_kernels_time_and_one_launch() -> None:
    with emulated(kernel_us=100.0, launch_us=10.0) as device:
        values = torch.zeros(4, device="cuda")
        graph = capture(lambda: values.add_(1).mul_(2))
        torch.cuda.synchronize()
        began = device.now()
        graph.replay()
        assert device.now() - began == pytest.approx(10e-6)
        torch.cuda.synchronize()
        assert device.now() - began == pytest.approx(210e-6)


def test_streams_run_beside_each_other_until_one_waits() -> None:
    with emulated(kernel_us=100.0) as device:
        began, values = device.now(), torch.zeros(4, device="cuda")
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            values.add_(1)
        torch.cuda.synchronize()
        assert device.now() - began == pytest.approx(100e-6)
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.default_stream())
            values.add_(1)
        torch.cuda.current_stream().wait_stream(side)
        values.add_(1)
        torch.cuda.synchronize()
        assert device.now() - began == pytest.approx(300e-6)


def test_a_broken_device_stays_broken(device: Device) -> None:
    values = numbers()
    with pytest.raises(RuntimeError, match="device-side assert"):
        values[torch.tensor([4], device="cuda")]
    with pytest.raises(RuntimeError, match="broken"):
        values.tolist()


def test_a_kernel_can_be_made_to_fail(device: Device) -> None:
    values, device.fails_at = numbers(), 3
    values.add_(1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="device-side assert"):
            values.add_(1)


def test_modules_move_with_shared_weights_shared(device: Device) -> None:
    with torch.inference_mode(False):
        model = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Linear(4, 5, bias=False))
        model[1].weight = model[0].weight
        model.to("cuda")
    assert model[0].weight is model[1].weight
    assert isinstance(model[0].weight, CudaTensor)
    assert device.allocated_bytes == 80
    assert model(numbers().long()).shape == (4, 5)


def test_modules_move_where_nothing_is_learned_too(device: Device) -> None:
    module = torch.nn.Linear(2, 2)
    with torch.inference_mode():
        assert module.to("cuda").weight.device.type == "cuda"


def test_threads_see_the_device(device: Device) -> None:
    made: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: made.append(torch.ones(2).to("cuda")))
    thread.start()
    thread.join()
    assert isinstance(made[0], CudaTensor)


@pytest.mark.parametrize("place", ["cpu", "meta", "cuda"])
def test_what_is_made_within_a_device_is_made_there(place: str) -> None:
    """Transformers asks so whether it builds on meta, and leaves buffers unfilled if it does not learn it."""
    _device_constructors.cache_clear()
    with emulated(), torch.device(place):
        assert [torch.tensor([]).device.type, torch.zeros(1).device.type] == [place, place]


def test_nothing_is_left_behind() -> None:
    watched = [*itertools.product([torch.cuda], vars(torch.cuda)), (torch, "tensor"), (time, "perf_counter")]
    watched += [(threading.Thread, "run"), (torch.nn.functional, "scaled_dot_product_attention")]
    before = [getattr(*part) for part in watched]
    with emulated(kernel_us=1.0):
        left = numbers()
    assert all(getattr(*part) is usual for part, usual in zip(watched, before, strict=True))
    assert not torch.cuda.is_available()
    with pytest.raises(RuntimeError, match="is gone"):
        left.add_(1)
    with pytest.raises((NotImplementedError, AssertionError)):
        torch.zeros(1, device="cuda")
    with emulated() as device:
        assert numbers().tolist() == [1.0, 2.0, 3.0, 4.0]
        assert device.counts.waited("other") == 1


@pytest.mark.parametrize("checkout", ["spsbench", "torch"])
def test_a_site_does_not_depend_on_what_the_checkout_is_called(
    device: Device, tmp_path: Path, checkout: str
) -> None:
    code = compile("x[0].item()", str(tmp_path / checkout / "tests" / "script.py"), "exec")
    with device.step("here"):
        exec(code, {"x": numbers()})
    assert device.counts.waits["here", "script.py:1", "item"] == 1

"""What a loop decided stays on the device: no model reads it from the host again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spsbench.base.records import SamplingParams
from spsbench.decode import sampling
from spsbench.decode.protocols import Tokens, last_tokens
from spsbench.decode.rejection import Draft, Verdict, all_decided
from spsbench.decode.sampling import UniformStream
from spsbench.parts.whatif.bench.forced import SyntheticAcceptance

CPU, PLAIN = torch.device("cpu"), SamplingParams()


def test_the_last_tokens_are_those_of_the_device_as_far_as_it_has_them() -> None:
    tokens = Tokens([5, 6, 7], torch.tensor([7]))
    assert (tokens, len(tokens)) == ([5, 6, 7], 3)
    held = tokens.on_device(1)
    assert held is not None
    tokens.add([8, 9], torch.tensor([8, 9]))
    assert last_tokens(tokens, 1, CPU).tolist() == [9]
    assert last_tokens(tokens, 2, CPU).tolist() == [8, 9]
    assert tokens.on_device(3) is None
    for text in (tokens, list(tokens)):
        assert last_tokens(text, 3, CPU).tolist() == [7, 8, 9]
    assert Tokens([5]).on_device(1) is None


def test_several_drafts_are_decided_in_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere(torch.Tensor):
        is_cpu = False
        __torch_function__ = torch._C._disabled_torch_function_impl

    def judgement(tokens: list[int], accepted: int, token: int) -> Any:
        stand, drawn = (torch.tensor(number).as_subclass(Elsewhere) for number in (accepted, token))
        return Draft(torch.tensor(tokens, dtype=torch.int64), None), Verdict(stand, drawn)

    reads: list[object] = []
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda own: reads.append(own) or tolist(own))
    found = all_decided([judgement([4, 5], 1, 9), judgement([], 0, 3), judgement([7], 1, 8)])
    assert found == [([4, 5], 1, 9), ([], 0, 3), ([7], 1, 8)]
    assert len(reads) == 1


def test_an_accelerator_gets_the_numbers_of_the_host_before_the_first_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = UniformStream(7, CPU)
    expected = [stream(9) for _ in range(3000)]
    ahead = UniformStream(7, torch.device("meta"))
    ahead.device, copies = CPU, []
    ahead._ahead.clear()
    ahead._generator.manual_seed(7)
    stack = torch.stack
    monkeypatch.setattr(sampling.torch, "stack", lambda parts: copies.append(len(parts)) or stack(parts))
    ahead._draw_ahead()
    assert all(torch.equal(ahead(9), numbers) for numbers in expected)
    assert copies == [16, 16]


@pytest.mark.parametrize("n", [1, 9, 342, 1024])
def test_numbers_ahead_are_those_of_the_calls(n: int) -> None:
    stream, ahead = UniformStream(7, CPU), UniformStream(7, CPU)
    for _ in range(2):
        numbers = ahead.ahead(n)
        assert numbers.shape == (ahead.loops_ahead(n), n)
        assert all(torch.equal(row, stream(n)) for row in numbers)


def test_synthetic_chances_are_made_once() -> None:
    acceptance = SyntheticAcceptance([0.9, 0.5])
    u = torch.tensor([0.6, 0.6, 0.1, 0.2])
    held = acceptance._chances(3, u)
    assert held.tolist() == pytest.approx([0.9, 0.5, 0.5])
    assert acceptance._chances(2, u).data_ptr() == held.data_ptr()
    assert acceptance._chances(2, u.double()).dtype == torch.float64

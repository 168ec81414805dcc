"""CUDA graphs of stages: recorded once, launched as a whole ever after."""

from __future__ import annotations

from collections.abc import Callable

import torch

_WARM_UPS = 3


class CaptureFailed(Exception):
    """A stage cannot be a graph; the message says why."""


class Graphs:
    """Captures stages into one pool of memory, which stages of the same arm share.

    Args:
        device: a CUDA device.

    Attributes:
        count: graphs captured so far.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self.count = 0

    def __call__(self, stage: Callable[[], object]) -> Callable[[], object]:
        """Run a stage a few times, so that libraries set themselves up, then record it.

        Raises:
            CaptureFailed: it waits for the host, or does what a graph cannot.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.inference_mode():
                self._warm_up(stage)
                with torch.cuda.graph(graph, pool=self._pool):
                    stage()
        except RuntimeError as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise CaptureFailed(f"a CUDA graph could not be captured: {reason}") from error
        self.count += 1
        return graph.replay

    def _warm_up(self, stage: Callable[[], object]) -> None:
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                stage()
        torch.cuda.current_stream(self._device).wait_stream(stream)


def uncaptured(stage: Callable[[], object]) -> Callable[[], object]:
    """The stage itself, on any device."""
    return stage

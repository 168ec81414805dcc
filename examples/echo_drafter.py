"""A drafter of one's own: it proposes what followed the last time the same token stood there.

    spsbench run --drafter model,examples/echo_drafter.py:KIND --k 4

``spsbench.testing.assert_lossless(KIND)`` proves it against the target's law.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from spsbench import Context, Draft, DrafterKind


class EchoDrafter:
    """Copies what came after the most recent earlier occurrence of the last token."""

    def __init__(self, most: int, device: torch.device) -> None:
        self._most, self._device = most, device
        self._after: dict[int, int] = {}
        self._read = 0

    def begin(self, prompt: Sequence[int]) -> None:
        """A new sequence: forget the last one."""
        self._after, self._read = {}, 0

    def draft(self, tokens: Sequence[int], k: int, u: torch.Tensor) -> Draft:
        """The tokens after the last place where the pending token stood; none if it is new."""
        for place in range(self._read, len(tokens) - 1):
            self._after[tokens[place]] = place + 1
        self._read = len(tokens) - 1
        start = self._after.get(tokens[-1], len(tokens))
        proposal = tokens[start : start + min(k, self._most)]
        # Certain of each token: no rows are needed, and none are stored.
        return Draft(torch.tensor(proposal, dtype=torch.int64, device=self._device), None)

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """Nothing to take back: only decided tokens were read."""


def build(options: Mapping[str, Any], context: Context) -> EchoDrafter:
    """Called once for each arm and sampling."""
    return EchoDrafter(int(options["most"]), context.device)


KIND = DrafterKind(
    name="echo",
    summary="Repeats what followed the last time.",
    build=build,
    options={"most": 8},
    point_mass=True,
)

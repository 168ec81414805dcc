"""The oracle: a policy that knows, when a loop begins, how many of its drafts will be accepted.

Leviathan et al. 2022 (3.5) speak of one that drafts exactly those. That is the fastest where a loop's time
rises evenly with what it drafts. Here a loop of a accepted drafts may draft any number d of tokens up to K:
it then emits min(a, d) + 1 of them. The oracle chooses d to minimise the expected time of the rest of the
text, by recursion from its end. It also knows the text and every chance along it. Whatever a policy that
does not know a drafts, the oracle could draft too: no policy with drafts of up to K tokens is faster.
"""

from __future__ import annotations

import numpy as np

from spsbench.decode.adaptive import Integers, StateLoops, loops_in_states
from spsbench.decode.replay import Floats


def fastest_drafts(ends: Floats, seconds: Floats) -> tuple[Integers, float]:
    """How many tokens the oracle drafts, and the time that it takes for the text.

    Args:
        ends: [n, K+1] of a fixed K, see ``TextLoops``.
        seconds: [n, K+1] of a loop that begins before each token and drafts 0 to K tokens.

    Returns:
        [n, K+1] for each number of drafts that would be accepted; expected seconds.
    """
    n, width = ends.shape
    rest = np.zeros(n + width)
    chosen = np.zeros((n, width), np.int64)
    kept = np.minimum(np.arange(width)[:, None], np.arange(width))  # [d, a]
    for t in range(n - 1, -1, -1):
        options = seconds[t][:, None] + rest[t + 1 + kept]
        chosen[t] = options.argmin(0)
        rest[t] = ends[t] @ options.min(0)
    return chosen, float(rest[0])


def oracle_loops(ends: Floats, chosen: Integers) -> tuple[StateLoops, Floats]:
    """(law, drafted) of loops that draft what was chosen for the number that would be accepted.

    Args:
        ends: [n, K+1] of a fixed K.
        chosen: see ``fastest_drafts``.
    """
    n, width = ends.shape
    own, drafted = np.zeros_like(ends), np.zeros_like(ends)
    rows = np.arange(n)
    for accepted in range(width):
        np.add.at(own, (rows, np.minimum(accepted, chosen[:, accepted])), ends[:, accepted])
        np.add.at(drafted, (rows, chosen[:, accepted]), ends[:, accepted])
    law = loops_in_states(own[None], np.zeros((1, width), np.int64), 0)
    return law, drafted[None]

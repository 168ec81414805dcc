"""What `bench` says of forwards and of what they allow."""

from __future__ import annotations

from collections.abc import Sequence

from spsbench.base import Message
from spsbench.stats import from_alpha, percent

KSpeedup = tuple[int, float]
"""The best K and its speedup; K is 0 where none gains."""

NO_K_GAINS = "Speculation cannot pay here: no K gains, not even if every draft token is accepted."
NO_BATCH_PAYS = "By the forwards it pays at no batch size."
READ_FROM_CACHE = "What is read fits in the reported last-level cache: no memory floor is known here."
BANDWIDTH_UNKNOWN = "Bandwidth could not be measured: no floor is known here."
FLOOR_OF_BYTES = "The floor is the bytes of weights and cache over that."
FLOOR_BEATEN = (
    " Some forwards took less time than that: memory is faster than was measured, or a cache holds a "
    "part of what they read."
)


def short(context: int) -> str:
    """Return ``4k`` for 4,096; other numbers as they are."""
    return str(context) if context % 1024 else f"{context // 1024}k"


class PaysFrom(Message):
    """``best`` is at alpha 0.8, ``states_kept`` what an engine that reads no token again would have there."""

    alpha: float
    k: int
    best: KSpeedup
    states_kept: KSpeedup | None = None

    def __str__(self) -> str:
        k, speedup = self.best
        at = f"at alpha 0.8 the best K is {k}: {speedup:.2f}x" if k else "not at alpha 0.8"
        again = ""
        if self.states_kept is not None:
            kept_k, kept = self.states_kept
            of = f"{kept:.2f}x" if kept_k else "nothing"
            states = f"keeping its states would gain {of} there."
            again = f" The target reads accepted tokens again (replay); {states}"
        needed = f"Speculation can pay here {from_alpha(self.alpha)} (K={self.k})"
        return f"{needed}; {at}, by the forwards alone.{again}"


class RatioChange(Message):
    """``way`` is empty where the intervals show no direction."""

    name: str
    first: float
    last: float
    way: str

    def __str__(self) -> str:
        if not self.way:
            return f"{self.name} does not clearly move ({self.first:.2f}, {self.last:.2f})"
        return f"{self.name} {self.way} from {self.first:.2f} to {self.last:.2f}"


class BestByContext(Message):
    """After the shortest context and after the longest."""

    alpha: float
    contexts: tuple[int, int]
    best: tuple[KSpeedup, KSpeedup]
    changes: Sequence[RatioChange]

    def __str__(self) -> str:
        ends = " and ".join(
            f"{speedup:.2f}x after {short(context)}"
            for context, (_, speedup) in zip(self.contexts, self.best, strict=True)
        )
        ks = ", ".join(str(k) if k else "none gains" for k, _ in self.best)
        changes = "; ".join(map(str, self.changes))
        return f"{ends} at alpha {self.alpha} (best K: {ks}), by the forwards alone: {changes}."


class FasterThanOneRow(Message):
    rows: int
    role: str
    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        measured = f"{self.ratio:.2f} [{self.low:.2f}, {self.high:.2f}]"
        ratio = f"t({self.rows})/t(1) of the {self.role} is {measured}"
        return f"{ratio}, and {self.rows} rows are more work than one"


class ForwardsUntrusted(Message):
    """``lost`` is the share of their time that contention took; 0 where that is not the reason."""

    lost: float
    faster: FasterThanOneRow | None

    def __str__(self) -> str:
        reasons = [f"contention took {percent(self.lost)} of the time of these forwards"] if self.lost else []
        reasons += [] if self.faster is None else [str(self.faster)]
        remedy = "Predictions from them may be far off: repeat on an idle machine."
        return f"UNTRUSTED: {'; '.join(reasons)}. {remedy}"


class UntrustedAfter(Message):
    context: int
    untrusted: str

    def __str__(self) -> str:
        return f"After {short(self.context)}: {self.untrusted}"


class MemoryRead(Message):
    """Before what follows from it; nothing where the bandwidth is not known."""

    bandwidth: float | None

    def __str__(self) -> str:
        return (
            ""
            if self.bandwidth is None
            else f"Memory is read at {self.bandwidth / 1e9:.1f} GB/s (measured). "
        )


class ReadByContext(Message):
    bandwidth: float | None
    beaten: bool

    def __str__(self) -> str:
        return (
            f"{MemoryRead(self.bandwidth)}KV and weights are what one forward of the target reads; the floor "
            f"is their sum over that.{FLOOR_BEATEN if self.beaten else ''} Intervals are of 95%, over "
            "rounds; every round has both models at all contexts in shuffled order, so that a drift of the "
            "machine hits all alike."
        )


class PaysUpToLargestBatch(Message):
    largest: int
    ks: Sequence[int]

    def __str__(self) -> str:
        ks = ", ".join(map(str, self.ks))
        return f"By the forwards it pays up to the largest batch, {self.largest}, at K = {ks}."


class BatchByForwards(Message):
    size: float
    k: int
    sentence = "By the forwards it pays up to B = {size:.3g}, at K = {k}."

"""Why a speedup is not K+1: what each factor is called, what it shows and what to do about it."""

from __future__ import annotations

from typing import NamedTuple

from spsbench.base.messages import Message
from spsbench.stats.predict.whatif import at_any
from spsbench.store.summary_types import BreakEven

ACCEPTANCE, CORRELATION, END = "acceptance", "correlation", "end"
DRAFTING = "drafting"
VERIFYING = "verifying"
ROLLBACK = "rolling_back"
REST = "sampling_and_host"
LOOP_TIME = "loop_time"
JUDGING = "verifying_and_judging"
HOST = "host"
"""In place of ``VERIFYING`` and ``REST``, where ``one_launch`` did forward and verdict."""


class FactorText(NamedTuple):
    """What is said of a factor; ``evidence`` is filled with the numbers that it is made of."""

    title: str
    short: str
    remedy: str
    evidence: str


TEXTS = {
    ACCEPTANCE: FactorText(
        "acceptance, if the tests were independent",
        "acceptance",
        "A draft closer to the target (distilled on its outputs), or a smaller K.",
        "alpha {alpha:.3f}: {tokens_per_loop:.2f} tokens per loop",
    ),
    CORRELATION: FactorText(
        "correlation of the tests in a loop",
        "the correlation of tests",
        "Below 1 rejections come early in a loop, above 1 acceptances come in runs; a K that adapts gains "
        "from either.",
        "{tokens_per_loop:.2f} tokens per loop measured",
    ),
    END: FactorText(
        "tokens cut off at the end of an output",
        "the end of outputs",
        "Longer outputs, or a smaller K; the last loop of an output cannot keep what is past its end.",
        "{tokens_per_loop:.2f} tokens per loop kept",
    ),
    DRAFTING: FactorText(
        "drafting K tokens",
        "drafting",
        "A smaller or shallower draft, graphs or compilation for its steps, or a smaller K.",
        "{draft_ms_per_token:.3g} ms a draft token, {target_ms:.3g} ms a target step, c {c:.3f}",
    ),
    VERIFYING: FactorText(
        "verifying K+1 tokens against one target step",
        "verifying K+1 tokens",
        "Kernels or packed weights that read the weights once for K+1 rows, or a smaller K.",
        "{verify_ms:.3g} ms, {ratio:.2f} target steps",
    ),
    ROLLBACK: FactorText(
        "putting running states back after a rejection",
        "rolling back",
        "An engine that keeps the state after each of the K+1 tokens and reads none again, or a smaller K.",
        "{rollback_ms:.3g} ms a loop",
    ),
    REST: FactorText(
        "sampling and host",
        "sampling and the host",
        "A cheaper sampler (top-k before the sort), fewer synchronisations with the host.",
        "{sps_rest_ms:.3g} ms a loop, {sps_sample_ms:.3g} of it sampling behind the pass; "
        "ArS {ars_rest_ms:.3g} ms a step",
    ),
    JUDGING: FactorText(
        "verifying and judging K+1 tokens against one target step with its draw",
        "verifying and judging K+1 tokens",
        "Kernels or packed weights that read the weights once for K+1 rows, a cheaper sampler, or a smaller "
        "K.",
        "{verify_ms:.3g} ms, {ratio:.2f} target steps",
    ),
    HOST: FactorText(
        "host",
        "the host",
        "Less work between the forwards of a loop, and fewer synchronisations with the host.",
        "{sps_rest_ms:.3g} ms a loop; ArS {ars_rest_ms:.3g} ms a step",
    ),
    LOOP_TIME: FactorText(
        "a loop's time against one ArS step (phases not seen)",
        "the time of a loop",
        "Profile the loop; of our own loops on a CPU or on CUDA this table has the phases.",
        "{loop_ms:.3g} ms a loop, {ars_step_ms:.3g} ms an ArS step",
    ),
}

SELECTION, DRAFTED = "selection", "drafted"
RESIDUAL_TITLES = {name: text.title for name, text in TEXTS.items()} | {
    SELECTION: "alpha of the positions that loops test against alpha of all positions",
    DRAFTED: "drafting in a loop against K times c",
}
"""Of what a residual of a prediction may come from."""


class SpeedupExplained(Message):
    """The bound, the largest loss with its factor, what was measured, and break-even."""

    arm: str
    k: int
    binding: str
    factor: float
    speedup: float
    even: BreakEven

    def __str__(self) -> str:
        return (
            f"{self.arm}: upper bound {self.k + 1}x (K+1); largest loss: {TEXTS[self.binding].short} "
            f"(x{self.factor:.2f}); measured {self.speedup:.2f}x. Break-even, each alone: {self._break_even}."
        )

    @property
    def _break_even(self) -> str:
        even, alpha = self.even, self.even["alpha"]
        needed = "no alpha is enough"
        if alpha is not None:
            needed = "any alpha is enough" if at_any(alpha) else f"alpha {alpha:.2f}"
        parts = [f"{needed} (measured {even['measured_alpha']:.2f})"]
        if even["measured_c"] is not None:
            allowed = "no draft is cheap enough" if even["c"] is None else f"c {even['c']:.2f}"
            parts.append(f"{allowed} (measured {even['measured_c']:.2f})")
        if even["k"] is not None:
            largest = f"K {'about' if even['k_found'] else 'beyond'} {even['k']} (measured {self.k})"
            parts.append("no K gains" if even["k"] == 0 else largest)
        return ", ".join(parts)

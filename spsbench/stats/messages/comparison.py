"""What keeps two runs from being compared, or warns of it; without a full stop."""

from __future__ import annotations

from typing import Any

from spsbench.base.messages import Message
from spsbench.stats.messages.timings import contention_named

RULES = {
    "task": "the task",
    "prompt_sha256": "the wording of prompts",
    "chat_template": "the use of a chat template",
    "max_new_tokens": "the length limit",
    "stop": "the stop strings",
    "fixed_length": "the use of a fixed length",
}
"""Keys of a run's identity that must agree: with another rule a token's time is another quantity."""

SETTINGS = {
    "data": "the data",
    "pair": "the pair of models",
    "dtype": "the dtype",
    "seed": "the seed",
    "extract": "how code is taken from answers",
}
"""Keys of a run's identity that may well be the point of a comparison."""

CPU = {"model": "the CPU", "usable_threads": "the number of CPU threads"}
DEVICE = {"device": "the device"}

GPU = {
    "name": "the GPU",
    "mig": "MIG",
    "power_limit_w": "the GPU's power limit in W",
    "sm_clock_most_mhz": "the GPU's highest clock in MHz",
    "ecc": "the GPU's ECC",
}
"""Of the GPUs that computed, where both runs kept what they are."""

GPU_SOFTWARE = {
    "driver": "the GPU's driver",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "tf32_matmul": "TF32",
    "uuid": "the board",
}

SOFTWARE = {"spsbench": "the version of spsbench", "python": "Python"}
THREADS = {"threads": "the number of threads used"}
ANY_RULE = {"verification_rule": "the verification rule"}
"""Of earlier runs, which have one for all arms."""

GPU_DIFFERS = "the GPU differs"
COMMIT_DIFFERS = "the commit of spsbench differs"
NO_COMMON_ARM = "no arm is in both runs"
NO_COMMON_PROMPT = "no prompt is in both runs"
EVERY_PROMPT_DIFFERS = "every prompt differs in its words"
NO_TIMES = "values that are no times"
"""Why sequences of an arm count as unfinished that have no error."""


class Differs(Message):
    """A setting's title; its values stand behind it where both are short enough to read."""

    title: str
    values: tuple[str, ...]

    @classmethod
    def of(cls, title: str, *values: Any) -> Differs:
        return cls(title, tuple(map(str, values)))

    def __str__(self) -> str:
        short = all(len(value) <= 40 for value in self.values)
        return f"{self.title} differs" + (f" ({', '.join(self.values)})" if short else "")


class SamplingDiffers(Message):
    name: str
    sentence = "the sampling {name!r} differs"


class MetricsUnlike(Message):
    """A metric with its signature in either run."""

    metric: str
    a: str | None
    b: str | None

    def __str__(self) -> str:
        return (
            f"the metric {self.metric} was computed in different ways ({self.a or 'no signature'} in A, "
            f"{self.b or 'no signature'} in B), so its difference has no interval"
        )


class StoppedByWidth(Message):
    run: str
    sentence = "{run} stopped by the width of its intervals; those here are for a fixed number"


class ContentionHeld(Message):
    """CPU contention of a run that the intervals hold."""

    run: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return f"intervals include {contention_named(self.reasons)} of {self.run}: {'; '.join(self.reasons)}"


class PromptsReworded(Message):
    count: int
    sentence = "{count} prompts of the same name differ in their words and are left out"


class PromptsOfOneRun(Message):
    count: int
    sentence = "{count} prompts are in one run only and are left out"


class Slower(Message):
    """An arm of B with its time per token over that of A."""

    arm: str
    time_ratio: float

    def __str__(self) -> str:
        return f"{self.arm} takes {100 * (self.time_ratio - 1):.1f}% longer per token"

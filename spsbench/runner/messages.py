"""What a run says of its machine, its models, its arms and its end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from spsbench.base.axes import RECOMMENDED
from spsbench.base.gpu import NO_NVML
from spsbench.base.messages import Message

CONTINUE = "What was finished is on the disk; continue it with --resume."
"""The remedy of a run that lost its workers."""

NO_PROOF = "--no-proof leaves them out."
"""The remedy of a proof that the memory has no room for."""

READ_LESS = "Fewer --max-new-tokens or a smaller --batch leaves room for it."
"""The remedy of an output that is too long to be read again."""

SHARED_COUNTERS = "workers share machines, whose energy counters cannot separate them"
ONE_DEVICE_COUNTED = "a device map puts the target on several devices, and energy is counted for one alone"

CUDA_GRAPHS_NEED_CUDA = "CUDA graphs need a CUDA device"
SEVERAL_DEVICES = "the target lies on several devices"
ENCODER_DECODER = "the target is an encoder-decoder"

OTHER_TOKENS = "repeated, it generated different tokens from the same seed"
RULE_NOT_REPORTED = "not reported by the engine"
GREEDY_TOKENS_ARE_BEST = "greedy: each token is the target's best, or tied with it but for rounding"

_GIB = 1 << 30


def duration(seconds: float) -> str:
    """Return ``45 s``, ``5 min``, ``2.5 h``."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 6000 else f"{seconds / 3600:.3g} h"


def _three_figures(size: int) -> str:
    """``16.4 GiB``, ``1.10 GiB``, ``512 MiB``, ``26 KiB``."""
    if size >= _GIB:
        return f"{size / _GIB:.{1 if size >= 10 * _GIB else 2}f} GiB"
    if size >= 1 << 20:
        return f"{size / 2**20:.{1 if size < 10 << 20 else 0}f} MiB"
    return f"{size / 1024:.0f} KiB"


class MemoryNeeded(Message):
    """Bytes of a device, by what takes them."""

    free: int
    parts: Mapping[str, int]

    def __str__(self) -> str:
        each = ", ".join(f"{name} {_three_figures(size)}" for name, size in self.parts.items())
        total = sum(self.parts.values())
        return f"needs {_three_figures(total)} of {_three_figures(self.free)} free: {each}"


class ModelsHere(Message):
    target: str
    draft: str
    device: str | None
    memory: MemoryNeeded | None

    def __str__(self) -> str:
        names = " and ".join(dict.fromkeys([self.target, self.draft]))
        place = "" if self.device is None else f" on {self.device}"
        return names + place + ("" if self.memory is None else f", which {self.memory}")


class ModelsInWorkers(Message):
    target: str
    draft: str
    workers: int
    machines: int

    def __str__(self) -> str:
        workers = "worker" if self.workers == 1 else "workers"
        machines = "machine" if self.machines == 1 else "machines"
        return f"{self.target} and {self.draft} in {self.workers} {workers} on {self.machines} {machines}"


class RecommendedSampling(Message):
    """The target's own sampling, and whether an arm has it by that name."""

    sampling: str
    is_used: bool

    def __str__(self) -> str:
        if self.is_used:
            return f"The model's own sampling: {self.sampling}"
        return f"The model recommends {self.sampling}: --sampling {RECOMMENDED}"


class EnsembleUnused(Message):
    target: str
    weight: float
    engine: str
    sentence = (
        "The generation_config.json of {target} asks for assistant_ensemble_weight {weight}, "
        "which is lossy: {engine} runs without it. --rule ensemble:w={weight} measures it."
    )


class BeamVerification(Message):
    width: int
    draft_width: int
    sentence = "all {width} beams of the target among the draft's {draft_width}"


class ClaimRefuted(Message):
    arm: str
    finding: str
    sentence = "{arm} claims to be lossless and is not, so it is reported as lossy: {finding}."


class ClaimUntested(Message):
    arm: str
    reason: str
    sentence = "{arm} claims to be lossless, which was not tested: {reason}."


class ForwardsOverTorch(Message):
    reason: str
    sentence = "The forwards run over torch, not ONNX Runtime: {reason}."


class FewThreads(Message):
    threads: int
    suitable: int

    def __str__(self) -> str:
        noun = "thread" if self.threads == 1 else "threads"
        return (
            f"{self.threads} {noun} where {self.suitable} would suit the target: other processes use the "
            "remaining CPUs. --threads N sets another number."
        )


class LogitsSinceBegun(Message):
    role: str
    sentence = (
        "the {role}'s logits are not bit-identical to those that this run began with: with the "
        "same settings this machine computes differently in some processes, and tokens may differ."
    )


class LogitsOfWorkers(Message):
    role: str
    worker: str
    other: str
    sentence = (
        "the {role}'s logits are not bit-identical in {worker} and in {other}: where two "
        "tokens are nearly tied, texts may differ."
    )


class GpuNotFollowed(Message):
    reason: str

    def __str__(self) -> str:
        remedy = " pip install 'spsbench[gpu]' brings NVML's package." if self.reason == NO_NVML else ""
        return (
            "Clocks, throttling and other processes on the GPU are not recorded for each sequence: "
            f"{self.reason}.{remedy}"
        )


class OneBoardCounted(Message):
    boards: int
    sentence = "the target is split over {boards} boards, and energy is counted for one alone"


class NoEnergyCounter(Message):
    device: str
    sentence = "there is no energy counter for a device of type {device}"


class EngineFellBack(Message):
    engine: str
    sentence = "The engine is {engine}."


class ArmFellBack(Message):
    arm: str
    reason: str
    sentence = "{arm} runs with the engine eager: {reason}."


class OtherBackend(Message):
    backend: str
    sentence = "the forwards are {backend}'s"


class LimitedAttention(Message):
    role: str
    sentence = "the {role} has sliding or chunked attention"


class ArmLeftOut(Message):
    arm: str
    reason: str
    sentence = "{arm} is left out: {reason}."


class WarmUpFailed(Message):
    arm: str
    reason: str
    sentence = "{arm} is left out, it failed while it was warmed up: {reason}."


class ProofFailed(Message):
    reason: str
    sentence = "No sequences were drawn for the proof of losslessness: {reason}"


class WorkersLate(Message):
    late: int
    started: int
    sentence = "{late} of {started} workers did not start in time; the run uses the others."


class WorkerLost(Message):
    """``reason`` is a whole sentence."""

    worker: str
    reason: str
    sentence = "The worker {worker} was lost: {reason} Its unfinished work is reassigned."


class Expectation(Message):
    """What a run will take, as far as it is known: ``prompt_s`` a prompt; ``precision`` is the half-width
    that was asked for, None without one.

    E.g. ``About 120 of 500 prompts expected for ±1%: 4 min of measuring.``, empty where nothing is known.
    """

    precision: float | None
    needed: int | None
    budget_s: float | None
    affordable: int | None
    pool: int
    prompt_s: float

    @property
    def prompts(self) -> int:
        """After how many prompts the run will end."""
        return min(self.pool, *(n for n in (self.needed, self.affordable) if n is not None))

    def __str__(self) -> str:
        sentences = []
        if self.precision is not None and self.needed is not None:
            width = f"±{100 * self.precision:g}%"
            if self.needed > self.pool:
                sentences.append(
                    f"About {self.needed} prompts expected for {width}; the run has {self.pool}."
                )
            else:
                sentences.append(f"About {self.needed} of {self.pool} prompts expected for {width}.")
        if self.affordable is not None and self.affordable <= self.prompts < self.pool:
            sentences.append(
                f"The budget of {duration(self.budget_s or 0)} is expected to end it after {self.prompts}."
            )
        elif sentences:
            sentences.append(f"{duration(self.prompts * self.prompt_s)} of measuring.")
        return " ".join(sentences)


class ExpectedByEarlierRun(Message):
    expected: Expectation
    run: Path

    def __str__(self) -> str:
        sentence = str(self.expected)
        return f"{sentence} This is estimated from {self.run}." if sentence else ""


class ExpectedLater(Message):
    prompts: int
    sentence = "How many prompts are needed is known after {prompts} prompts."


class EndsAfter(Message):
    budget_s: float

    def __str__(self) -> str:
        return f"Measuring ends after {duration(self.budget_s)}."


class LogScoreOff(Message):
    """An alarm of a test for a fixed sample."""

    z: float
    sentence = "log-score: z {z:+.1f}"


class TransformOff(Message):
    p_value: float
    sentence = "integral transform: p {p_value:.1g}"


class LeakageAboveZero(Message):
    estimate: float
    standard_error: float

    def __str__(self) -> str:
        above = self.estimate / self.standard_error
        return f"leakage {self.estimate:.1%}, {above:.1f} standard errors above 0"

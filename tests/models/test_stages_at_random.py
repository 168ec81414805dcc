"""Programs against the host over random small models, laws, prompts and numbers: equal tokens and records.

Where a number lies within rounding of an edge they may differ: such a case must be one.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from support.onnx_variants import _SIZES, VARIANTS
from support.tiny_models import make
from torch import Tensor

from spsbench.base.records import SamplingParams
from spsbench.decode import algorithms, rows
from spsbench.decode.algorithms import DecodedLoop
from spsbench.decode.clock import FakeClock, Stopwatch
from spsbench.decode.rows import Rows, StagedRows
from spsbench.decode.stages import no_programs
from spsbench.drafters.model import ModelDrafter
from spsbench.models.checkpoint import LoadedWeights
from spsbench.models.onnx_lm import OnnxLM
from spsbench.models.torch_lm import TorchLM

CPU = torch.device("cpu")
EDGE = 1e-6
NEXT_TO_ONE = 1 - 2**-24
VOCABULARIES = (2, 3, 17, 64, 129, 130, 258, 1000, 2048, 2049, 4096, 16_384, 16_385, 20_000)
SMALL = VOCABULARIES[:7]
PROMPTS = (1, 2, 3, 10, 250, 255, 256, 257, 512)  # a cache has blocks of 256
FAULTS = ("nan", "inf", "overflow")


class Numbers:
    """Uniform numbers, some of which are 0 and some as near to 1 as they come."""

    device = CPU

    def __init__(self, seed: int) -> None:
        self._drawn, self._odd = torch.Generator().manual_seed(seed), random.Random(seed)

    def __call__(self, n: int) -> Tensor:
        found = torch.rand(n, generator=self._drawn)
        for place in range(n):
            odd = self._odd.random()
            if odd < 0.04:
                found[place] = 0.0 if odd < 0.02 else NEXT_TO_ONE
        return found

    def on_host(self, n: int) -> NDArray[np.float32]:
        return self(n).numpy()


def over(model: Any, width: int, vocabulary: Tensor | None = None) -> OnnxLM:
    return OnnxLM(model.config, LoadedWeights(model), width, 1, lambda: TorchLM(model), vocabulary=vocabulary)


def model_of(chance: random.Random, width: int, *, tied: bool = True) -> Any:
    """A random model of any family; with ties among its logits, or logits that are no numbers, at times."""
    name = chance.choice(list(VARIANTS))
    kind, changes = VARIANTS[name]
    sizes = _SIZES | changes | {"vocab_size": width, "bos_token_id": 0, "eos_token_id": 1}
    sizes |= {"max_position_embeddings": 2048, "initializer_range": chance.choice([0.05, 0.1, 0.3, 0.6])}
    sizes |= {"num_key_value_heads": chance.choice([1, 2, 4])}
    if name in ("llama 3 rope", "yarn"):
        sizes |= {"max_position_embeddings": 512}
    if tied and chance.random() < 0.3:
        sizes |= {"tie_word_embeddings": True}
    model = make(getattr(transformers, kind)(**sizes), seed=chance.randrange(1 << 20))
    for weights in model.parameters():
        if weights.ndim == 1:
            weights.add_(0.2 * torch.randn(weights.shape))
    return model


def spoil(chance: random.Random, model: Any, width: int, fault: str) -> None:
    """Make groups of tokens tie, and plant a fault into a row of the head."""
    head = model.get_output_embeddings().weight
    if chance.random() < 0.3 and width > 4:
        for _ in range(chance.randint(1, 6)):
            group = chance.sample(range(width), min(width, chance.randint(2, 90)))
            head[group] = head[group[0]].clone()
    token = chance.randrange(width)
    if fault == "overflow":
        head[token] *= 1e38
    elif fault:
        head[token] = float(fault)


def draft_of(chance: random.Random, target: OnnxLM, width: int, fault: str) -> OnnxLM:
    """The target itself, its first layers, rounded, or another model: padded, or of half the vocabulary."""
    how = chance.choice(["same", "truncated", "rounded", "other", "padded", "reduced"])
    if how == "same" or (how == "rounded" and fault):  # what is no number cannot be rounded
        return target.twin()
    if how == "truncated":
        return target.truncated(2, "--drafter")
    if how == "rounded":
        return target.rounded(8)
    if how == "padded":
        return over(model_of(chance, width + chance.randint(1, 70)), width)
    model = model_of(chance, width, tied=how == "other")
    if how == "other" or model.config.tie_word_embeddings:
        return over(model, width)
    ids = torch.tensor(sorted(chance.sample(range(width), max(1, width // 2))))
    small = copy.deepcopy(model)
    small.lm_head.weight = torch.nn.Parameter(model.lm_head.weight[ids].clone())
    return over(small, width, ids)


def law_of(chance: random.Random, fault: str) -> SamplingParams:
    if chance.random() < 0.15:
        return SamplingParams(greedy=True)
    if fault == "overflow" and chance.random() < 0.5:
        return SamplingParams(temperature=1e-38)
    temperature = chance.choice([1.0, 10 ** chance.uniform(-1.3, 0.7)])
    top_p = chance.choice([1.0, 0.01, 0.5, 0.9, 0.9999, chance.uniform(0.01, 0.9999)])
    return SamplingParams(
        temperature, chance.choice([0, 0, chance.randint(1, 20), chance.randint(1, 300)]), top_p
    )


@dataclass
class Text:
    """Loops after a prompt; of each how near a nucleus's sum came to top-p, where that was looked at."""

    loops: list[DecodedLoop] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)


def written(
    models: tuple[OnnxLM, OnnxLM], law: SamplingParams, k: int, prompt: list[int], seed: int, count: int
) -> Text:
    target, draft = models
    drafter = ModelDrafter(draft, law, CPU) if k else None
    running = algorithms.start(target, drafter, prompt, k, law, Numbers(seed))(Stopwatch(FakeClock()))
    found, warped, margins = Text(), rows.warped, list[float]()

    def looking(logits: Tensor, params: SamplingParams) -> Rows:
        margins.append(_margin(logits, params))
        return warped(logits, params)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "warped", looking)
        for _ in range(count):
            found.loops.append(next(running))
            found.margins.append(min(margins, default=1.0))
            margins.clear()
    return found


def _margin(logits: Tensor, law: SamplingParams) -> float:
    if law.greedy or law.top_p == 1.0:
        return 1.0
    scores = logits / law.temperature
    if 0 < law.top_k < scores.shape[-1]:
        scores = scores.masked_fill(scores < scores.topk(law.top_k).values[:, -1:], float("-inf"))
    reached = scores.double().softmax(-1).sort(-1, descending=True).values.cumsum(-1)
    return float((reached - law.top_p).abs().min().nan_to_num(1.0))


def _from_edge(weights: NDArray[Any], u: float) -> float:
    """How far a number is from where another token would be drawn, as mass of what it draws from."""
    reached = np.cumsum(weights, dtype=np.float64)
    return float(np.abs(reached - u * reached[-1]).min())


def nearest(one: DecodedLoop, other: DecodedLoop) -> float:
    """How near an edge the first number is that was judged otherwise in two loops."""
    u, q = other.u.tolist(), other.target_probs.numpy()
    if other.draft is None or one.draft is None:
        return _from_edge(q[0], u[-1])
    drafted, p = other.draft.tokens.tolist(), other.draft.probs.numpy()
    for place, (mine, theirs) in enumerate(zip(one.draft.tokens.tolist(), drafted, strict=True)):
        if mine != theirs:
            return _from_edge(p[place], u[place])
    tests = [abs(q[i, token] / p[i, token] - u[len(drafted) + i]) for i, token in enumerate(drafted)]
    first = min(one.accepted, other.accepted)
    if one.accepted != other.accepted:
        return float(tests[first])
    if first == len(drafted):
        return _from_edge(q[first], u[-1])
    left = np.maximum(q[first] - p[first], 0.0)
    return _from_edge(left if left.sum() > 0 else q[first], u[-1])


def compare(staged: Text, plain: Text) -> str:
    """Empty for equal texts, ``edge`` where they part at a number that rounding explains."""
    for one, other, margin in zip(staged.loops, plain.loops, plain.margins, strict=True):
        mine, theirs = ((loop.tokens, loop.accepted, _drafted(loop)) for loop in (one, other))
        pairs = [(one.target_probs, other.target_probs)]
        if one.draft is not None and other.draft is not None:
            assert one.draft.probs is not None
            assert other.draft.probs is not None
            pairs.append((one.draft.probs, other.draft.probs))
        if mine != theirs:
            assert min(margin, nearest(one, other)) < EDGE, (mine, theirs)
            return "edge"
        for own, host in pairs:
            assert torch.equal(own.isnan(), host.isnan())
            if not torch.allclose(own, host, atol=EDGE, rtol=0, equal_nan=True):
                assert margin < EDGE, float((own - host).abs().max())
                return "edge"
    return ""


def _drafted(loop: DecodedLoop) -> list[int] | None:
    return None if loop.draft is None else loop.draft.tokens.tolist()


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    with torch.inference_mode():
        yield


def one_case(seed: int, widths: tuple[int, ...]) -> tuple[int, int, int]:
    """Requests one after the other over one pair; loops, those whose rows are a program's, and edges met."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    width, fault = chance.choice(widths), chance.choice(("", "", "", "", "", *FAULTS))
    model = model_of(chance, width)
    spoil(chance, model, width, fault)
    target = over(model, width)
    draft, k = draft_of(chance, target, width, fault), chance.choice([1, 2, 4, chance.randint(1, 16)])
    seen = staged_loops = edges = 0
    twins = target.twin(), draft.twin()
    for _ in range(3):
        law, lookahead = law_of(chance, fault), chance.choice([0, k, k])
        length = chance.choice([*PROMPTS, chance.randint(1, 600)])
        length = min(length, 400) if target.context_window < 2048 else length
        prompt = [chance.randrange(width) for _ in range(length)]
        asked = law, lookahead, prompt, chance.randrange(1 << 20), 6 if width > 3000 else 20
        staged = written((target, draft), *asked)
        with no_programs():
            plain = written(twins, *asked)
        edges += compare(staged, plain) == "edge"
        seen += len(staged.loops)
        staged_loops += sum(isinstance(loop.target_rows, StagedRows) for loop in staged.loops)
    return seen, staged_loops, edges


@pytest.mark.parametrize("seed", range(3))
def test_programs_write_what_the_host_writes(seed: int) -> None:
    one_case(seed, SMALL)


@pytest.mark.thorough
def test_programs_write_what_the_host_writes_over_many_models() -> None:
    found = np.array([one_case(seed, VOCABULARIES) for seed in range(100, 140)]).sum(0)
    loops, staged, edges = found.tolist()
    assert staged > loops / 4, "most laws and vocabularies have programs"
    assert edges < loops / 500

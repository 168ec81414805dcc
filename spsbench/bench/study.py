"""A pair on this machine: forwards by rows, their floors, the payoff, and synthetic acceptance if given."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from spsbench.bench.forced import NullDecoder, SyntheticAcceptance, measure_forced
from spsbench.bench.forwards import Forwards, bench_loop_cost, payoff, time_forwards, verdict
from spsbench.decode.clock import SystemClock
from spsbench.engines.base import Engine
from spsbench.engines.local import EagerEngine
from spsbench.models.causal_lm import CausalLM
from spsbench.models.memory import cache_bytes, measured_bandwidth
from spsbench.predict.roofline import BANDWIDTH_BOUND, DISPATCH_BOUND, UNKNOWN
from spsbench.records import SamplingParams

LARGEST_ROWS = 9
"""t(n) is shown up to here, whatever the Ks."""

DRAFT_ROWS = (1, 2)
"""Of the draft: one token in every pass but the one after a loop whose drafts were all accepted."""

_FORCED_TOKENS = 48
_FEWEST_ROUNDS, _MOST_ROUNDS = 3, 60


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """What to measure.

    Attributes:
        budget_s: seconds for the forwards, and as many again for synthetic acceptance.
    """

    ks: tuple[int, ...]
    contexts: tuple[int, ...]
    budget_s: float
    sampling: SamplingParams
    acceptance: SyntheticAcceptance | None
    seed: int

    @property
    def context(self) -> int:
        """The only context, or the longest."""
        return self.contexts[-1]

    @property
    def rows(self) -> tuple[int, ...]:
        """How many rows of the target are timed."""
        return tuple(sorted({*range(1, LARGEST_ROWS + 1), *(k + 1 for k in self.ks)}))

    @property
    def tokens(self) -> int:
        """The longest sequence that any part of the measurement needs."""
        return self.context + max(LARGEST_ROWS, _FORCED_TOKENS + max(self.ks) + 1)


def study(target: CausalLM, draft: CausalLM, config: BenchConfig) -> dict[str, Any]:
    """Measure a pair after one context; returns what ``--json`` prints and the terminal shows."""
    modes = {"target": target.backend, "draft": draft.backend}
    times = {
        "target": time_forwards(target, config.rows, config.context, 0.8 * config.budget_s, config.seed),
        "draft": time_forwards(draft, DRAFT_ROWS, config.context, 0.2 * config.budget_s, config.seed),
    }
    synthetic = config.acceptance
    found = payoff(times["target"], times["draft"], config.ks)
    memory = memory_facts(target, draft, config.context)
    forwards = {
        role: forwards_table(model, times[role], config.context, memory)
        for role, model in (("target", target), ("draft", draft))
    }
    return {
        "context": config.context,
        "threads": torch.get_num_threads(),
        "modes": modes,
        **memory,
        "forwards": forwards,
        "rounds": {role: {"rows": own.rows, "seconds": own.seconds.tolist()} for role, own in times.items()},
        "payoff": found,
        "verdict": verdict(found),
        "forced": None if synthetic is None else _forced(target, draft, times, config, synthetic),
    }


def memory_facts(target: CausalLM, draft: CausalLM, context: int) -> dict[str, Any]:
    """``regime``, ``bandwidth_bytes_per_s`` and ``cache_bytes`` of a pair after a context."""
    bandwidth = measured_bandwidth(target.device)
    return {
        "regime": regime(target, draft, context, bandwidth),
        "bandwidth_bytes_per_s": bandwidth,
        "cache_bytes": cache_bytes(target.device),
    }


def regime(target: CausalLM, draft: CausalLM, context: int, bandwidth: float | None) -> str:
    """Whether the weights, keys and values that both read come from memory or stay in a cache."""
    read = sum(model.forward_bytes() + context * (model.kv_bytes_per_token or 0) for model in (target, draft))
    cache = cache_bytes(target.device)
    if cache is not None and read <= cache:
        return DISPATCH_BOUND
    return UNKNOWN if bandwidth is None else BANDWIDTH_BOUND


def forwards_table(
    model: CausalLM, times: Forwards, context: int, memory: dict[str, Any]
) -> list[dict[str, float | int | None]]:
    """t(n), t(n)/t(1) with its interval, and the floor that memory sets."""
    bandwidth = memory["bandwidth_bytes_per_s"] if memory["regime"] == BANDWIDTH_BOUND else None
    kv = model.kv_bytes_per_token or 0
    table: list[dict[str, float | int | None]] = []
    for n in times.rows:
        ratio, low, high = times.ratio(n)
        size = model.forward_bytes(n) + kv * context
        floor = None if bandwidth is None else size / bandwidth
        table.append(
            {
                "rows": n,
                "ms": 1e3 * times.median_s(n),
                "ratio": ratio,
                "low": low,
                "high": high,
                "bytes": size,
                "floor_ms": None if floor is None else 1e3 * floor,
                "share": None if floor is None else floor / times.median_s(n),
            }
        )
    return table


def _forced(
    target: CausalLM,
    draft: CausalLM,
    times: dict[str, Forwards],
    config: BenchConfig,
    synthetic: SyntheticAcceptance,
) -> dict[str, Any]:
    engines: dict[int, Engine] = {0: _engine(target, None, 0, None)}
    engines |= {k: _engine(target, draft, k, synthetic) for k in config.ks}
    generator = torch.Generator().manual_seed(config.seed)
    drawn = torch.randint(target.vocab_size, (config.context,), generator=generator)
    prompt = target.as_prompt(drawn).tolist()
    step = times["target"].median_s(1)
    costs = {k: bench_loop_cost(times["target"], times["draft"], k) for k in config.ks}
    per_round_s = (
        _FORCED_TOKENS * step * (1 + sum(c / synthetic.expected_tokens(k) for k, c in costs.items()))
    )
    rounds = min(max(int(config.budget_s / per_round_s), _FEWEST_ROUNDS), _MOST_ROUNDS)
    measured = measure_forced(
        engines, prompt, config.sampling, tokens=_FORCED_TOKENS, rounds=rounds, seed=config.seed
    )
    return {
        "synthetic_acceptance": True,
        "acceptance_by_position": list(synthetic.probabilities),
        "sampling": config.sampling.record(),
        "rounds": rounds,
        "tokens_per_sequence": _FORCED_TOKENS,
        "arms": [
            {**asdict(arm), "predicted": synthetic.expected_tokens(arm.k) / costs[arm.k] if arm.k else None}
            for arm in measured
        ],
    }


def _engine(
    target: CausalLM, draft: CausalLM | None, k: int, synthetic: SyntheticAcceptance | None
) -> Engine:
    rule = None if synthetic is None else synthetic.rule()
    return EagerEngine(target, draft, k, NullDecoder(), target.device, SystemClock(), rule)

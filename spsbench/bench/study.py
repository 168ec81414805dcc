"""Whether a context fits into the memory of a device, by arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from spsbench.bench.forced import NullDecoder, SyntheticAcceptance, measure_forced
from spsbench.bench.forwards import (
    Forwards,
    bench_loop_cost,
    block_rows,
    payoff,
    time_forwards,
    time_in_turns,
    verdict,
)
from spsbench.decode.clock import SystemClock
from spsbench.engines.local import EagerEngine, Engine
from spsbench.errors import UsageError
from spsbench.models.causal_lm import CausalLM, text_config
from spsbench.models.memory import available_bytes, cache_bytes, cache_bytes_per_token, measured_bandwidth
from spsbench.predict.roofline import BANDWIDTH_BOUND, DISPATCH_BOUND, UNKNOWN
from spsbench.records import SamplingParams

_GIB = 1 << 30
# A cache grows into a buffer twice as large, beside the old one.
_WHILE_GROWING = 2
_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class Held:
    """What a model takes on its device.

    Attributes:
        weights_bytes: of all its weights.
        width_bytes: of a number in its keys and values.
    """

    config: Any
    weights_bytes: int
    width_bytes: int

    def cache_bytes(self, tokens: int) -> int:
        """Keys and values of so many tokens while the cache grows; 0 where the size is not known."""
        return _WHILE_GROWING * tokens * cache_bytes_per_token(self.config, self.width_bytes)

    def attention_bytes(self, tokens: int, at_once: int | None) -> int:
        """Attention scores of one layer while the tokens are read, ``at_once`` or in blocks."""
        heads = getattr(text_config(self.config), "num_attention_heads", None) or 0
        return _FLOAT32_BYTES * heads * tokens * (at_once or block_rows(self.config, tokens))


def require_context_room(
    models: Sequence[Held], context: int, tokens: int, device: torch.device, *, whole: bool
) -> None:
    """Refuse a context whose keys, values and attention scores do not fit beside the weights.

    An upper bound: a fused attention holds less. Where the free memory is not known nothing is refused.
    """
    weights = sum(model.weights_bytes for model in models)
    caches = sum(model.cache_bytes(tokens) for model in models)
    scores = max(model.attention_bytes(context, context if whole else None) for model in models)
    available, needed = available_bytes(device), weights + caches + scores
    if available is not None and needed > available:
        raise UsageError(
            f"after {context} tokens the models need {needed / _GIB:.3g} GiB (weights {weights / _GIB:.3g}, "
            f"keys and values {caches / _GIB:.3g} while the caches grow, attention {scores / _GIB:.3g}), but "
            f"{device.type} has {available / _GIB:.3g} GiB free.",
            flag="--context",
            remedy="Give fewer tokens, or smaller models.",
        )


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


ALPHA = 0.8
"""Of the best speedup by context."""


def study_contexts(target: CausalLM, draft: CausalLM, config: BenchConfig) -> dict[str, Any]:
    """Measure a pair after several contexts; returns what ``--json`` prints and the terminal shows.

    Every round has both models after all contexts, so that a drift of the machine hits them alike.
    """
    models = [(target, config.rows), (draft, DRAFT_ROWS)]
    times = time_in_turns(models, config.contexts, config.budget_s, config.seed)
    bandwidth = measured_bandwidth(target.device)
    found = [
        _behind(context, target, draft, (times[0][context], times[1][context]), config.ks, bandwidth)
        for context in config.contexts
    ]
    return {
        "threads": torch.get_num_threads(),
        "modes": {"target": target.backend, "draft": draft.backend},
        "bandwidth_bytes_per_s": bandwidth,
        "cache_bytes": cache_bytes(target.device),
        "ks_shown": few(config.ks),
        "contexts": found,
        "sentence": sentence(found),
    }


def _behind(
    context: int,
    target: CausalLM,
    draft: CausalLM,
    times: tuple[Forwards, Forwards],
    ks: Sequence[int],
    bandwidth: float | None,
) -> dict[str, Any]:
    """All about one context, as ``study`` has it, with c and the bytes of keys and values."""
    memory = {"regime": regime(target, draft, context, bandwidth), "bandwidth_bytes_per_s": bandwidth}
    found = payoff(*times, ks)
    roles = {"target": (target, times[0]), "draft": (draft, times[1])}
    c, low, high = times[1].over(times[0])
    return {
        "context": context,
        "regime": memory["regime"],
        "forwards": {
            role: forwards_table(model, own, context, memory) for role, (model, own) in roles.items()
        },
        "rounds": {
            role: {"rows": own.rows, "seconds": own.seconds.tolist()} for role, (_, own) in roles.items()
        },
        "c": {"ratio": c, "low": low, "high": high},
        "read_bytes": {
            role: {"weights": model.forward_bytes(), "keys_and_values": _kv_bytes(model, context)}
            for role, (model, _) in roles.items()
        },
        "payoff": found,
        "best": _best(found),
        "verdict": verdict(found),
    }


def _kv_bytes(model: CausalLM, context: int) -> int | None:
    """That a forward reads, one row or a few."""
    return None if model.kv_bytes_per_token is None else model.kv_bytes_per_token * context


def _best(found: dict[str, Any]) -> dict[str, float | int]:
    """The fastest K at ``ALPHA`` and its speedup; K = 0 and 1 where none gains."""
    row = next(row for row in found["grid"] if row["alpha"] == ALPHA)
    k = row["best_k"]
    return {"alpha": ALPHA, "k": k, "speedup": row["speedups"][k] if k else 1.0}


def few(ks: Sequence[int]) -> tuple[int, ...]:
    """The smallest, the middle and the largest of some lookaheads."""
    ordered = sorted(set(ks))
    return tuple(sorted({ordered[0], ordered[len(ordered) // 2], ordered[-1]}))


def short(context: int) -> str:
    """``4k`` for 4,096; other numbers as they are."""
    return str(context) if context % 1024 else f"{context // 1024}k"


def sentence(found: Sequence[dict[str, Any]]) -> str:
    """The best speedup after the shortest and the longest context, and what moved between them."""
    first, last = found[0], found[-1]
    ends = [f"{end['best']['speedup']:.2f}x after {short(end['context'])}" for end in (first, last)]
    ks = [str(end["best"]["k"]) if end["best"]["k"] else "none gains" for end in (first, last)]
    rows = max(first["best"]["k"], last["best"]["k"], 1) + 1
    ratios = [_row(end, rows) for end in (first, last)]
    moved = [_moved("c", first["c"], last["c"]), _moved(f"t({rows})/t(1)", *ratios)]
    return (
        f"{' and '.join(ends)} at alpha {ALPHA} (best K: {', '.join(ks)}), by the forwards alone: "
        f"{'; '.join(moved)}."
    )


def _row(found: dict[str, Any], rows: int) -> dict[str, float]:
    """The target's entry for so many rows."""
    row: dict[str, float] = next(row for row in found["forwards"]["target"] if row["rows"] == rows)
    return row


def _moved(name: str, first: dict[str, float], last: dict[str, float]) -> str:
    """How a ratio went, and nothing of a direction that its intervals do not show."""
    if last["low"] > first["high"]:
        way = "rises"
    elif last["high"] < first["low"]:
        way = "falls"
    else:
        return f"{name} does not clearly move ({first['ratio']:.2f}, {last['ratio']:.2f})"
    return f"{name} {way} from {first['ratio']:.2f} to {last['ratio']:.2f}"

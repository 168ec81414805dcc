"""How t(K+1)/t(1), c and the payoff of a pair move with the context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from spsbench.bench.forwards import Forwards, payoff, time_in_turns, verdict
from spsbench.bench.study import DRAFT_ROWS, BenchConfig, forwards_table, regime
from spsbench.models.causal_lm import CausalLM
from spsbench.models.memory import cache_bytes, measured_bandwidth

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

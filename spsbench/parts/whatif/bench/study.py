"""A pair on this machine: forwards by rows and context, their floors, the payoff, and forced acceptance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from spsbench.models import (
    CausalLM,
    cache_bytes,
    cache_bytes_per_token,
    measured_bandwidth,
    require_free,
    text_config,
)
from spsbench.parts.whatif.bench import FORCED_TOKENS, BenchConfig
from spsbench.parts.whatif.bench.forced import SyntheticAcceptance, forced_engine, measure_forced
from spsbench.parts.whatif.bench.forwards import (
    Forwards,
    bench_loop_cost,
    best_at,
    block_rows,
    payoff,
    time_forwards,
    time_in_turns,
    untrusted,
    verdict,
)
from spsbench.parts.whatif.messages.bench import BestByContext, RatioChange
from spsbench.stats import BANDWIDTH_BOUND, WhatIf, regime

ALPHA = 0.8
"""Of the best speedup by context."""

DRAFT_ROWS = (1, 2)
"""Of the draft: one token in every pass but the one after a loop whose drafts were all accepted."""

_FEWEST_ROUNDS, _MOST_ROUNDS = 3, 60


def study(target: CausalLM, draft: CausalLM, config: BenchConfig) -> dict[str, Any]:
    """Measure a pair after one context or several; returns what ``--json`` prints and the terminal shows.

    Of several contexts every round has both models after all of them, so that a drift of the machine hits
    them alike.
    """
    several = len(config.contexts) > 1
    models = {"target": target, "draft": draft}
    times: list[dict[str, Forwards]]
    if several:
        both = [(target, config.rows), (draft, DRAFT_ROWS)]
        of_target, of_draft = time_in_turns(both, config.contexts, config.budget_s, config.seed)
        times = [{"target": of_target[each], "draft": of_draft[each]} for each in config.contexts]
    else:
        parts = {"target": (config.rows, 0.8 * config.budget_s), "draft": (DRAFT_ROWS, 0.2 * config.budget_s)}
        times = [
            {
                role: time_forwards(models[role], rows, config.context, budget_s, config.seed)
                for role, (rows, budget_s) in parts.items()
            }
        ]
    bandwidth = measured_bandwidth(target.device)
    cache = cache_bytes(target.device)
    places = [
        _facts_after_context(context, models, own, config.ks, bandwidth, cache)
        for context, own in zip(config.contexts, times, strict=True)
    ]
    facts = {
        "threads": torch.get_num_threads(),
        "modes": {role: model.backend for role, model in models.items()},
        "bandwidth_bytes_per_s": bandwidth,
        "cache_bytes": cache,
    }
    if several:
        contexts = [
            own | _differences_by_context(own, models, at) for own, at in zip(places, times, strict=True)
        ]
        return facts | {
            "ks_shown": few(config.ks),
            "contexts": contexts,
            "sentence": str(best_by_context(contexts)),
        }
    forced = config.acceptance and _with_forced_acceptance(target, draft, times[0], config, config.acceptance)
    return places[0] | facts | {"forced": forced}


def _facts_after_context(
    context: int,
    models: Mapping[str, CausalLM],
    times: Mapping[str, Forwards],
    ks: Sequence[int],
    bandwidth: float | None,
    cache: float | None,
) -> dict[str, Any]:
    read = sum(model.forward_bytes() + (_kv_bytes(model, context) or 0) for model in models.values())
    bound = regime(read, bandwidth, cache)
    known = bandwidth if bound == BANDWIDTH_BOUND else None
    doubt = untrusted(times)
    gains = payoff(times["target"], times["draft"], ks, replays=_reads_accepted_again(models["target"]))
    return {
        "context": context,
        "regime": bound,
        "forwards": {
            role: _rows_of_forwards(models[role], forwards, context, known)
            for role, forwards in times.items()
        },
        "rounds": {
            role: {"rows": forwards.rows, "seconds": forwards.seconds.tolist()}
            for role, forwards in times.items()
        },
        "payoff": gains,
        "verdict": str(verdict(gains)),
        "untrusted": doubt and str(doubt),
    }


@torch.inference_mode()
def _reads_accepted_again(target: CausalLM) -> bool:
    """A rollback into a block shows it."""
    if target.rolled_back_by == "length":
        return False
    pending = target.begin([1, 2, 3])
    target.score(torch.cat([pending, pending, pending]), last=1)
    target.rollback(target.length - 1)
    target.rollback(0)
    return target.rolled_back_by == "replay"


def _differences_by_context(
    place: Mapping[str, Any], models: Mapping[str, CausalLM], times: Mapping[str, Forwards]
) -> dict[str, Any]:
    """K = 0 and a speedup of 1 where no K gains."""
    c, low, high = times["draft"].over(times["target"])
    k, speedup = best_at(ALPHA, place["payoff"])
    return {
        "c": {"ratio": c, "low": low, "high": high},
        "read_bytes": {
            role: {"weights": model.forward_bytes(), "keys_and_values": _kv_bytes(model, place["context"])}
            for role, model in models.items()
        },
        "best": {"alpha": ALPHA, "k": k, "speedup": speedup},
    }


def _kv_bytes(model: CausalLM, context: int) -> int | None:
    return None if model.kv_bytes_per_token is None else model.kv_bytes_per_token * context


def _rows_of_forwards(
    model: CausalLM, times: Forwards, context: int, bandwidth: float | None
) -> list[dict[str, float | int | None]]:
    """t(n), t(n)/t(1) with its interval, and the floor that memory sets."""
    table: list[dict[str, float | int | None]] = []
    for n in times.rows:
        ratio, low, high = times.ratio(n)
        size = model.forward_bytes(n) + (_kv_bytes(model, context) or 0)
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


def _with_forced_acceptance(
    target: CausalLM,
    draft: CausalLM,
    times: Mapping[str, Forwards],
    config: BenchConfig,
    acceptance: SyntheticAcceptance,
) -> dict[str, Any]:
    engines = {(1, k): forced_engine(target, draft if k else None, k, acceptance) for k in (0, *config.ks)}
    generator = torch.Generator().manual_seed(config.seed)
    drawn = torch.randint(target.vocab_size, (config.context,), generator=generator)
    step = times["target"].median_s(1)
    costs = {k: bench_loop_cost(times["target"], times["draft"], k) for k in config.ks}
    loop = WhatIf(acceptance.tokens_per_loop, costs.__getitem__)
    steps = 1 + sum(1.0 / loop.speedup(k) for k in costs)
    rounds = int(config.budget_s / (FORCED_TOKENS * step * steps))
    rounds = min(max(rounds, _FEWEST_ROUNDS), _MOST_ROUNDS)
    prompt = target.as_prompt(drawn).tolist()
    measured = measure_forced(
        engines, prompt, config.sampling, tokens=FORCED_TOKENS, rounds=rounds, seed=config.seed
    )
    return {
        "synthetic_acceptance": True,
        "acceptance_by_position": list(acceptance.probabilities),
        "sampling": config.sampling.record(),
        "rounds": rounds,
        "tokens_per_sequence": FORCED_TOKENS,
        "arms": [
            {**asdict(arm), "predicted": loop.speedup(arm.k) if arm.k else None} for arm in measured.values()
        ],
    }


def few(ks: Sequence[int]) -> tuple[int, ...]:
    """Return the smallest, the middle and the largest of some lookaheads."""
    ordered = sorted(set(ks))
    return tuple(sorted({ordered[0], ordered[len(ordered) // 2], ordered[-1]}))


def best_by_context(contexts: Sequence[Mapping[str, Any]]) -> BestByContext:
    """The best speedup after the shortest and the longest context, and what changed between them."""
    first, last = contexts[0], contexts[-1]
    best, other = ((end["best"]["k"], end["best"]["speedup"]) for end in (first, last))
    rows = max(best[0], other[0], 1) + 1
    ratios = [next(row for row in end["forwards"]["target"] if row["rows"] == rows) for end in (first, last)]
    changes = [_change("c", first["c"], last["c"]), _change(f"t({rows})/t(1)", *ratios)]
    return BestByContext(ALPHA, (first["context"], last["context"]), (best, other), changes)


def _change(name: str, first: Mapping[str, float], last: Mapping[str, float]) -> RatioChange:
    """A ratio's change, without a direction where its intervals do not show one."""
    way = "rises" if last["low"] > first["high"] else "falls" if last["high"] < first["low"] else ""
    return RatioChange(name, first["ratio"], last["ratio"], way)


@dataclass(frozen=True, slots=True)
class Held:
    """What a model takes on its device: bytes of all its weights, and of a number in its keys and values."""

    config: Any
    weights_bytes: int
    width_bytes: int


def require_context_room(
    models: Sequence[Held], context: int, tokens: int, device: torch.device, *, whole: bool
) -> None:
    """Refuse a context whose keys, values and attention scores do not fit beside the weights.

    An upper bound: a fused attention holds less. Where the free memory is not known nothing is refused.

    Args:
        whole: the context is read at once, and not in blocks.
    """
    weights = sum(model.weights_bytes for model in models)
    # A cache grows into a buffer twice as large, beside the old one.
    caches = sum(2 * tokens * cache_bytes_per_token(model.config, model.width_bytes) for model in models)
    scores = 0
    for model in models:
        heads = getattr(text_config(model.config), "num_attention_heads", None) or 0
        at_once = context if whole else block_rows(model.config, context)
        scores = max(scores, 4 * heads * context * at_once)
    gib = 1 << 30
    parts = (
        f" (weights {weights / gib:.3g}, keys and values {caches / gib:.3g} while the caches grow, "
        f"attention {scores / gib:.3g})"
    )
    what, remedy = f"after {context} tokens the models", "Give fewer tokens, or smaller models."
    require_free(weights + caches + scores, device, what, "--context", remedy, parts)

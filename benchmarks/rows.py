"""What n rows of one forward cost over one, by context: a block of a chain, or a tree of n nodes.

    python -m benchmarks.rows [--contexts 256,1024,4096,16384] [--rows 2,3,5,9,17,33,66] [--threads 2]

Random float32 weights in SmolLM2-135M's shapes on ONNX Runtime, or those of --config with a long window. The
cache is filled with random numbers. Everything is timed in turns; medians of as many rounds as fit in
--seconds a context; with one thread CPU seconds, which exclude waiting for other processes. ``fused`` is what
the fused operator takes for the same block. A tree is binary.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from transformers import AutoConfig, LlamaConfig

from spsbench.models.causal_lm import built
from spsbench.models.checkpoint import Floats, LoadedWeights
from spsbench.models.live_tree import Branches
from spsbench.models.onnx_lm import OnnxForward, OnnxLM
from spsbench.models.torch_lm import TorchLM

_SMOLLM2 = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
    "max_position_embeddings": 1 << 17,
}


def binary(start: int, n: int) -> Branches:
    """n columns from ``start`` on, of which each two are below one."""
    sees = np.eye(n, dtype=np.bool_)
    for node in range(1, n):
        sees[node] |= sees[(node - 1) // 2]
    return Branches(start + sees.sum(-1) - 1, sees)


def main() -> None:
    """Build the model, time, print."""
    given = _arguments()
    torch.set_num_threads(1)
    config = AutoConfig.from_pretrained(given.config) if given.config else LlamaConfig(**_SMOLLM2)
    model = built(config, torch.float32).eval()
    weights = LoadedWeights(model)
    lm = OnnxLM(model.config, weights, config.vocab_size, given.threads, lambda: TorchLM(model))
    rng = np.random.default_rng(0)
    print(
        "| context | rows | chain, ms | over one row | fused, ms | over one row | tree, ms | over one row |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for context in map(int, given.contexts.split(",")):
        for n, times in _timed(
            lm, context, [1, *map(int, given.rows.split(","))], given.seconds, rng
        ).items():
            cells = [f"{1e3 * found:.1f} | {found / times[-1]:.2f}" for found in times[:-1]]
            print(f"| {context:,} | {n} | {' | '.join(cells)} |", flush=True)


def _timed(
    lm: OnnxLM, context: int, rows: list[int], seconds: float, rng: np.random.Generator
) -> dict[int, list[float]]:
    """Median seconds by n: of a chain, the fused operator, and a tree, and of one row."""
    forward = OnnxForward(lm.session, lm.plan, wide=lm.wide, blocks=True)
    embedded = rng.standard_normal((max(rows), lm.plan.hidden), dtype=np.float32)

    def embed(out: Floats) -> None:
        out[:] = embedded[: len(out)]

    forward.make_room(0, context + max(rows))
    for cache in forward.caches:
        cache[:] = rng.standard_normal(cache.shape, dtype=np.float32)
    fused = OnnxForward(lm.session, lm.plan, memory=forward.memory, slots=forward.caches.shape[3])
    runs = {
        n: (
            lambda n=n: forward(embed, context, n, n),
            lambda n=n: fused(embed, context, n, n),
            lambda n=n: forward(embed, context, n, n, binary(context, n)),
        )
        for n in rows
    }
    found: dict[tuple[int, int], list[float]] = {(n, way): [] for n in rows for way in range(3)}
    clock = time.process_time if lm.threads == 1 else time.perf_counter
    end, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < end or rounds < 4:
        for n, way in rng.permutation(list(found)).tolist():
            start = clock()
            runs[n][way]()
            found[n, way].append(clock() - start)
        rounds += 1
    medians = {key: float(np.median(times[2:])) for key, times in found.items()}
    return {n: [*(medians[n, way] for way in range(3)), medians[1, 0]] for n in rows}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--contexts", default="256,1024,4096,16384")
    parser.add_argument("--rows", default="2,3,5,9,17,33,66")
    parser.add_argument("--config", help="folder or file of a configuration")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each context")
    return parser.parse_args()


if __name__ == "__main__":
    main()

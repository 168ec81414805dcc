"""The most bytes that reading a text again takes of a device beside weights and caches, by length and engine.

    python -m benchmarks.proof_memory [--tokens 128,320,1024,4096] [--written 128] [--engine eager,graphed]

One layer of width 64 under a whole vocabulary: the rows are what counts, and a forward of the text by a
wider model comes on top (``runner.room``). On a GPU these are torch's own figures; where torch has none the
device is the emulated one of the tests, which counts storages that a tensor refers to and nothing of what a
kernel takes while it runs. There loops of 128 tokens take minutes: a longer text is these tokens again and
again, with their loops' rows, read as one.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import torch

from spsbench.base.records import Arm, Request, SamplingParams

_MB = 1e6
SAMPLINGS = {"nucleus": SamplingParams(temperature=0.8, top_p=0.95), "plain": SamplingParams()}


def main() -> int:
    """Print a line an engine, method and length."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from support.counting import pair_of, peaks_of_proof  # type: ignore[import-not-found]
    from support.device import emulated  # type: ignore[import-not-found]

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", default="128,320,1024,4096")
    parser.add_argument("--written", type=int, default=128, help="tokens that loops write at most")
    parser.add_argument("--sampling", default="nucleus", choices=SAMPLINGS)
    parser.add_argument("--engine", default="eager,graphed")
    parser.add_argument("--method", default="sps")
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    given = parser.parse_args()
    print("| engine | method | tokens | records, MB | proof, MB | rows of 64 in float32 | left, MB | s |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    rows, sampling = 64 * given.vocabulary * 4, SAMPLINGS[given.sampling]
    for engine in given.engine.split(","):
        for method in given.method.split(","):
            k = 4 if method == "sps" else 0
            arm = Arm(method, k, engine, given.sampling, sampling)
            for tokens in map(int, given.tokens.split(",")):
                began_s = time.perf_counter()
                times = -(-tokens // given.written)
                text = (tuple(range(5, 21)), tokens // times, ())
                request = Request(*text, sampling, 1, fixed_length=True)
                with ExitStack() as stack:
                    if not torch.cuda.is_available():
                        stack.enter_context(emulated())
                    pair = pair_of((1, 1), given.vocabulary, getattr(torch, given.dtype))
                    found = peaks_of_proof(pair, arm, request, times)
                    del pair
                print(
                    f"| {engine} | {method} | {len(found.generation.tokens)} "
                    f"| {found.records / _MB:.0f} | {found.proof / _MB:.0f} "
                    f"| {found.proof / rows:.2f} | {found.left / _MB:.0f} "
                    f"| {time.perf_counter() - began_s:.0f} |",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())

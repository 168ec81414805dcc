"""What a loaded engine beside the measured one costs it: stopped, as a run keeps it, and left running.

Per prompt the same ArS sequence is generated three times, in shuffled order: alone, beside a worker that is
loaded and stopped, and beside one that is loaded and left to itself. Each worker is started for its turn,
answers one request, and is ended after it. Given are the ratios of time per token, with the interval that a
run gives its speedups; the goal for a stopped neighbour is below 1.02.

Without ``--engine`` the neighbour is ``spinning.py``: it holds 256 MiB and spins on every core.

Run by hand on a quiet machine; by default some two minutes:

    python benchmarks/neighbours.py [--engine 'worker:python my_engine.py'] [--prompts 40] [--threads 1]
"""

from __future__ import annotations

import argparse
import random
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from spsbench.base.environment import describe_environment, taken, taken_since
from spsbench.base.protocol import Ask, Load
from spsbench.base.records import Generation, Prompt, Request
from spsbench.config import resolve
from spsbench.engines.local import Engine
from spsbench.models.pair import Pair
from spsbench.parts.external.registry import PeerKind, find_peer
from spsbench.runner import Plan, plan
from spsbench.runner.engines import EngineFactory
from spsbench.runner.execute import load
from spsbench.runner.peers import model_folder
from spsbench.runner.stopping import derive_seed
from spsbench.stats.conditions import MOST
from spsbench.stats.speedup import PairedTimes, speedup_over_prompts

ALONE, STOPPED, RUNNING = "alone", "stopped", "running"
SPINNING = Path(__file__).with_name("spinning.py")


def main(arguments: list[str]) -> int:
    """Measure every prompt in the three ways and print the ratios."""
    options = _options(arguments)
    settings = {"k": 0, "score": False, "limit": options.prompts, "threads": options.threads}
    ready = plan(resolve(settings | {"max_new_tokens": options.max_new_tokens, "fixed_length": True}))
    models = load(ready)
    engine = EngineFactory(models, ready.slots).build(ready.arms[0])
    kind = find_peer(options.engine or f"worker:{shlex.join([sys.executable, str(SPINNING)])}")
    facts = describe_environment()
    print(
        f"{facts['cpu']['model']}, load {facts['load_1m']:.1f}; the neighbour: {options.engine or 'spins'}\n"
    )
    found = _measured(ready, models, engine, kind)
    print("\n".join(_table(found)))
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", default=None)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args(arguments)


Measured = dict[str, list[tuple[float, int, float]]]
"""By way: of each prompt the seconds, the tokens and the seconds that threads waited for a CPU."""


def _measured(ready: Plan, models: Pair, engine: Engine, kind: PeerKind) -> Measured:
    found: Measured = {ALONE: [], STOPPED: [], RUNNING: []}
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        for prompt in ready.prompts:
            for way in rng.sample(sorted(found), len(found)):
                with _beside(ready, models, kind, way, Path(folder) / "log"):
                    found[way].append(_sequence(ready, engine, prompt))
    return found


@contextmanager
def _beside(ready: Plan, models: Pair, kind: PeerKind, way: str, log: Path) -> Iterator[None]:
    """The neighbour of a way meanwhile."""
    if way == ALONE:
        yield
        return
    target = kind.converted(model_folder(ready.source.target))
    asked = Load(target, threads=models.info["threads"], context=ready.slots)
    peer = kind.open(asked, log, way == STOPPED)
    try:
        peer.describe()
        peer.generate(Ask(list(ready.prompts[0].ids), 8, sorted(models.tokenizer.eos_ids)))
        yield
    finally:
        peer.close()


def _sequence(ready: Plan, engine: Engine, prompt: Prompt) -> tuple[float, int, float]:
    """The second of two equal sequences: what a neighbour's start left in the caches is paid by the first."""
    seed = derive_seed(0, prompt.example_id, 0, "neighbours")
    asked = Request(prompt.ids, ready.max_new_tokens, ready.stop, ready.arms[0].sampling, seed, True)
    engine.generate(asked)
    before = taken()
    made: Generation = engine.generate(asked)
    return made.decode_s, len(made.tokens), taken_since(before).get("waited_s", float("nan"))


def _table(found: Measured) -> Iterator[str]:
    columns = {way: np.array(rows).T for way, rows in found.items()}
    yield "| neighbour | ms/token | time per token against alone | 95% interval | waited, s a second |"
    yield "| :-- | --: | --: | :-- | --: |"
    for way, (seconds, tokens, waited) in columns.items():
        times = PairedTimes(seconds, tokens, *columns[ALONE][:2])  # the neighbour's over that without one
        ratio = None if way == ALONE else speedup_over_prompts(times)
        shown = "-" if ratio is None else f"{ratio.ratio:.4f}"
        ends = "-" if ratio is None or ratio.low is None else f"[{ratio.low:.4f}, {ratio.high:.4f}]"
        share = waited.sum() / seconds.sum()
        trusted = "" if share <= MOST["waited_s"] else " (no run would trust it)"
        per_token = 1e3 * seconds.sum() / tokens.sum()
        yield f"| {way} | {per_token:.3f} | {shown} | {ends} | {share:.3f}{trusted} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The processes of a split target that follow, and what leads them.

The first process is a run like any other: it plans, measures, writes and prints. The others load their
slices of the target and follow the first one until it says that it is over, or is gone.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence

import torch

from spsbench.config import RunConfig
from spsbench.engines.alike import AlikeEngine, generate_alike
from spsbench.engines.base import Engine
from spsbench.errors import SpsbenchError
from spsbench.models.loading import load_torch
from spsbench.models.memory import suitable_threads
from spsbench.models.pair import Pair, find_pair
from spsbench.models.tensor_parallel import (
    FIRST,
    REPLICATED,
    Order,
    OutOfStep,
    RankGone,
    Ranks,
    SplitLM,
    load_split,
)
from spsbench.records import Arm
from spsbench.runner.backends import Backends


def follow(config: RunConfig, ranks: Ranks) -> int:
    """What a process does that does not lead: it answers to the first one until that ends.

    It prints nothing but what went wrong here alone. It leaves Ctrl-C to the first process and dies of
    SIGTERM and SIGHUP without a word: launchers send these to all processes, and the first one explains.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
    try:
        _answer(config, ranks)
        return 0
    except (OutOfStep, RankGone):
        return 0  # the first process says it, or has exited
    except SpsbenchError as error:
        print(f"error: process {ranks.rank}: {error}", file=sys.stderr, flush=True)
        return error.exit_code


def _answer(config: RunConfig, ranks: Ranks) -> None:
    """One order after another until there are no more."""
    pair: Pair | None = None
    backends: Backends | None = None
    while True:
        with ranks.together("waiting"):
            message = ranks.hear()
        match message.order:
            case Order.END:
                return
            case Order.LOAD:
                pair = _load(config, ranks, message.number or None)
            case Order.PREPARE:
                assert pair is not None, "loaded first"
                backends = Backends(pair, 0, corpus=ranks.share())
            case Order.GENERATE:
                assert pair is not None, "loaded first"
                assert backends is not None, "prepared first"
                arm, request = ranks.share()
                generate_alike(backends.build(arm), request, _split(pair))
            case Order.SCORE | Order.READ:
                assert pair is not None, "loaded first"
                _split(pair).obey(message)


def _load(config: RunConfig, ranks: Ranks, threads: int | None) -> Pair:
    """This process's slices of the target, and where each process drafts the draft; as ``load_pair``."""
    source = find_pair(config.pair)
    target = load_split(source.target, config.model_dtype, source.vocab_size, "--target", ranks, threads)
    if ranks.device.type == "cpu":
        torch.set_num_threads(threads or suitable_threads(target.parameters))
    device, size = ranks.device, source.vocab_size
    replicated = config.draft_placement == REPLICATED
    draft = (
        load_torch(source.draft, config.draft_model_dtype, device, size, "--draft") if replicated else target
    )
    return Pair(target, draft, source.tokenizer, device, {"threads": torch.get_num_threads()})


def _split(pair: Pair) -> SplitLM:
    assert isinstance(pair.target, SplitLM)
    return pair.target


def backends_of(
    pair: Pair, slots: int, corpus: Sequence[Sequence[int]], peer: Callable[[Arm], Engine]
) -> Backends:
    """What builds a run's engines; see ``Backends``."""
    if not isinstance(pair.target, SplitLM):
        return Backends(pair, slots, corpus=corpus, peer=peer)
    ranks = pair.target.ranks
    if ranks.placement == FIRST:
        return Backends(pair, slots, ranks.clock, corpus=corpus)
    return AlikeBackends(pair, slots, corpus)


class AlikeBackends(Backends):
    """Builds engines whose sequences every process runs, with the first one's requests."""

    def __init__(self, pair: Pair, slots: int, corpus: Sequence[Sequence[int]]) -> None:
        self._target = _split(pair)
        super().__init__(pair, slots, self._target.ranks.clock, corpus=corpus)
        with self._target.ranks.together("the beginning"):
            self._target.ranks.tell(Order.PREPARE)
            self._target.ranks.share(tuple(corpus))

    def build(self, arm: Arm) -> Engine:
        return AlikeEngine(super().build(arm), arm, self._target)

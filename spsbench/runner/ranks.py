"""A run whose target is split over processes: how they are started, and what cannot be split."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from spsbench.base.axes import EAGER
from spsbench.base.cluster import TENSOR_PARALLEL, require_alone, started
from spsbench.base.environment import typed_arguments
from spsbench.base.errors import SpsbenchError, UsageError, printable
from spsbench.base.records import Arm, Generation, Request
from spsbench.config import RunConfig
from spsbench.config.models import FIRST, INDUCTOR, ONNXRUNTIME, REPLICATED, TORCH, Precision
from spsbench.drafters.registry import HIDDEN, WEIGHTS, drafter_kind, shape_in
from spsbench.engines.local import Engine
from spsbench.models import tensor_parallel
from spsbench.models.causal_lm import CausalLM
from spsbench.models.device import resolve_device
from spsbench.models.loading import load_torch
from spsbench.models.memory import suitable_threads
from spsbench.models.pair import Pair, PairSource, find_pair
from spsbench.runner.engines import EngineFactory


def backend_choice(config: RunConfig) -> str:
    """Return the backends to choose from; a split target has torch only."""
    if config.ranks == 1:
        return config.backend
    if config.backend in (ONNXRUNTIME, INDUCTOR):
        raise UsageError(
            f"{config.backend} computes in one process, and {TENSOR_PARALLEL} {config.ranks} splits a model.",
            flag="--backend",
            remedy=f"Use --backend {TORCH}, or leave {TENSOR_PARALLEL} out.",
        )
    return TORCH


def require_split_arms(config: RunConfig, source: PairSource, arms: Sequence[Arm]) -> None:
    """Refuse, before a weight is loaded, what needs a split target whole."""
    if config.ranks == 1:
        return
    ranks_of(config)
    _require_nothing_whole(config, source, arms)
    tensor_parallel.require_splittable(source.target, config.ranks)


def _needed_whole(flag: str, reason: str) -> UsageError:
    why = f"{reason}, and {TENSOR_PARALLEL} splits the target over processes."
    return UsageError(why, flag=flag, remedy="Leave one of the two out.")


def _require_nothing_whole(config: RunConfig, source: PairSource, arms: Sequence[Arm]) -> None:
    if config.device_map is not None:
        raise _needed_whole("--device-map", "a device map places the target's layers")
    if Precision(config.model_dtype).quantise is not None:
        raise _needed_whole("--dtype", f"{config.model_dtype} packs the target's matrices")
    if source.draft.sharing is not None:
        raise _needed_whole("--draft", f"{source.draft.name} reads its target's embedding")
    for arm in arms:
        name = arm.drafter.name
        needs = drafter_kind(name).needs_of(arm.drafter) if arm.method == "sps" else frozenset()
        if arm.sampling.beam is not None:
            raise _needed_whole("--sampling", "a beam search builds a tree over the target")
        if shape_in(arm.drafter) is not None:
            raise _needed_whole("--tree", "a tree of drafts is scored by a target in one process")
        if arm.batch > 1:
            raise _needed_whole("--batch", "a batch has its own forward")
        if arm.engine != EAGER:
            raise _needed_whole("--engine", f"the engine {arm.engine} runs its own model")
        if needs & {WEIGHTS, HIDDEN}:
            raise _needed_whole("--drafter", f"the drafter {name} reads the target's layers")


def ranks_of(config: RunConfig) -> tensor_parallel.Ranks | None:
    """Return this process among those that a run's target is split over; None for a target in one process."""
    if config.ranks == 1:
        return None
    ranks = tensor_parallel.joined()
    if ranks is None:
        raise UsageError(
            f"{config.ranks} processes are asked for, and this one was started alone.",
            flag=TENSOR_PARALLEL,
            remedy="Only the commands run, sweep-k and verify can be split, started by torchrun.",
        )
    return ranks


@contextmanager
def among_ranks(config: RunConfig) -> Iterator[tensor_parallel.Ranks | None]:
    """Join the processes of a split target, and when the block ends in the first one, end the others."""
    count, there = config.ranks, started()
    if there != count:
        if count == 1:
            remedy = f"Add {TENSOR_PARALLEL} {there}, or start spsbench without torchrun."
            require_alone("run", remedy)
        raise UsageError(
            f"{count} processes are asked for, and "
            + ("this one was started alone." if there == 1 else f"{there} were started."),
            flag=TENSOR_PARALLEL,
            remedy=f"Type: {launch_command(count, typed_arguments())}",
        )
    if count == 1:
        yield None
        return
    device = _device_of_ranks(config.device)
    ranks = tensor_parallel.join(device, config.draft_placement)
    try:
        yield ranks
    finally:
        ranks.end()


def launch_command(count: int, arguments: Sequence[str]) -> str:
    """Return the command that starts spsbench in so many processes of this machine."""
    command = ("torchrun", "--nproc-per-node", str(count), "-m", "spsbench")
    return shlex.join([*command, *arguments])


def _device_of_ranks(name: str) -> torch.device:
    """GPUs, one a process, or the CPU where there are none."""
    if name not in ("auto", "cpu", "cuda"):
        why = f"{name} is one device, and each process has its own."
        raise UsageError(why, flag="--device", remedy="Use auto.")
    device = resolve_device(name)
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and accelerator.type != device.type:
        raise UsageError(
            f"transformers splits a model over the devices that it sees, which are {accelerator.type}.",
            flag="--device",
            remedy="Use auto, or hide them: CUDA_VISIBLE_DEVICES= before the command.",
        )
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if device.type == "cuda" and here > torch.cuda.device_count():
        why = f"{here} processes were started on a machine with {torch.cuda.device_count()} GPUs."
        raise UsageError(why, flag=TENSOR_PARALLEL, remedy="Start as many as there are GPUs.")
    return device


def follow(ranks: tensor_parallel.Ranks) -> int:
    """Serve the first process, in any other one, until the first ends.

    It prints nothing but what went wrong here alone. It leaves Ctrl-C to the first process and dies of
    SIGTERM and SIGHUP without a word: launchers send these to all processes, and the first one explains.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
    try:
        _carry_out_orders(ranks)
        return 0
    except (tensor_parallel.OutOfStep, tensor_parallel.RankGone):
        return 0  # the first process says it, or has exited
    except SpsbenchError as error:
        print(printable(f"error: process {ranks.rank}: {error}"), file=sys.stderr, flush=True)
        return error.exit_code


def _carry_out_orders(ranks: tensor_parallel.Ranks) -> None:
    pair: Pair | None = None
    backends: EngineFactory | None = None
    while True:
        with ranks.together("waiting"):
            message = ranks.hear()
        if message.order == tensor_parallel.Order.END:
            return
        if message.order == tensor_parallel.Order.LOAD:
            pair = _load_slices(ranks, message.number or None)
            continue
        assert pair is not None, "loaded first"
        if message.order == tensor_parallel.Order.PREPARE:
            backends = EngineFactory(pair, 0, corpus=ranks.share())
        elif message.order == tensor_parallel.Order.GENERATE:
            assert backends is not None, "prepared first"
            arm, request = ranks.share()
            generate_alike(backends.build(arm), request, _split(pair))
        else:  # score or read
            _split(pair).obey(message)


def _load_slices(ranks: tensor_parallel.Ranks, threads: int | None) -> Pair:
    """Load this process's slices of the target, and where each process drafts the draft; as ``load_pair``."""
    wanted, dtypes = ranks.share()
    source = find_pair(wanted)
    device = ranks.device
    size = source.vocab_size
    target = tensor_parallel.load_split(source.target, dtypes[0], size, ranks)
    if device.type == "cpu":
        torch.set_num_threads(threads or suitable_threads(target.parameters))
    draft: CausalLM = target
    if ranks.placement == REPLICATED:
        draft = load_torch(source.draft, dtypes[1], device, size, "--draft")
    return Pair(target, draft, source.tokenizer, device, {"threads": torch.get_num_threads()})


def _split(pair: Pair) -> tensor_parallel.SplitLM:
    assert isinstance(pair.target, tensor_parallel.SplitLM)
    return pair.target


def engine_factory(
    pair: Pair, slots: int, corpus: Sequence[Sequence[int]], peer: Callable[[Arm], Engine]
) -> EngineFactory:
    ranks = pair.target.ranks if isinstance(pair.target, tensor_parallel.SplitLM) else None
    if ranks is not None and ranks.placement != FIRST:
        return AlikeEngineFactory(pair, slots, corpus)
    if ranks is not None:
        return EngineFactory(pair, slots, ranks.clock, corpus=corpus)
    return EngineFactory(pair, slots, corpus=corpus, peer=peer)


class AlikeEngineFactory(EngineFactory):
    """Builds engines whose sequences every process runs, with the first one's requests."""

    def __init__(self, pair: Pair, slots: int, corpus: Sequence[Sequence[int]]) -> None:
        self._target = _split(pair)
        super().__init__(pair, slots, self._target.ranks.clock, corpus=corpus)
        with self._target.ranks.together("the beginning"):
            self._target.ranks.tell(tensor_parallel.Order.PREPARE)
            self._target.ranks.share(tuple(corpus))

    def build(self, arm: Arm) -> Engine:
        return AlikeEngine(super().build(arm), arm, self._target)


class AlikeEngine:
    """The leading process's side: it has the others run each sequence with it."""

    def __init__(self, engine: Engine, arm: Arm, target: tensor_parallel.SplitLM) -> None:
        self.name = engine.name
        self._engine, self._arm, self._target = engine, arm, target

    def generate(self, request: Request) -> Generation:
        ranks = self._target.ranks
        with ranks.together("a sequence"):
            ranks.tell(tensor_parallel.Order.GENERATE)
            ranks.share((self._arm, request))
            return generate_alike(self._engine, request, self._target)


def generate_alike(engine: Engine, request: Request, target: tensor_parallel.SplitLM) -> Generation:
    """Generate a sequence, checked loop by loop (``SplitLM``) and as a whole against the other processes."""
    with target.ranks.together("a sequence"), target.alike():
        made = engine.generate(request)
        accepted = [loop.accepted for loop in made.loops or ()]
        target.ranks.agree([*made.tokens, *accepted], "a finished sequence")
    return made

"""A target that is split over processes by transformers' tensor parallel plan."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from functools import wraps
from typing import Any, NoReturn

import torch
from torch import Tensor, distributed
from torch.distributed.rendezvous import rendezvous

from spsbench.base.cluster import TENSOR_PARALLEL
from spsbench.base.errors import RanksFault, SpsbenchError, UsageError, first_line
from spsbench.config.models import MAX_K
from spsbench.decode.clock import Clock, SystemClock
from spsbench.models.causal_lm import LAST, CausalLM, States, text_config
from spsbench.models.choices import Choices
from spsbench.models.loading import from_pretrained
from spsbench.models.messages import GO_ON
from spsbench.models.source import ModelSource
from spsbench.models.torch_lm import TorchLM
from spsbench.models.witness import ReadBlock

# All processes are started together; who is not there after this long has failed.
_MEETING = timedelta(minutes=10)

# Later the leader may be busy with other things than models as long as it likes; torchrun ends all with it.
_PATIENCE = timedelta(days=7)

_GONE = ("connection closed", "connection reset", "broken pipe", "connection refused")
"""What gloo says of another process that has ended."""

_FIELDS = 4
_INLINE = MAX_K + 1
"""Tokens that travel with an order: as many as a loop scores. A prompt follows in its own message."""


class OutOfStep(RanksFault):
    """The processes differ in what must be the same; each of them has found it out."""


class RankGone(RanksFault):
    """Another process has ended while this one was to do something together with it."""


class Order(IntEnum):
    END = 0
    LOAD = 1
    SCORE = 2
    READ = 3
    PREPARE = 4
    GENERATE = 5


@dataclass(frozen=True, slots=True)
class OrderedForward:
    order: Order
    number: int  # of ``LOAD`` the CPU threads (0: as suits the size), of ``SCORE`` how many tokens are cached
    last: int  # rows of logits, see ``LanguageModel.score``.
    tokens: Tensor  # [n] to be read; empty where there are none


class Meter(SystemClock):
    """The machine's clock, and the seconds within collectives of torch, waiting for others included.

    They are counted where torch is called: in ``torch.distributed`` and in the functional collectives that
    DTensor uses, some of which end in a wait. One within another counts once.
    """

    def __init__(self) -> None:
        self.calls = 0
        self._spent_s, self._within = 0.0, False

    def install(self) -> None:
        """Count from now on, for the rest of the process."""
        from torch.distributed import _functional_collectives as functional

        gathering = ("all_reduce", "all_gather_single", "all_gather_tensor")
        scattering = ("reduce_scatter_single", "reduce_scatter_tensor", "wait_tensor")
        collectives = (distributed, ("all_reduce", "broadcast"))
        for module, names in (collectives, (functional, gathering + scattering)):
            for name in names:
                if hasattr(module, name):  # some were renamed between releases of torch
                    setattr(module, name, self.timed(getattr(module, name)))

    def timed(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        now = SystemClock.now

        @wraps(collective)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if self._within:
                return collective(*args, **kwargs)
            self._within, began_s = True, now()
            try:
                return collective(*args, **kwargs)
            finally:
                self._within = False
                self._spent_s += now() - began_s
                self.calls += 1

        return counted

    def communicated(self) -> float:
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s


class Ranks:
    """This process among those of a split target."""

    def __init__(self, rank: int, size: int, device: torch.device, placement: str) -> None:
        self.rank = rank
        self.size = size
        self.device = device
        self.placement = placement
        self.meter = Meter() if device.type == "cpu" else None
        self._busy = False

    @property
    def leads(self) -> bool:
        return self.rank == 0

    @property
    def clock(self) -> Clock:
        """Return the clock for engines: one that counts collectives where these can be timed."""
        return self.meter or SystemClock()

    @contextmanager
    def together(self, what: str) -> Iterator[None]:
        """Have all processes take part in the block: one that fails in it fails for all."""
        before, self._busy = self._busy, True
        try:
            yield
        except SpsbenchError:
            raise
        except Exception as error:
            reason = first_line(error).rstrip(".")
            failed = f"{what} failed in process {self.rank} of {self.size}"
            if any(sign in reason.lower() for sign in _GONE):
                why = f"{failed}: another process has ended."
                raise RankGone(why, flag=TENSOR_PARALLEL, remedy=GO_ON) from error
            raise RanksFault(f"{failed} ({reason}).", flag=TENSOR_PARALLEL, remedy=GO_ON) from error
        self._busy = before

    def tell(self, order: Order, number: int = 0, last: int = 0, tokens: Tensor | None = None) -> None:
        """Have the other processes carry out an order; ``hear`` is their side."""
        count = 0 if tokens is None else len(tokens)
        message = torch.zeros(_FIELDS + _INLINE, dtype=torch.int64)
        message[:_FIELDS] = torch.tensor([order, number, last, count])
        message = message.to(self.device)
        if tokens is not None and count <= _INLINE:
            message[_FIELDS : _FIELDS + count] = tokens
        distributed.broadcast(message, 0)
        if tokens is not None and count > _INLINE:
            distributed.broadcast(tokens.contiguous(), 0)

    def hear(self) -> OrderedForward:
        """Wait for the leader's order."""
        message = torch.zeros(_FIELDS + _INLINE, dtype=torch.int64, device=self.device)
        distributed.broadcast(message, 0)
        order, number, last, count = message[:_FIELDS].tolist()
        tokens = message[_FIELDS : _FIELDS + count]
        if count > _INLINE:
            tokens = torch.empty(count, dtype=torch.int64, device=self.device)
            distributed.broadcast(tokens, 0)
        return OrderedForward(Order(order), number, last, tokens)

    def share(self, thing: Any = None) -> Any:
        """Send a picklable object from the leader to all."""
        box = [thing]
        distributed.broadcast_object_list(box, 0, device=self.device)
        return box[0]

    def agree(self, numbers: Sequence[int], where: str) -> None:
        """Raise ``OutOfStep`` unless all processes have the same numbers, by one reduction of a checksum."""
        checksum_here = checksum(numbers)
        extremes = torch.tensor([checksum_here, -checksum_here], device=self.device)
        distributed.all_reduce(extremes, op=distributed.ReduceOp.MAX)
        largest, smallest = extremes[0], -extremes[1]
        if bool(largest != smallest):
            why = f"the {self.size} processes of the target are out of step in {where}."
            remedy = f"Use {TENSOR_PARALLEL} {self.size}, in which one process decides for all."
            raise OutOfStep(why, flag=TENSOR_PARALLEL, remedy=remedy)

    def end(self) -> None:
        """End the other processes. Those that wait in a collective for this process end when it exits."""
        if self.leads and not self._busy:
            with suppress(RuntimeError):  # one process has already ended: its error is being reported
                self.tell(Order.END)


def checksum(numbers: Sequence[int]) -> int:
    """Return 56 bits that other numbers hardly share, never negative."""
    digest = hashlib.blake2b(array("q", numbers).tobytes(), digest_size=7)
    return int.from_bytes(digest.digest(), "little")


def _meet(device: torch.device) -> None:
    """Begin the group once all processes are there."""
    # NCCL alone would do for the models; gloo beside it lets tensors of the CPU be broadcast.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    try:
        store, rank, size = next(rendezvous("env://", timeout=_MEETING))
        here = "spsbench/{}".format  # the key under which a process says that it has come
        store.set(here(rank), "")
        # The group's own timeout is too long for a process that never starts.
        store.wait([here(other) for other in range(size)], _MEETING)
    except (RuntimeError, ValueError) as error:
        reason = first_line(error).rstrip(".")
        why = f"the processes did not all join within {_MEETING.seconds // 60} min ({reason})."
        remedy = "Start them by torchrun, on machines that reach each other; what one said is above."
        raise RanksFault(why, flag=TENSOR_PARALLEL, remedy=remedy) from error
    distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_PATIENCE)


_joined: list[Ranks] = []


def joined() -> Ranks | None:
    """Return this process's rank among those of a split target, if it joined them."""
    return _joined[0] if _joined else None


def join(device: torch.device, placement: str) -> Ranks:
    """Join the processes that torchrun started; later calls return the same group."""
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if not distributed.is_initialized():
        _meet(device)
    before = joined()
    ranks = Ranks(distributed.get_rank(), distributed.get_world_size(), device, placement)
    if before is not None:
        ranks.meter = before.meter
    elif ranks.meter is not None:
        ranks.meter.install()
    _joined[:] = [ranks]
    return ranks


def require_splittable(source: ModelSource, size: int) -> None:
    """Refuse a target that transformers cannot split over so many processes, before a weight is read.

    A width that the processes do not divide is allowed: the last of them has a narrower slice.
    """
    config = text_config(source.config)
    heads = int(getattr(config, "num_attention_heads", None) or 0)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    if source.is_encoder_decoder:
        why = "is an encoder-decoder"
    elif source.quantization is not None:
        why = f"has weights quantised by {source.quantization}"
    elif not getattr(config, "base_model_tp_plan", None):
        why = f"({config.model_type}) has no tensor parallel plan in transformers"
    elif heads % size:
        why = f"has {heads} attention heads, which {size} does not divide"
    elif kv_heads % size:
        why = f"has {kv_heads} heads of keys and values, which {size} does not divide"
    else:
        return
    why = f"{source.name} {why}: it cannot be split over {size} processes."
    raise UsageError(why, flag=TENSOR_PARALLEL, remedy="Choose another N or another target, or leave it out.")


def load_split(source: ModelSource, dtype: str, vocab_size: int, ranks: Ranks) -> SplitLM:
    from transformers.distributed import DistributedConfig

    with ranks.together("loading"):
        split = {"distributed_config": DistributedConfig(tp_size=ranks.size, tp_plan="auto")}
        model = from_pretrained(source, dtype, ranks.device, "--target", split)
    return SplitLM(model.eval(), vocab_size, ranks)


class SplitLM(TorchLM):
    """A model of which each process holds its slices, and its heads' keys and values.

    In the process that leads it is a model like any other. Each forward first broadcasts to the others how
    many tokens are cached and which are read, so that they do the same (``obey``) and roll back with it.
    Within ``alike`` nothing is broadcast: every process runs the same loops, and each forward begins with a
    reduction that finds out whether its tokens and its cache are the same everywhere.
    """

    def __init__(self, model: Any, vocab_size: int | None, ranks: Ranks) -> None:
        super().__init__(model, vocab_size)
        self.ranks = ranks
        if self.kv_bytes_per_token is not None:
            self.kv_bytes_per_token //= ranks.size  # of one process
        self._is_alike = False
        self._loop = 0

    def begin(self, prompt: Sequence[int]) -> Tensor:
        pending = super().begin(prompt)
        self._loop = 0
        return pending

    # The sharding plan has a faster path without gradients, and all processes must take the same.
    @torch.inference_mode()
    def _scored(self, tokens: Tensor, last: int) -> Tensor:
        with self.ranks.together("a forward"):
            if self._is_alike:
                self.ranks.agree([self.length, *tokens.tolist()], f"loop {self._loop}")
                self._loop += 1
            else:
                self.ranks.tell(Order.SCORE, self.length, last, tokens)
            return super()._scored(tokens, last)

    @torch.inference_mode()
    def score_uncached(self, tokens: Tensor, last: int = 0) -> Tensor:
        with self.ranks.together("a forward without cache"):
            self.ranks.tell(Order.READ, 0, last, tokens)
            return super().score_uncached(tokens, last)

    def score_uncached_parts(self, tokens: Tensor, last: int, rows: int) -> Iterator[Tensor]:
        # All processes take part in a forward, and know only whole ones.
        return CausalLM.score_uncached_parts(self, tokens, last, rows)

    @torch.inference_mode()
    def score_in_blocks(
        self, tokens: Tensor, first: int, blocks: Sequence[ReadBlock], choices: Choices | None = None
    ) -> None:
        """Return None: the other ranks have no cache but their own."""

    def obey(self, message: OrderedForward) -> None:
        """Take part in a forward that the leader has begun."""
        with self.ranks.together("a forward"):
            if message.order == Order.READ:
                super().score_uncached(message.tokens, message.last)
                return
            self.rollback(message.number)
            if self.length != message.number:
                raise RanksFault(
                    f"process {self.ranks.rank} of {self.ranks.size} is out of step: it has {self.length} "
                    f"tokens cached and the first process {message.number}.",
                    flag=TENSOR_PARALLEL,
                )
            super()._scored(message.tokens, message.last)

    @contextmanager
    def alike(self) -> Iterator[None]:
        """Run the same loops in every process while the block lasts, so that nothing need be broadcast."""
        self._is_alike = True
        try:
            yield
        finally:
            self._is_alike = False

    def forward_bytes(self, rows: int = 1) -> int:
        """See ``CausalLM.forward_bytes``; of one process, which reads its slices only."""
        parts = [*self.model.parameters()]
        # What this process holds of each; some are whole in every one.
        local_bytes = sum((part.to_local() if hasattr(part, "to_local") else part).nbytes for part in parts)
        return int(super().forward_bytes(rows) * (local_bytes / sum(part.nbytes for part in parts)))

    def twin(self) -> NoReturn:
        self.with_features(TENSOR_PARALLEL)

    def with_features(self, flag: str, states: States = LAST) -> NoReturn:
        why = f"the target is split over {self.ranks.size} processes, and this needs it whole."
        remedy = f"Leave {TENSOR_PARALLEL} or what reads the target's own layers out."
        raise UsageError(why, flag=flag, remedy=remedy)

    def truncated(self, layers: int, flag: str) -> NoReturn:
        self.with_features(flag)

    def reference(self) -> NoReturn:
        self.with_features(TENSOR_PARALLEL)

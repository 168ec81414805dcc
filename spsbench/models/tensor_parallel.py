"""A target that is split over processes by transformers' tensor parallel plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor

from spsbench.errors import UsageError
from spsbench.models.causal_lm import text_config
from spsbench.models.hf_errors import typed_errors
from spsbench.models.loading import require_complete
from spsbench.models.ranks import Message, Order, Ranks, RanksFault
from spsbench.models.source import ModelSource
from spsbench.models.torch_lm import TorchLM
from spsbench.models.weights import DTYPES
from spsbench.torchrun import FLAG


def require_splittable(source: ModelSource, size: int) -> None:
    """Refuse a target that transformers cannot split over so many processes, before a weight is read.

    A width that the processes do not divide is allowed: the last of them has a narrower slice.
    """
    config = text_config(source.config)
    heads = int(getattr(config, "num_attention_heads", None) or 0)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    if source.is_encoder_decoder:
        reason = "is an encoder-decoder"
    elif source.quantization is not None:
        reason = f"has weights quantised by {source.quantization}"
    elif not getattr(config, "base_model_tp_plan", None):
        reason = f"({config.model_type}) has no tensor parallel plan in transformers"
    elif heads % size:
        reason = f"has {heads} attention heads, which {size} does not divide"
    elif kv_heads % size:
        reason = f"has {kv_heads} heads of keys and values, which {size} does not divide"
    else:
        return
    raise UsageError(
        f"{source.name} {reason}: it cannot be split over {size} processes.",
        flag=FLAG,
        remedy="Choose another N or another target, or leave it out.",
    )


def load_split(
    source: ModelSource, dtype: str, vocab_size: int, flag: str, ranks: Ranks, threads: int | None = None
) -> SplitLM:
    """Load this process's slices of a target; the leader has the others load theirs."""
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    if ranks.leads:
        ranks.tell(Order.LOAD, threads or 0)
    with ranks.together("loading"), typed_errors(source.name, flag):
        model, report = AutoModelForCausalLM.from_pretrained(
            source.location,
            revision=source.commit,
            dtype=DTYPES.get(dtype, "auto"),
            trust_remote_code=False,
            output_loading_info=True,
            distributed_config=DistributedConfig(tp_size=ranks.size, tp_plan="auto"),
        )
        require_complete(sorted(report["missing_keys"]), source.name, flag)
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
        self._is_alike = False
        self._loop = 0

    def begin(self, prompt: Sequence[int]) -> Tensor:
        pending = super().begin(prompt)
        self._loop = 0
        return pending

    # Plans have a faster way where no gradient can flow, and all processes must take the same.
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

    @torch.inference_mode()
    def obey(self, message: Message) -> None:
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
                    flag=FLAG,
                )
            super()._scored(message.tokens, message.last)

    @contextmanager
    def alike(self) -> Iterator[None]:
        """Every process runs the same loops while the block lasts, so that nothing needs to be broadcast."""
        self._is_alike = True
        try:
            yield
        finally:
            self._is_alike = False

    def forward_bytes(self, rows: int = 1) -> int:
        """See ``CausalLM.forward_bytes``; of one process, which reads its slices alone."""
        parameters = [*self.model.parameters()]
        own = sum(_local(parameter).nbytes for parameter in parameters)
        whole = sum(parameter.nbytes for parameter in parameters)
        return int(super().forward_bytes(rows) * (own / whole))

    @property
    def kv_bytes_per_token(self) -> int | None:
        """See ``CausalLM.kv_bytes_per_token``; of one process."""
        whole = super().kv_bytes_per_token
        return None if whole is None else whole // self.ranks.size

    def twin(self) -> NoReturn:
        raise self._refusal(FLAG)

    def with_features(self, flag: str) -> NoReturn:
        raise self._refusal(flag)

    def truncated(self, layers: int, flag: str) -> NoReturn:
        raise self._refusal(flag)

    def reference(self) -> NoReturn:
        raise self._refusal(FLAG)

    def _refusal(self, flag: str) -> UsageError:
        return UsageError(
            f"the target is split over {self.ranks.size} processes, and this needs it whole.",
            flag=flag,
            remedy=f"Leave {FLAG} or what reads the target's own layers out.",
        )


def _local(parameter: Tensor) -> Tensor:
    """What this process holds of a parameter; some are whole in each."""
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter

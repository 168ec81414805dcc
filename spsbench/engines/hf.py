"""Adapters for transformers' ``generate()``, plain and with its drafts.

They get the stock models with the very same weights, threads and sampling, and the stop rule that ends
our own arms. What they do inside is only watched: hooks time every forward, a stopping criterion is notified
of the new tokens. Their sums of losslessness come from the re-score alone, which knows no engine.

Time is made comparable like this: our arms have begun the prompt before the clock starts. ``generate()``
reads the prompt in the first forward of each model, so that the time of that forward beyond the median of
the others counts as prefill.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch

from spsbench.base.records import FinishReason, Generation, Loop, Request
from spsbench.decode.clock import device_now, stopwatch_of
from spsbench.decode.stopping import StopRule, TextDecoder
from spsbench.engines.buffer import phase_seconds
from spsbench.engines.messages import ASSISTED_RULE, LOOKUP_RULE
from spsbench.models.torch_lm import TorchLM

GENERATE = "hf-generate"
ASSISTED = "hf-assisted"
LOOKUP = "hf-prompt-lookup"
RULES = {ASSISTED: ASSISTED_RULE, LOOKUP: LOOKUP_RULE}


class HFGenerateEngine:
    """One of transformers' ways to generate."""

    def __init__(
        self, name: str, target: TorchLM, draft: TorchLM | None, k: int, decoder: TextDecoder
    ) -> None:
        self.name, self._k, self._decoder = name, k, decoder
        self._target, self._device = target.model, target.device
        self._models = [target.model] if draft is None else [target.model, draft.model]
        # Target and draft may be padded differently; the run uses the tokens that both have.
        self._vocab_size = target.vocab_size

    def generate(self, request: Request) -> Generation:
        """See ``Engine.generate``; loops are observed from outside.

        What was drafted and emitted is known, without betas.
        """
        self._set_defaults()
        stop = StopRule.of(request, self._decoder)
        watcher = _Watcher(stop, len(request.prompt_ids))
        prompt = torch.tensor([request.prompt_ids], device=self._device)
        drafting: dict[str, Any] = {"assistant_model": self._models[1]} if self._models[1:] else {}
        if self.name == LOOKUP:
            drafting = {"prompt_lookup_num_tokens": self._k}
        torch.manual_seed(request.seed)
        with torch.inference_mode(), ExitStack() as stack:
            seen = [stack.enter_context(_timed(model)) for model in self._models]
            for model in self._models:
                stack.enter_context(_unpadded(model, self._vocab_size))
            started = device_now(prompt.device)
            self._target.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                generation_config=self._generation_config(request),
                stopping_criteria=[watcher],
                **drafting,
            )
            ended = device_now(prompt.device)
        # The prefill: how much longer each model's first forward took than the later ones.
        verify_s = [[seconds["verify"] for seconds, _ in forwards] for forwards in seen]
        prefill_s = sum(max(0.0, s[0] - statistics.median(s[1:])) for s in verify_s if len(s) > 1)
        return Generation(
            tokens=watcher.tokens,
            text=stop.text(watcher.tokens),
            loops=self._loops(watcher, [rows for _, rows in seen[0]], len(request.prompt_ids)),
            prefill_s=prefill_s,
            decode_s=ended - started - prefill_s,
            finish_reason=watcher.reason or "length",
        )

    def _set_defaults(self) -> None:
        """Before each sequence: arms share the models, and each has its own K."""
        from transformers import GenerationConfig

        for model in self._models:
            model.generation_config = GenerationConfig()  # a checkpoint's own defaults are not the task's
        for draft in self._models[1:]:
            draft.generation_config.num_assistant_tokens = self._k
            draft.generation_config.num_assistant_tokens_schedule = "constant"
            draft.generation_config.assistant_confidence_threshold = 0.0

    def _generation_config(self, request: Request) -> Any:
        from transformers import GenerationConfig

        eos = None if request.fixed_length else sorted(self._decoder.eos_ids)
        params = request.sampling
        how: dict[str, Any] = {"do_sample": not params.greedy}
        if not params.greedy:
            how |= {"temperature": params.temperature, "top_k": params.top_k, "top_p": params.top_p}
        return GenerationConfig(
            max_new_tokens=request.max_new_tokens,
            eos_token_id=eos or None,
            pad_token_id=min(self._decoder.eos_ids, default=0),
            **how,
        )

    def _loops(self, watcher: _Watcher, rows: Sequence[int], prompt_tokens: int) -> list[Loop]:
        """One record for each forward of the target; only the whole loop is timed."""
        rows = [rows[0] - prompt_tokens + 1, *rows[1:]]
        loops = []
        for number, step in enumerate(watcher.steps):
            drafted = rows[number] - 1
            accepted = min(step.written - 1, drafted)
            loops.append(
                Loop(
                    drafted=drafted,
                    accepted=accepted,
                    emitted=step.kept,
                    tested=min(accepted + 1, drafted),
                    beta_sum=float("nan"),
                    truncated=step.written - step.kept,
                    **phase_seconds({"other": step.seconds}, phases=False),
                )
            )
        return loops


class _Step(NamedTuple):
    """A loop as it is seen from outside; the first one's seconds include reading the prompt."""

    written: int
    kept: int
    seconds: float


class _Watcher:
    """A stopping criterion that keeps our stop rule and remembers what each loop brought."""

    def __init__(self, stop: StopRule, prompt_tokens: int) -> None:
        self.tokens: list[int] = []
        self.reason: FinishReason | None = None
        self.steps: list[_Step] = []
        self._stop, self._read = stop, prompt_tokens
        self._last = time.perf_counter()

    def __call__(self, ids: torch.Tensor, scores: Any, **others: Any) -> torch.Tensor:
        """Record the whole sequence; called by ``generate()`` after every loop."""
        fresh = ids[0, self._read :].tolist()
        self._read = ids.shape[1]
        kept, self.reason = self._stop.cut(self.tokens, fresh)
        self.tokens += fresh[:kept]
        now = time.perf_counter()
        self.steps.append(_Step(len(fresh), kept, now - self._last))
        self._last = now
        return torch.full((1,), self.reason is not None, device=ids.device)


@contextmanager
def _unpadded(model: Any, vocab_size: int) -> Iterator[None]:
    """Give a model ``vocab_size`` logits, and its configuration the same, while the block lasts.

    transformers takes two models for strangers whose configurations name unlike sizes, and would sample
    tokens that only pad the embedding.
    """

    def cut(module: Any, positional: Any, output: Any) -> Any:
        output.logits = output.logits[..., :vocab_size]
        return output

    config = model.config.get_text_config(decoder=True)
    stored, config.vocab_size = config.vocab_size, vocab_size
    handle = model.register_forward_hook(cut)
    try:
        yield
    finally:
        handle.remove()
        config.vocab_size = stored


@contextmanager
def _timed(model: Any) -> Iterator[list[tuple[Mapping[str, float], int]]]:
    """Seconds (as the phase ``verify``) and rows of each forward of a model while the block lasts.

    On CUDA they are of events around the forward, which nothing waits for: look into them afterwards.
    """
    seen: list[tuple[Mapping[str, float], int]] = []
    watch = stopwatch_of(model.device)

    def before(module: Any, positional: Any, named: dict[str, Any]) -> None:
        watch.start()

    def after(module: Any, positional: Any, named: dict[str, Any], output: Any) -> None:
        watch.lap("verify")
        ids = named["input_ids"] if "input_ids" in named else positional[0]
        seen.append((watch.take(), int(ids.shape[1])))

    handles: list[Callable[[], None]] = [
        model.register_forward_pre_hook(before, with_kwargs=True).remove,
        model.register_forward_hook(after, with_kwargs=True).remove,
    ]
    try:
        yield seen
    finally:
        for remove in handles:
            remove()

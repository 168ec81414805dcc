"""Beam search as an engine: exact, or the same by speculation.

What a record says of a loop, which is one pass of the target, is about steps of the search and not about
tokens of the output, since a step adds a token to every beam and the output is one of them in the end:

* ``drafted``: steps that the draft proposed, at most K, without those after the end of the search; 0
  without a draft.
* ``accepted``: of these, steps after which all of the target's beams were among the draft's.
* ``tested``: ``accepted``, and one more if the beams left the draft's.
* ``emitted``: steps that the loop gave, 1 to K+1. Over a sequence they add up to the length of the search,
  which is that of the output or more.
* ``truncated``: 0. No step is made that plain beam search would not make.
* ``beta_sum``: NaN where something was drafted: no probability of acceptance exists.

``decode_s`` is of the whole search, so time per token is the search's time over the best output's length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from spsbench.decode.beam import (
    BeamLoop,
    BeamSearch,
    DraftSearch,
    Ends,
    Node,
    TreeModel,
    beam_search,
    beam_speculative,
)
from spsbench.decode.clock import Clock, Stopwatch, device_now
from spsbench.decode.stopping import StopRule, TextDecoder
from spsbench.records import BEAM_CLOSEST, BEAM_LOG_PROB, BeamParams, FinishReason, Generation, Loop, Request


class BeamEngine:
    """Finds the most probable outputs by beam search."""

    name = "beam"

    def __init__(
        self,
        target: TreeModel,
        draft: TreeModel | None,
        k: int,
        decoder: TextDecoder,
        device: torch.device,
        clock: Clock,
    ) -> None:
        self._target, self._draft, self._k = target, draft, k
        self._decoder, self._device, self._clock = decoder, device, clock

    def generate(self, request: Request) -> Generation:
        """See ``Engine.generate``; the tokens are those of the best hypothesis, and nothing is traced."""
        params = request.sampling.beam
        assert params is not None, "asked for beam search"
        stop = StopRule.of(request, self._decoder)
        ends, end_tokens = ends_of(stop), 0 if request.fixed_length else len(stop.eos_ids)
        search = BeamSearch(Node(request.prompt_ids[-1]), params, ends, end_tokens, request.max_new_tokens)
        with torch.inference_mode():
            started = device_now(self._device, self._clock)
            for model in (self._target, self._draft):
                if model is not None:
                    model.begin(request.prompt_ids)
            prefilled = device_now(self._device, self._clock)
            watch = Stopwatch(self._clock)
            found = self._loops(search, params, DraftSearch(params.draft_width, ends, end_tokens), watch)
            loops = [_record(loop, watch.take(), phases=self._device.type == "cpu") for loop in found]
            ended = device_now(self._device, self._clock)
        best = search.hypotheses[0]
        return Generation(
            tokens=list(best.tokens),
            text=stop.text(best.tokens),
            loops=loops,
            prefill_s=prefilled - started,
            decode_s=ended - prefilled,
            finish_reason=best.reason,
            losslessness={BEAM_LOG_PROB: best.log_prob} | _closest(search),
            hypotheses=search.hypotheses,
        )

    def _loops(
        self, search: BeamSearch, params: BeamParams, grow: DraftSearch, watch: Stopwatch
    ) -> Iterator[BeamLoop]:
        if self._draft is None:
            return beam_search(self._target, search, watch)
        return beam_speculative(self._target, self._draft, search, self._k, watch, grow)


def _closest(search: BeamSearch) -> dict[str, float]:
    return {BEAM_CLOSEST: search.closest} if math.isfinite(search.closest) else {}


def ends_of(stop: StopRule) -> Ends:
    """The stop rule of all arms, applied to one token after a node."""

    def ends(parent: Node, token: int) -> FinishReason | None:
        # Without stop strings the rule looks at the number of tokens alone.
        before = parent.tokens() if stop.stop else range(parent.depth)
        return stop.cut(before, [token])[1]

    return ends


def _record(loop: BeamLoop, seconds: dict[str, float], *, phases: bool) -> Loop:
    return Loop(
        drafted=loop.drafted,
        accepted=loop.accepted,
        emitted=loop.steps,
        tested=min(loop.accepted + 1, loop.drafted),
        beta_sum=float("nan") if loop.drafted else 0.0,
        truncated=0,
        draft_s=seconds["draft"] if phases else None,
        verify_s=seconds["verify"] if phases else None,
        sample_s=seconds["sample"] if phases else None,
        other_s=seconds["other"] if phases else None,
        loop_s=sum(seconds.values()),
    )

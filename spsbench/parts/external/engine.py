"""A peer as an ``Engine``: what it is asked, where its output ends, and what its times are of.

An engine is given EOS and the tokens that hold a stop string of one character, and must end there. A longer
stop string may be spread over tokens: the output is cut afterwards, by the rule that cuts ours.

Our arms pay for each token they emit; an engine whose prefill gives the first token pays for one fewer. So
its decoding time is divided by the tokens that it paid for (``decoded``), every token of the output costs
that much, and what this adds to decoding it takes from the prefill. Loops beyond the end count whole, as in
our arms. Missing figures are read against the engine: without ``decoded`` one fewer than emitted is taken,
and where prefill and decoding are not separated, or nothing was decoded, the whole request is decoding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from spsbench.base import Generation, Loop, Request, SamplingParams, protocol, shown_engine
from spsbench.decode import StopRule, TextDecoder
from spsbench.parts.external.messages import (
    DECODED_UNREPORTED,
    PREFILL_NOT_SEPARATED,
    SettingDiffers,
    SettingsUnreported,
)


def sampling_of(params: SamplingParams) -> protocol.Sampling:
    """The same sampling as an engine is asked for it."""
    record = params.record()
    process: dict[str, Any] = record.pop("process", None) or {}
    process.pop("convention", None)
    if process:
        process["logit_bias"] = {str(token): bias for token, bias in process["logit_bias"]}
        process["bad_words"] = [list(word) for word in process["bad_words"]]
    return protocol.Sampling(**record, **process)


_SLACK, _SLACK_S = 1.05, 0.01
"""How much longer than the request an engine's times may be: clocks differ, and hours are not rounding."""


class PeerEngine:
    """Generates with an external engine, of whose logits ``vocab_size`` are the models'.

    The clock, in seconds, is for engines that report no times.
    """

    def __init__(
        self,
        name: str,
        peer: protocol.Peer,
        decoder: TextDecoder,
        vocab_size: int,
        k: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.name, self._peer, self._decoder = name, peer, decoder
        self._vocab_size, self._k, self._clock = vocab_size, k, clock
        self._gone: str | None = None
        self.unseen: dict[str, None] = {}

    def describe(self) -> protocol.Described:
        """Start the engine, if need be, and ask what it is."""
        described = self._peer.describe()
        if described.vocab_size is not None and described.vocab_size < self._vocab_size:
            self.close()
            raise protocol.PeerGone(
                f"it has logits of {described.vocab_size} tokens and the models "
                f"{self._vocab_size}: another model"
            )
        return described

    def generate(self, request: Request) -> Generation:
        if self._gone is not None:
            raise protocol.PeerGone(self._gone)
        ask = self._ask(request)
        try:
            self._peer.describe()  # restarting it is not part of the request
            began_s = self._clock()
            answer = self._peer.generate(ask)
        except protocol.PeerGone as error:
            self._gone = f"it was given up: {error}"
            raise
        took_s = self._clock() - began_s
        return self._generation(request, protocol.checked(answer, ask, self._vocab_size), took_s)

    @property
    def pid(self) -> int | None:
        """Id of the process that computes; None while there is none, and for a server elsewhere."""
        return getattr(self._peer, "pid", None)

    def close(self) -> None:
        self._peer.close()

    def _ask(self, request: Request) -> protocol.Ask:
        stop = () if request.fixed_length else request.stop
        ends = [] if request.fixed_length else ids_that_end(stop, self._decoder, self._vocab_size)
        return protocol.Ask(
            prompt_ids=list(request.prompt_ids),
            max_new_tokens=request.max_new_tokens,
            stop_ids=ends,
            stop=list(stop_characters(stop)),
            sampling=sampling_of(request.sampling),
            seed=protocol.request_seed(request.seed),
        )

    def _generation(self, request: Request, answer: protocol.Answer, took_s: float) -> Generation:
        stop = StopRule.of(request, self._decoder)
        kept, reason = stop.cut([], answer.output_ids)
        if reason is None:
            raise protocol.PeerError("its output ended where it should have gone on")
        tokens = answer.output_ids[:kept]
        if answer.decode_ms is None:
            self.unseen[PREFILL_NOT_SEPARATED] = None
        elif answer.decoded is None:
            self.unseen[DECODED_UNREPORTED] = None
        prefill_s, decode_s = spent(answer, kept, took_s)
        loops = loops_of(answer, kept, self._k)
        return Generation(tokens, stop.text(tokens), loops, prefill_s, decode_s, reason)


def spent(answer: protocol.Answer, kept: int, took_s: float) -> tuple[float, float]:
    """The seconds of prefill and of decoding that the kept tokens cost; see the module."""
    emitted = len(answer.output_ids)
    _require_possible_times(answer, took_s)
    whole_s = took_s if answer.wall_ms is None else answer.wall_ms / 1e3
    if answer.decode_ms is None:
        return 0.0, whole_s * kept / emitted
    decode_s = answer.decode_ms / 1e3
    prefill_s = max(0.0, whole_s - decode_s) if answer.prefill_ms is None else answer.prefill_ms / 1e3
    decoded = emitted - 1 if answer.decoded is None else answer.decoded
    paid = min(decoded, emitted)
    if paid < 1:
        return 0.0, (prefill_s + decode_s) * kept / emitted
    each_s = decode_s / paid
    return max(0.0, prefill_s - (emitted - paid) * each_s), kept * each_s


def _require_possible_times(answer: protocol.Answer, took_s: float) -> None:
    for name in ("prefill_ms", "decode_ms", "wall_ms"):
        if (getattr(answer, name) or 0) < 0:
            raise protocol.PeerError(f"its {name} is {getattr(answer, name):g}")
    if answer.decode_ms == 0 and answer.decoded != 0 and len(answer.output_ids) > 1:
        raise protocol.PeerError("its decode_ms is 0")
    parts_s = ((answer.prefill_ms or 0.0) + (answer.decode_ms or 0.0)) / 1e3
    longest_s = max(parts_s, (answer.wall_ms or 0.0) / 1e3)
    if longest_s > took_s * _SLACK + _SLACK_S:
        raise protocol.PeerError(f"it reports {longest_s:.3g} s for a request that took {took_s:.3g} s")


_UNSEEN = float("nan")


def loops_of(answer: protocol.Answer, kept: int, k: int) -> list[Loop] | None:
    """A record for each loop of the output; None unless all of them follow from the report.

    A record needs what each loop drafted, accepted and emitted. ``accepted_per_loop`` gives the second; the
    third is one more, but for the last. Of the first the protocol has only the sum, which gives each where
    it is K for every loop. Nothing is made up for an engine that drafted fewer somewhere, that reports sums
    only or whose loops do not add up to its tokens. Seconds are those of the request: a loop has none.
    """
    accepted = answer.accepted_per_loop
    if k == 0:  # a loop emits one token
        known = answer.loops is not None and answer.loops == answer.decoded
        accepted = [0] * (answer.loops or 0) if known else None
    elif accepted is not None and answer.drafted != k * len(accepted):
        return None
    if accepted is None or any(not 0 <= count <= k for count in accepted):
        return None
    emitted = len(answer.output_ids)
    free = 0 if answer.decoded is None else max(0, emitted - answer.decoded)
    if not add_up(accepted, emitted - free):
        return None
    loops = list[Loop]()
    room = max(0, kept - free)
    for count in accepted:  # those after the end of the output belong to what was cut off
        if room <= 0:
            break
        some = min(count + 1, room)
        room -= some
        loops.append(
            Loop(
                drafted=k,
                accepted=count,
                emitted=some,
                tested=min(count + 1, k),
                beta_sum=_UNSEEN if k else 0.0,
                truncated=count + 1 - some,
                draft_s=None,
                verify_s=None,
                sample_s=None,
                other_s=None,
                loop_s=_UNSEEN,
            )
        )
    return loops


def add_up(accepted: list[int], emitted: int) -> bool:
    """Whether the loops end with the last token, or the last loop reaches beyond it."""
    if not accepted:
        return emitted == 0
    before = sum(accepted[:-1]) + len(accepted) - 1
    return before < emitted <= before + accepted[-1] + 1


def ids_that_end(stop: Sequence[str], decoder: TextDecoder, vocab_size: int) -> list[int]:
    """EOS and every token that holds a stop string of one character; others may be spread over tokens."""
    return sorted(decoder.eos_ids | _tokens_holding(decoder.decode, stop_characters(stop), vocab_size))


def stop_characters(stop: Sequence[str]) -> tuple[str, ...]:
    """The stop strings of one character."""
    return tuple(text for text in stop if len(text) == 1)


@lru_cache(maxsize=16)
def _tokens_holding(
    decode: Callable[[Sequence[int]], str], characters: tuple[str, ...], vocab_size: int
) -> frozenset[int]:
    """Any of these characters; a vocabulary is decoded once."""
    if not characters:
        return frozenset()
    texts = ((token, decode([token])) for token in range(vocab_size))
    return frozenset(token for token, text in texts if any(character in text for character in characters))


# --- did engines run with the same settings? ---

OF_SAMPLING = ("top_p", "sampler_order")
"""Settings without effect where nothing is sampled."""

_SAME = {
    **dict.fromkeys(("f32", "fp32"), "float32"),
    **dict.fromkeys(("f16", "fp16"), "float16"),
    "bf16": "bfloat16",
    **dict.fromkeys(("none", "off", "no", "disabled"), "false"),
    **dict.fromkeys(("on", "yes", "enabled"), "true"),
}


@dataclass(frozen=True, slots=True)
class PeerRun:
    """What one arm ran with: ``engine`` is the place on the axis, ``settings`` are as in ``Described``."""

    label: str
    engine: str
    settings: Mapping[str, Any]


def unequal(arms: Sequence[PeerRun], *, sampled: bool = True) -> list[str]:
    """A sentence for each setting of ``SETTINGS`` that differs between arms or is not reported."""
    names = [name for name in protocol.SETTINGS if sampled or name not in OF_SAMPLING]
    groups = {name: _arms_by_value(name, arms) for name in names}
    sentences = []
    for name, values in groups.items():
        reported = {value: who for value, who in values.items() if value}
        if len(reported) > 1:
            sentences.append(str(SettingDiffers(name, protocol.SETTINGS[name], reported)))
    unreported = {name: values[None] for name, values in groups.items() if None in values}
    for who in dict.fromkeys(unreported.values()):
        theirs = [name for name, other in unreported.items() if other == who]
        sentences.append(str(SettingsUnreported(who, theirs)))
    return sentences


def _arms_by_value(name: str, arms: Sequence[PeerRun]) -> dict[str | None, str]:
    """None for a setting that is not reported."""
    groups: dict[str | None, list[PeerRun]] = {}
    for arm in arms:
        groups.setdefault(spelled(arm.settings.get(name)), []).append(arm)
    return {value: _engine_names(group, arms) for value, group in groups.items()}


def _engine_names(some: Sequence[PeerRun], arms: Sequence[PeerRun]) -> str:
    """Engines by name where all of their arms are meant, else arms by label."""
    names: dict[str, None] = {}
    for arm in some:
        whole = all(other in some for other in arms if other.engine == arm.engine)
        names[shown_engine(arm.engine) if whole else arm.label] = None
    return ", ".join(names)


def spelled(value: Any) -> str | None:
    """A value as it is compared and shown, in one spelling."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return ", ".join(spelled(part) or "null" for part in value)
    text = str(value).strip().lower().replace("-", "_")
    return _SAME.get(text, text)

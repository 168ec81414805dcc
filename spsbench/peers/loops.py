"""Loops of an external engine, as far as it reports them."""

from __future__ import annotations

from spsbench.peers.protocol import Answer
from spsbench.records import Loop

_UNSEEN = float("nan")


def loops_of(answer: Answer, kept: int, k: int) -> list[Loop] | None:
    """One record a loop that went into the output; None unless all of them follow from what was reported.

    A record needs what each loop drafted, accepted and emitted. ``accepted_per_loop`` gives the second; the
    third is one more, but for the last. Of the first the protocol has only the sum, which gives each where
    it is K for every loop. Nothing is made up for an engine that drafted fewer somewhere, that reports sums
    only or whose loops do not add up to its tokens. Seconds are those of the request: a loop has none.
    """
    accepted = answer.accepted_per_loop
    if k == 0:
        accepted = _alone(answer)
    elif accepted is not None and answer.drafted != k * len(accepted):
        return None
    if accepted is None or any(not 0 <= count <= k for count in accepted):
        return None
    emitted = len(answer.output_ids)
    free = 0 if answer.decoded is None else max(0, emitted - answer.decoded)
    if not add_up(accepted, emitted - free):
        return None
    return _records(accepted, max(0, kept - free), k)


def _alone(answer: Answer) -> list[int] | None:
    """Without a draft a loop emits one token; None unless their number is reported and agrees."""
    told = answer.loops is not None and answer.loops == answer.decoded
    return [0] * answer.loops if told and answer.loops is not None else None


def add_up(accepted: list[int], emitted: int) -> bool:
    """Whether the loops end with the last token, or within the last loop after it."""
    if not accepted:
        return emitted == 0
    before = sum(accepted[:-1]) + len(accepted) - 1
    return before < emitted <= before + accepted[-1] + 1


def _records(accepted: list[int], room: int, k: int) -> list[Loop]:
    """The loops up to the end of the output; those after it belong to what was cut off."""
    loops = []
    for count in accepted:
        if room <= 0:
            break
        emitted = min(count + 1, room)
        room -= emitted
        loops.append(
            Loop(
                drafted=k,
                accepted=count,
                emitted=emitted,
                tested=min(count + 1, k),
                beta_sum=_UNSEEN if k else 0.0,
                truncated=count + 1 - emitted,
                draft_s=None,
                verify_s=None,
                sample_s=None,
                other_s=None,
                loop_s=_UNSEEN,
            )
        )
    return loops

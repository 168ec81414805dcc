"""Which tokens end an output, for an engine that knows no strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from spsbench.decode.stopping import TextDecoder
from spsbench.records import Request


def stop_ids(request: Request, decoder: TextDecoder, vocab_size: int) -> list[int]:
    """EOS, and every token that holds one of the stop strings of one character.

    A stop string of several characters may be spread over tokens: no set of ids says where it ends.
    """
    return [] if request.fixed_length else ids_that_end(request.stop, decoder, vocab_size)


def ids_that_end(stop: Sequence[str], decoder: TextDecoder, vocab_size: int) -> list[int]:
    """As ``stop_ids``, of stop strings alone."""
    return sorted(decoder.eos_ids | _holding(decoder.decode, _characters(stop), vocab_size))


def stop_characters(request: Request) -> tuple[str, ...]:
    """The stop strings of one character."""
    return () if request.fixed_length else _characters(request.stop)


def _characters(stop: Sequence[str]) -> tuple[str, ...]:
    return tuple(text for text in stop if len(text) == 1)


@lru_cache(maxsize=16)
def _holding(
    decode: Callable[[Sequence[int]], str], characters: tuple[str, ...], vocab_size: int
) -> frozenset[int]:
    """Every token whose text holds one of some characters; a vocabulary is decoded once."""
    if not characters:
        return frozenset()
    texts = ((token, decode([token])) for token in range(vocab_size))
    return frozenset(token for token, text in texts if any(one in text for one in characters))

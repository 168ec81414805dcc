"""Which tokens end an output, for an engine without stop strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from spsbench.decode.stopping import TextDecoder


def ids_that_end(stop: Sequence[str], decoder: TextDecoder, vocab_size: int) -> list[int]:
    """EOS, and every token that holds one of the stop strings of one character.

    A stop string of several characters may be spread over tokens: no set of ids says where it ends.
    """
    return sorted(decoder.eos_ids | _holding(decoder.decode, stop_characters(stop), vocab_size))


def stop_characters(stop: Sequence[str]) -> tuple[str, ...]:
    """The stop strings of one character."""
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

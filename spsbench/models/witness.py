"""A text read again in blocks, by transformers' own cache: what the rows of loops are held against.

It shares nothing with the cache that loops roll back. Read in other blocks, a text shows what rounding does
to its rows. Read in the loops' own blocks, with the rejected tokens behind the kept ones, every forward has
the shapes that it had in the loop: a right loop's rows come out again, whatever rounding does to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from spsbench.models.choices import Choices, watching


class ReadBlock(NamedTuple):
    """What one forward reads: so many tokens of a text, then others, which are forgotten again."""

    kept: int
    dropped: tuple[int, ...] = ()


def even_blocks(n: int, width: int) -> list[ReadBlock]:
    """Return how n tokens are read so many at a time."""
    return [ReadBlock(min(width, n - start)) for start in range(0, n, width)]


def fresh_cache(config: Any) -> Cache:
    """Return transformers' own cache, with a place for every token, as the loops' cache has one.

    A window's own layer would keep the window alone, and sum other columns.
    """
    cache = DynamicCache(config=config)
    if all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in cache.layers):
        return DynamicCache()
    cache.activate_past_recording()
    return cache


def read_in_blocks(
    forward: Callable[[Tensor, Cache], Tensor],
    cache: Cache,
    tokens: Tensor,
    first: int,
    blocks: Sequence[ReadBlock],
    choices: Choices | None = None,
) -> Iterator[Tensor]:
    """Yield logits [kept, V] of each block, see ``CausalLM.score_in_blocks``.

    Args:
        forward: from ids [1, n] and a cache to logits [n, V].
        cache: holds the tokens before ``first``.
        tokens: [m].
        first: where blocks begin.
        choices: remembers those for the kept tokens.
    """
    for kept, dropped in blocks:
        block, first = tokens[first : first + kept], first + kept
        ids = torch.cat([block, block.new_tensor(dropped)]) if dropped else block
        with watching(choices):
            logits = forward(ids.unsqueeze(0), cache)
        if choices is not None:
            choices.forward_ended(len(ids), kept)
        yield logits[:kept]
        if dropped:
            cache.crop(-len(dropped))

"""Where the source of an encoder-decoder ends and what its decoder writes begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Border:
    """The tokens between a source and an output, by which one list of tokens is both.

    Attributes:
        ending: that close every source, as the tokenizer writes them (``</s>``); may be empty.
    """

    ending: tuple[int, ...]
    start: tuple[int, ...]

    def source_length(self, tokens: Sequence[int]) -> int:
        """Number of source tokens, ``ending`` included: up to the first ``start`` after an ``ending``."""
        mark, width = self.ending + self.start, len(self.ending)
        for place in range(len(tokens) - len(mark) + 1):
            if tuple(tokens[place : place + len(mark)]) == mark and place + width:
                return place + width
        raise ValueError(f"no source that ends with {list(self.ending)} and {list(self.start)} after it")

    def written(self, tokens: Sequence[int]) -> int:
        """Number of tokens that the decoder reads, ``start`` included."""
        return len(tokens) - self.source_length(tokens)

    def prompt_of(self, tokens: Tensor) -> Tensor:
        """Any tokens [n] as a source, closed, with what the decoder starts with after it."""
        return torch.cat([tokens, tokens.new_tensor((*self.ending, *self.start))])

    def opened(self, source: Sequence[int]) -> list[int]:
        """A source and what the decoder starts with."""
        tokens = [*source, *self.start]
        if self.source_length(tokens) != len(source):
            raise ValueError("the text holds the tokens with which the decoder starts")
        return tokens

"""In what a model computes, and how its weights are kept: ``bfloat16``, ``int8``, ``bfloat16+int8``."""

from __future__ import annotations

from dataclasses import dataclass

from spsbench.errors import UsageError

_AUTO = "auto"
NONE = "none"
QUANTISED = {"int8": 8, "int4": 4}
"""Bits of quantised weights, by name."""


@dataclass(frozen=True, slots=True)
class Precision:
    """A dtype, and the bits of the weights where they are quantised.

    Attributes:
        dtype: that the model computes in; ``auto`` for the checkpoint's own.
        quantise: ``int8`` or ``int4``; None keeps the weights in that dtype.
    """

    dtype: str = _AUTO
    quantise: str | None = None

    @classmethod
    def read(cls, text: str) -> Precision:
        """What ``str`` of one gave; ``int8`` alone computes in the checkpoint's own dtype."""
        dtype, _, quantise = text.rpartition("+")
        if text in QUANTISED:
            return cls(_AUTO, text)
        return cls(dtype, quantise) if dtype else cls(text)

    def __str__(self) -> str:
        if self.quantise is None:
            return self.dtype
        return self.quantise if self.dtype == _AUTO else f"{self.dtype}+{self.quantise}"

    @property
    def bits(self) -> int | None:
        """Of a quantised weight; None if they are not quantised."""
        return None if self.quantise is None else QUANTISED[self.quantise]


def precision_of(dtype: str, quantise: str | None) -> Precision:
    """What ``--dtype`` and ``--quantise`` ask for together."""
    asked = Precision.read(dtype)
    return asked if quantise is None else Precision(asked.dtype, quantise)


def draft_precision_of(target: Precision, short: bool, dtype: str, quantise: str | None) -> Precision:
    """What the draft is loaded in: as the target, unless something is said of it alone."""
    own = Precision.read(dtype)
    if own.quantise is not None:
        return own
    inherited = None if short and dtype != _AUTO else target.quantise
    kept = inherited if quantise is None else None if quantise == NONE else quantise
    return Precision(target.dtype if dtype == _AUTO else dtype, kept)


def require_one_spelling(flag: str, dtype: str, quantise: str | None) -> None:
    """Refuse ``--dtype int8`` beside ``--quantise``, which says the same or something else."""
    if dtype in QUANTISED and quantise is not None:
        raise UsageError(
            f"{quantise} is given together with the dtype {dtype}, which is short for {flag} {dtype}.",
            flag=flag,
            remedy="Leave one of the two out, or give the float to compute in as dtype.",
        )

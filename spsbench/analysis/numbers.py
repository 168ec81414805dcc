"""Numbers on their way into JSON: plain Python types, and null for what does not exist."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def finite(value: Any) -> float | None:
    """The value as a float, or None where it is missing, not a number or infinite."""
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def ratio(numerator: float, denominator: float) -> float | None:
    """Their quotient, or None where it does not exist."""
    if not denominator:
        return None
    return finite(numerator / denominator)


def plain(value: Any) -> Any:
    """The value with every part in JSON's own types: numpy unwrapped, NaN and infinity as None."""
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(part) for part in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return finite(value)
    return value

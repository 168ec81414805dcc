"""Arrays of numpy, by what they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

Singles = npt.NDArray[np.float32]
"""As weights are held."""

AnyFloats = npt.NDArray[np.floating[Any]]
"""Of whichever precision logits came in."""

"""The final answer of a worked solution, equal to the reference as mathematics, by ``math_verify``."""

from __future__ import annotations

import threading
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from spsbench.base.errors import UnavailableError
from spsbench.tasks.metrics.kind import MetricKind, Texts

_LONGEST_S = 5
"""The library's own limit for reading a text, and for a comparison; what takes longer is not equal. It is a
signal's, which the first thread alone can take."""


def require() -> None:
    """Refuse where the library is missing."""
    if find_spec("math_verify") is None:
        raise UnavailableError(
            "the metric math_answer needs the package math-verify, which is not installed.",
            flag="metrics",
            remedy="Install the extra: pip install 'spsbench[maths]'. Or give --no-score.",
        )


def math_answer(prompts: Texts, outputs: Texts, references: Texts) -> list[float]:
    """Return 1 where an output arrives at the reference's value, else 0: 1/2, 0.5 and 2/4 are the same.

    What an output arrives at is its last box, else its last expression. A reference is LaTeX without dollars.
    """
    require()
    from math_verify import parse, verify

    limit = _LONGEST_S if threading.current_thread() is threading.main_thread() else None

    def read(text: str) -> list[Any]:
        return list(parse(text, parsing_timeout=limit))

    pairs = zip(outputs, references, strict=True)
    return [float(verify(read(f"${wanted}$"), read(text), timeout_seconds=limit)) for text, wanted in pairs]


def _signature() -> str:
    try:
        return f"math-verify:{version('math-verify')}"
    except PackageNotFoundError:  # generated here, to be scored elsewhere
        return "math-verify: not here"


MATH_ANSWER = MetricKind(
    "math_answer",
    "1 if the output's last box, else expression, equals the reference as mathematics, else 0.",
    math_answer,
    margin=0.02,
    needs="the extra maths",
    signature=_signature,
    require=require,
)

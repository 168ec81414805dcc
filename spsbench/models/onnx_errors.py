"""Errors of ONNX Runtime as Python's own: its classes have no base that a handler could name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


def runtime_errors() -> tuple[type[Exception], ...]:
    """Return what the runtime raises: its own errors have no base, and its bindings raise Python's."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    raised = [kind for kind in vars(state).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    return (RuntimeError, *raised)


def run_bound(session: InferenceSession, binding: Any) -> None:
    """Run a forward that is bound.

    Raises:
        RuntimeError: as torch's forward would; an error of the runtime's own would pass every handler of it.
    """
    try:
        session.run_with_iobinding(binding)
    except runtime_errors() as error:
        raise as_python(error) from error


def as_python(error: Exception) -> RuntimeError:
    """Return an error of the runtime as Python's own, with its whole message."""
    return RuntimeError("ONNX Runtime: " + (_CODE.sub("", str(error)) or type(error).__name__))


_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")

"""Tasks: load examples, build prompts, stop, score."""

from spsbench.faces import face

__getattr__, __all__ = face(__name__, __file__)

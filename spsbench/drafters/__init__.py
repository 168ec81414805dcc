"""Drafters, which propose the next K tokens. They see tokens, never the target's answer."""

from spsbench.faces import face

__getattr__, __all__ = face(__name__, __file__)

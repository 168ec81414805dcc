"""Engines: from a request to a generation with its records."""

from spsbench.faces import face

__getattr__, __all__ = face(__name__, __file__)

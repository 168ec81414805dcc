"""The run directory: everything a run leaves behind, appended as it goes; no other room writes its files."""

from spsbench.faces import face

__getattr__, __all__ = face(__name__, __file__)

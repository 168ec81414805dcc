"""The statistics of the tables: acceptance, speedup, parity, losslessness; pure functions of the tables."""

from spsbench.faces import face

__getattr__, __all__ = face(__name__, __file__)

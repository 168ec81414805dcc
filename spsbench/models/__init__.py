"""Language models behind one small protocol; the only owners of KV caches."""

from spsbench.faces import face

__getattr__, __all__ = face(__name__, __file__)

"""Laws about texts: theory, enumeration, re-derivation, evidence and the loops over a text."""

from spsbench.faces import face

__getattr__, __all__ = face(__name__, __file__)

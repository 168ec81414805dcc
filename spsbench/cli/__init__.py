"""The command line: one short function per command; everything heavy is imported inside them."""

from spsbench.faces import face

__getattr__, __all__ = face(__name__, __file__)

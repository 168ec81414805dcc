"""What every room stands on: errors, files, records, axes, plugins and the environment."""

from spsbench.faces import face

__getattr__, __all__ = face(__name__, __file__)

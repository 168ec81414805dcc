"""From a configuration to a finished run: plan everything, measure the arms in turns, finalize."""

from spsbench.faces import face

__getattr__, __all__ = face(__name__, __file__)

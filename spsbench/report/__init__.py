"""How results are shown: every table is a pure function of the summary and the run's own record."""

from spsbench.faces import face

__getattr__, __all__ = face(__name__, __file__)

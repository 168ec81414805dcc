"""What a run is asked to do: validated settings and where they come from."""

from spsbench.faces import face

__getattr__, __all__ = face(__name__, __file__)

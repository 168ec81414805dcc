"""spsbench: speculative sampling against plain sampling, measured side by side.

The names that other programs use are in ``__init__.pyi``; each is imported when it is first used, so that
``import spsbench`` stays light.
"""

from __future__ import annotations

from spsbench.faces import face

__version__ = "0.1.0"

__getattr__, __all__ = face(__name__, __file__)

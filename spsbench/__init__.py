"""spsbench: speculative sampling against plain sampling, measured side by side."""

__version__ = "0.1.0"

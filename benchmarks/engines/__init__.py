"""Our engine and other people's in one interleaved run: ``python -m benchmarks.engines``."""

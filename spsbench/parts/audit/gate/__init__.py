"""The gate of an engine's own tests: a pytest plugin over the audit."""

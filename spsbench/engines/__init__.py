"""Engines: from a request to a generation with its records."""

"""Runs in the formats of other harnesses."""

"""Proofs of our own sampler: enumeration, planted faults, streams of texts."""

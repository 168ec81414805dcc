"""Predictions for other settings: costs of a loop, factors of the speedup, bounds, the best K."""

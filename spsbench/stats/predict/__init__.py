"""Predictions for other settings: costs of a loop, factors of the speedup, bounds, the best K."""

FEWEST_PROMPTS = 8
"""With fewer no arm is chosen among several: each half of the prompts rests on too little."""

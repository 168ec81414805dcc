"""Simulation without a model: target and draft as tables of distributions, through the production loops."""

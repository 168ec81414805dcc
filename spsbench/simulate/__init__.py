"""No model at all: target and draft as tables of distributions, through the loops that runs use."""

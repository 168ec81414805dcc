"""The commands that predict: bench, replay, advise and simulate."""

"""Predict forwards and speedups on an accelerator that is not here; docs/whatif.md says from what."""

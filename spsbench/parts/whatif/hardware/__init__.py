"""Predict forwards and speedups on an accelerator that is not here; docs/hardware.md says from what."""

"""Drafts trained for a target: the target's text, training on it, and evaluation."""

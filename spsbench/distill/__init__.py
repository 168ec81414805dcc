"""Drafts made for a target: its own text, what is learnt from it, and what that is worth."""

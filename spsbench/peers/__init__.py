"""Engines of others: what they are asked, what they answer, and how they are started."""

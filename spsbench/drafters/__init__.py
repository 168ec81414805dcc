"""Drafters, which propose the next K tokens. They see tokens, never the target's answer."""

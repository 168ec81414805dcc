"""Drafters: whoever proposes the next K tokens. They see tokens, never the target's answer."""

"""Tasks: load examples, build prompts, stop, score."""

"""What is asked of the models: load examples, build prompts, stop, score."""

"""Which arms a configuration asks for; checked without torch, a model or a prompt."""

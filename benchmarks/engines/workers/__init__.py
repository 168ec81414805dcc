"""One engine each, served over JSON lines by the interpreter of the engine's own environment."""

"""How the embedded encoder-decoder pair is made: two synthetic tasks, training, gates. Not in the wheel."""

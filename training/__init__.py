"""How the embedded mini pair is made: synthetic data, tokenizer, training, gates. Not in the wheel."""

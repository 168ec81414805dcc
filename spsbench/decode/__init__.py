"""The papers' algorithms as they run: sampling, rules, ArS and SpS; no tokenizer or file."""

"""The papers' algorithms: sampling, rules, ArS and SpS and their laws; no tokenizer or file."""

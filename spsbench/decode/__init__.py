"""The papers: sampling, rules, the two algorithms and their laws; knows no tokenizer or file."""

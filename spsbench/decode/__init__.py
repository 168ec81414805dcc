"""The papers' algorithms as they run: sampling, rules, ArS and SpS; no tokenizer or file."""

from spsbench.faces import face

__getattr__, __all__ = face(__name__, __file__)

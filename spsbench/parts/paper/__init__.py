"""The tables of the papers, filled with what was measured."""

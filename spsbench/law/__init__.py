"""Laws about texts: theory, enumeration, re-derivation, evidence and the loops over a text."""

"""How much farther than rounding a row may lie: of mean distances, which ``engines.rows_held`` measures."""

TOO_FAR = 4.0
"""Rows this many times farther from an independent forward than its own rounding are wrong rows.

results/reference/losslessness.md has what correct samplers and planted faults come to.
"""

LEAST_ROUNDING = 1e-3
"""Of a mean distance in 16 bits: below it one row at the edge of a nucleus would decide."""

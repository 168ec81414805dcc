"""The statistics of the tables: acceptance, speedup, parity, losslessness; pure functions of the tables."""

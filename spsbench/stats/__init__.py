"""What the tables say: acceptance, speedup, parity, losslessness; pure functions of the tables."""

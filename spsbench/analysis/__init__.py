"""What the recorded numbers say: pure functions of a run's tables, without torch."""

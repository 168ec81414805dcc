"""What other settings would give: costs of a loop, factors of the speedup, bounds, the best K."""

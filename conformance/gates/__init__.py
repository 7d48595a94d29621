"""One tensor against the oracle's: distances, budgets, gates and canaries."""

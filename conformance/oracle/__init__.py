"""Makes the reference of a model: the float64 oracle, its spread, and its further draws. With torch."""

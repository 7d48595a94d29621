"""Makes the float64 oracle of a model, checks it, perturbs its roundings, and keeps what it found. With torch."""

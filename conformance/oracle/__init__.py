"""Makes the float64 oracle of a model, checks it, perturbs its roundings, and stores the results. With torch."""

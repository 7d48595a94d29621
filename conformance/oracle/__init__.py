"""The float64 oracle of a model, its perturbed runs, and the reference file that they end in."""

"""Perturbs the roundings of a run in float64, and watches it for kinks. With torch."""

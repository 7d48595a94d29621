"""Runs a model in float64: its casts, its graphs, and the kernels that torch lacks there. With torch."""

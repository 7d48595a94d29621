"""Compares one tensor with the oracle's: distances, budgets, gates and canaries. With torch."""

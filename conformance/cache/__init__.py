"""Keeps references between runs, and knows what they depend on. Without torch."""

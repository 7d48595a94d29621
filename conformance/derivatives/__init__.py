"""Compares gradients with finite differences. With torch."""

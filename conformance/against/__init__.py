"""Compares models with another revision of their sources, for `conformance bench --against`. Without torch."""

"""Runs one cell: its session, the callable of its mode, and the observation. With torch."""

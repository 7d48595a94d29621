"""Measures cells: time, bytes, operations, compile cost, and what the machine can do. With torch."""

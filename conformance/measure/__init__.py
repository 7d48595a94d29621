"""Clocks and counters: what a cell costs in time, bytes, operations and compilation."""

"""Judges the cells of a plan, each in a process of its own. Without torch."""

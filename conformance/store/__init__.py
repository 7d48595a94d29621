"""Stores runs, and reads, divides and joins them. Without torch."""

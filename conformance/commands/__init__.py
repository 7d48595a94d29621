"""Holds the commands. Without torch."""

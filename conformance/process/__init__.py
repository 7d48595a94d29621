"""Starts the child processes, and speaks with them. Without torch."""

"""Holds the commands, one file each. Without torch."""

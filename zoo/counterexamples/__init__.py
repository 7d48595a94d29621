"""Models that are wrong on purpose, each with the verdict that it must get."""

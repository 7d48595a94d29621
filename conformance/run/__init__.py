"""Runs child processes, judges cells, locks the machine, and stores the run folder. Without torch."""

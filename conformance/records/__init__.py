"""Holds the frozen records that pass between processes and into files. Without torch."""

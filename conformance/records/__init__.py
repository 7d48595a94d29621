"""Frozen records that pass between processes and into files; `convert` turns all of them into JSON and back."""

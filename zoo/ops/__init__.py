"""Families of ops, one per file: the loop beside the scripted and the vectorised form."""

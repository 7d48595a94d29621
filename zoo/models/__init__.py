"""Families of `nn.Module`s, one per file, each with its specs."""

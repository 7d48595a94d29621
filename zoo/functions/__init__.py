"""One custom `autograd.Function` per file, with its custom-op twin."""

"""One `nn.Module` family per file, each with its specs."""

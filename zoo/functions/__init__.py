"""Custom `autograd.Function`s, one per file, each with a twin that is a custom operator."""

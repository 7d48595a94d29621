"""Judges models of people's own: from a call, a test, a file or a library. With torch."""

"""The studies behind the numbers in docs/. Run one with `python -m benchmarks.NAME` from the repository root."""

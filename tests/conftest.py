"""Keeps files that are material for tests, and no tests, out of pytest's own imports."""

collect_ignore = ["miniatures.py", "correct_models.py", "fits.py"]  # sources of conformance runs; they register modes

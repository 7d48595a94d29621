"""Keeps files that are material for tests, and no tests, out of pytest's own imports."""

collect_ignore = [
    "miniatures.py",  # this and the next two are sources of conformance runs; they register modes
    "correct_models.py",
    "fits.py",
    "conformance/stand_in",  # turns CUDA into the CPU for the whole process
]

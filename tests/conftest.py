"""Keeps files that are material for tests, and no tests, out of pytest's own imports."""

import sys
from pathlib import Path

collect_ignore = ["miniatures.py", "correct_models.py"]  # sources of conformance runs; they register modes

# pytest puts this folder in front of the path, where its subfolders would pass for the packages they test.
sys.path[:] = [entry for entry in sys.path if Path(entry) != Path(__file__).parent]

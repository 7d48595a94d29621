"""The studies in `benchmarks`, which are scripts and no package."""

import importlib
import os
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent.parent / "benchmarks"


def benchmark(name):
    """Import a study; what it does to the path and the environment is undone."""
    path, environment = list(sys.path), dict(os.environ)
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(environment)

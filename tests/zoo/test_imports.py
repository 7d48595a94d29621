"""`from zoo.models import Merge`: each folder of models gives the public classes and functions of its files."""

import importlib
import pkgutil
import subprocess
import sys

import pytest


def defined(module):
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not name.isupper()
        and callable(value)
        and getattr(value, "__module__", None) == module.__name__
    }


@pytest.mark.parametrize("folder", ["models", "ops", "functions", "training"])
def test_a_folder_gives_what_its_files_define(folder):
    package = importlib.import_module(f"zoo.{folder}")
    files = [entry.name for entry in pkgutil.iter_modules(package.__path__) if entry.name != "__main__"]
    wanted = {name for file in files for name in defined(importlib.import_module(f"zoo.{folder}.{file}"))}
    assert set(package.__all__) == wanted
    assert all(callable(getattr(package, name)) for name in wanted)


def test_a_name_of_a_folder_is_the_function_and_not_its_file():
    source = """
from zoo.functions import Square, square
from zoo.ops import softmax
from zoo.training import train_step
print(Square.__name__, square.__name__, softmax.__name__, train_step.__name__)
"""
    done = subprocess.run([sys.executable, "-c", source], text=True, stdout=subprocess.PIPE, check=True)
    assert done.stdout == "Square square softmax train_step\n"

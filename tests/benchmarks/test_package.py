"""The studies are a package that imports without side effects; each script says how to run it."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FILES = sorted(path for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "__init__")
SCRIPTS = [path.stem for path in FILES if "__main__" in path.read_text(encoding="utf-8")]
IMPORT_ALL = """
import importlib, json, os, sys, warnings
warnings.simplefilter("ignore")
import torch.utils.benchmark  # it changes variables and the path
before = dict(os.environ), list(sys.path)
for name in sys.argv[1:]:
    importlib.import_module(f"benchmarks.{name}")
print(json.dumps([dict(os.environ) == before[0], sys.path == before[1]]))
"""


def test_importing_the_studies_changes_neither_the_environment_nor_the_path():
    command = [sys.executable, "-c", IMPORT_ALL, *(path.stem for path in FILES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [True, True]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_explains_how_to_run_it_from_the_repository_root(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as end:
        importlib.import_module(f"benchmarks.{name}").main()
    assert end.value.code == 0
    assert f"python -m benchmarks.{name}" in capsys.readouterr().out

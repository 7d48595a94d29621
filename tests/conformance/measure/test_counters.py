"""The gate without a clock: bytes, operations and graphs of the zoo's cells are those recorded for this torch."""

import importlib.util
import json
from pathlib import Path

import pytest

FILE = Path(__file__).parent.parent.parent / "benchmarks" / "counters.py"


def recorder():
    found = importlib.util.spec_from_file_location("counters", FILE)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


counters = recorder()
RECORDED = json.loads(counters.FILE.read_text()).get(counters.release(), {})


@pytest.mark.skipif(not RECORDED, reason="nothing is recorded for this torch; benchmarks/counters.py --write does so")
@pytest.mark.parametrize("cell", counters.cells(), ids=lambda cell: cell.id)
def test_counts_are_those_recorded(cell):
    assert counters.count(cell) == RECORDED[cell.id]

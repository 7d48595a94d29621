"""The gate without a clock: bytes, operations and graphs of the zoo's cells are those recorded for this torch."""

import json
from pathlib import Path

import pytest
import torch
from harness.counting import DEPEND_ON_THE_PROCESSOR, RECORDED_FOOTPRINT, counted, has_the_kernels

from conformance.records.cell import Cell
from conformance.records.measurements import Footprint
from conformance.records.plan import SpecLocation
from zoo import catalog

RELEASE = ".".join(torch.__version__.split(".")[:2])  # the compiler changes with the minor number of torch
FILE = Path(__file__).parent / "counters.json"
ALL_RECORDED = json.loads(FILE.read_text(encoding="utf-8"))
RECORDED = ALL_RECORDED.get(RELEASE, {})


def cell_of(name):
    """The cell of an id."""
    model, _, axes = name.removesuffix("]").partition("[")
    return Cell(model, *axes.split("-"))


def recorded_count(found, name):
    """A count in the form of the file: forward and backward of a pass stand in one object."""
    if name in ("flops", "least_bytes"):
        return {part: found.count(f"{name}.{part}") for part in ("forward", "both")}
    return found.count(name)


@pytest.mark.parametrize("release", ALL_RECORDED)
def test_the_file_has_the_same_counts_of_every_cell(release):
    cells = ALL_RECORDED[release]
    assert len(cells) == 42
    assert all(cell_of(name).id == name for name in cells)
    assert len({tuple(counts) for counts in cells.values()}) == 1
    assert set(next(iter(cells.values()))) == set(Footprint.__dataclass_fields__) - {"least_bytes", "why"}


@pytest.mark.skipif(not RECORDED, reason="nothing is recorded for this torch; benchmarks/counters.py --write does so")
@pytest.mark.parametrize("name", RECORDED)
def test_counts_are_those_recorded(name):
    cell = cell_of(name)
    found = counted(cell, SpecLocation(module=catalog.home_of(cell.model)), target=RECORDED_FOOTPRINT)
    left_out = () if has_the_kernels() else DEPEND_ON_THE_PROCESSOR
    expected = {count: value for count, value in RECORDED[name].items() if count not in left_out}
    assert {count: recorded_count(found, count) for count in expected} == expected

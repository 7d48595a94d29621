"""Graphs, graph breaks and recompilations: counted of every mode that compiles, and of no other."""

import pytest
from harness.counting import counted

from conformance.axes import MODES
from conformance.measure.footprint import GRAPHS
from conformance.records.cell import Cell
from conformance.records.measurements import Reason
from conformance.records.plan import SpecLocation

BUILT_IN = {name: mode for name, mode in MODES.items() if mode.prepare is None}  # other tests register more
NO_GRAPHS = Reason("only a mode that calls torch.compile has graphs")
SPECS = """
import torch
from conformance import Prepared, register_mode
from torch import nn
from zoo.spec import Case, Spec

def spec(name, build):
    case = Case(name="typical", inputs=lambda g: (torch.randn(8, 4, generator=g),))
    return Spec(name=name, summary=name, source="here", build=build, cases=(case,))

def breaks(x):
    y = x.exp()
    torch._dynamo.graph_break()
    return y.sin()

class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls

LINEAR = spec("linear", lambda: nn.Linear(4, 3))
BREAKS = spec("breaks", lambda: breaks)
COUNTS = spec("counts", Counts)

register_mode("captured", lambda model: Prepared(torch.compile(model, backend="aot_eager"), dict))
register_mode("captured_in_secret", lambda model: Prepared(torch.compile(model, backend="eager"), dict), compiles=False)
register_mode("as_it_is", lambda model: Prepared(model, dict), compiles=False)
"""


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """A function that returns the counts of graphs of a cell, and the reasons for those that are missing."""
    file = tmp_path_factory.mktemp("specs") / "specs.py"
    file.write_text(SPECS)
    location = SpecLocation(file=str(file))

    def count(model, mode):
        seen = counted(Cell(model, mode, "fp32", "cpu"), location, sources=(location,))
        return [seen.count(name) for name in GRAPHS], [seen.why.get(name) for name in GRAPHS]

    return count


def test_the_counts_are_graphs_breaks_and_recompilations():
    assert GRAPHS == ("graphs", "graph_breaks", "recompiles")


TORCH_COMPILE = [name for name, mode in BUILT_IN.items() if mode.compiles and not mode.forward_only]


@pytest.mark.parametrize("mode", [*TORCH_COMPILE, "captured"])
def test_graphs_of_a_mode_that_compiles_are_counted(graphs, mode):
    assert graphs("linear", mode) == ([1, 0, 0], [None] * 3)
    assert graphs("breaks", mode) == ([2, 1, 0], [None] * 3)


@pytest.mark.parametrize(
    "mode", [*(name for name in BUILT_IN if name not in (*TORCH_COMPILE, "packaged")), "as_it_is", "captured_in_secret"]
)
def test_a_mode_that_does_not_compile_has_a_reason_in_place_of_graphs(graphs, mode):
    assert graphs("linear", mode) == ([None] * 3, [NO_GRAPHS] * 3)


def test_the_modes_that_compile_are_those_of_torch_compile():
    assert TORCH_COMPILE == ["compiled", "compiled_dynamic", "graphed"]


def test_code_compiled_again_at_every_call_is_counted(graphs):
    assert graphs("counts", "compiled")[0] == [3, 0, 2]

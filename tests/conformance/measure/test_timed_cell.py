"""What a timed call changes is put back before the next."""

from harness.timed import timed_cell

DOUBLED = """
import torch
from torch import nn
from zoo import Case, Spec

class Doubled(nn.Linear):
    def forward(self, x):
        with torch.no_grad():
            self.weight.mul_(2.0)
        return super().forward(x)

SPEC = Spec(
    name="doubled",
    summary="a Linear that doubles its weight before each use",
    source="a test",
    build=lambda: Doubled(5, 4),
    cases=(Case(name="typical", inputs=lambda g: (torch.randn(6, 5, generator=g),)),),
    mutates=("weight",),
)
"""


def test_a_parameter_that_forward_changes_is_put_back_before_each_call(tmp_path):
    cell = timed_cell(tmp_path, DOUBLED, "doubled", "fp32")
    for _ in range(3):
        cell.call.before()
        cell.keep(cell.call.call())
    assert cell.wrong_result() == ""
    for _ in range(40):
        cell.keep(cell.call.call())  # one of these is kept all but certainly
    assert "norm  output, case typical: error" in cell.wrong_result()

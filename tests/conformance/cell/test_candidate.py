"""A candidate takes the model's weights and state over, or is refused by name; the documented one is right."""

import re

import pytest
import torch
from harness.counting import counted
from harness.sources import ROOT
from torch import nn

from conformance.cell.modes import replace_model
from conformance.records.cell import Cell
from conformance.records.plan import SpecLocation
from zoo import Candidate, Case, Spec, SpecError

PAGE = (ROOT / "docs" / "adding-a-model.md").read_text(encoding="utf-8")


def spec_with(candidate):
    case = Case(name="typical", inputs=lambda g: (torch.randn(4, 3, generator=g),))
    return Spec(name="net", summary="a", source="a", build=net, cases=(case,), candidates=(candidate,))


def net():
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))


def made(build, model):
    spec = spec_with(Candidate(name="new", build=build))
    return replace_model(spec, spec.candidates[0], model)


def test_weights_buffers_training_modes_and_frozen_parameters_are_taken_over():
    model = net()
    model(torch.randn(4, 3))  # which moves the statistics
    model[1].eval()
    model[0].bias.requires_grad_(False)
    new = made(net, model).parameters_of
    assert all(torch.equal(new.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    assert [new.training, new[0].training, new[1].training] == [True, True, False]
    assert {n for n, p in new.named_parameters() if not p.requires_grad} == {"0.bias"}
    assert new[0].weight.data_ptr() != model[0].weight.data_ptr()


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: net()[0], "but it lacks 0.weight, 0.bias, 1.weight and 4 more and it alone has weight, bias"),
        (lambda: torch.relu, "but it lacks 0.weight, 0.bias, 1.weight and 4 more"),
        (
            lambda: net().double(),
            "candidate 'new' of net: 0.weight is float64 (3, 3), and the model's is float32 (3, 3)",
        ),
        (lambda: 3, "candidate 'new' of net: build returned a int, which cannot be called"),
    ],
)
def test_what_does_not_fit_is_named(build, said):
    with pytest.raises(SpecError, match=re.escape(said)):
        made(build, net())


def documented():
    """The spec of the page's example, with its candidate."""
    section = PAGE.partition("## A replacement for one model")[2]
    names = {}
    for text in (PAGE, section):
        exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], names)
    return names["SPEC"]


def test_the_documented_candidate_is_the_model():
    spec = documented()
    model, x = spec.build(), torch.randn(5, 8)
    (candidate,) = spec.candidates
    torch.testing.assert_close(replace_model(spec, candidate, model).call(x), model(x))


def test_a_candidate_can_be_counted_like_a_mode(tmp_path):
    path = tmp_path / "nets.py"
    first = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
    second = re.search(r"```python\n(.*?)```", PAGE.partition("## A replacement for one model")[2], re.DOTALL)[1]
    path.write_text(first + second)
    location = SpecLocation(file=str(path))
    seen = counted(Cell("gate", "fused", "fp32", "cpu"), location, sources=(location,))
    assert seen.count("saved") > 0

"""Each model agrees with its independent formula in float64, and twins share parameters."""

import pytest
import torch

import zoo

NAMED = [name for name in zoo.list_models() if zoo.get_spec(name).reference is not None]
TWINS = [name for name in zoo.list_models() if zoo.get_spec(name).twin]


def doubled(args):
    return tuple(x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in args)


@pytest.mark.parametrize("name", NAMED)
def test_model_agrees_with_its_reference(name):
    spec = zoo.get_spec(name)
    torch.manual_seed(0)
    model = spec.initialised(spec.build())
    model = model.double() if isinstance(model, torch.nn.Module) else model
    for case in spec.cases:
        args = doubled(case.draw(torch.Generator().manual_seed(1)).args)
        wanted = spec.reference(model, *args)
        found = spec.fit(model, model, "fp32", *args) if spec.fit else model(*args)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", TWINS)
def test_twins_share_parameters_and_cases(name):
    spec = zoo.get_spec(name)
    other = zoo.get_spec(spec.twin)
    assert [case.name for case in spec.cases] == [case.name for case in other.cases]
    one, its = spec.build(), other.build()
    if isinstance(one, torch.nn.Module):
        its.load_state_dict(one.state_dict())

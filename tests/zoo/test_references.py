"""Each model agrees with its independent formula in float64, and twins share parameters."""

from functools import partial

import pytest
import torch

import zoo

NAMED = [name for name in zoo.list_models() if zoo.get_spec(name).reference is not None]
TWINS = [name for name in zoo.list_models() if zoo.get_spec(name).twin]


def refused(spec):
    """Why eager takes this model on no account here; "" if it does."""
    here = [e for e in spec.expectations if e.concerns("eager", "fp32", "cpu", torch.__version__) and not e.precisions]
    return next((e.reason for e in here if e.outcome == "refuses"), "")


def formula_of(spec, model):
    """The reference as a function of the inputs; a trusted implementation gets the model's parameters."""
    if not spec.trusts_model:
        return partial(spec.reference, model)
    trusted = spec.reference()
    if isinstance(trusted, torch.nn.Module):
        trusted.double().load_state_dict(model.state_dict())
    return trusted


def doubled(args):
    return tuple(x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in args)


@pytest.mark.parametrize("name", NAMED)
def test_model_agrees_with_its_reference(name):
    spec = zoo.get_spec(name)
    if refused(spec):
        pytest.skip(f"NOT TESTED: {name}, because {refused(spec)}")
    torch.manual_seed(0)
    model = spec.initialised(spec.build())
    model = model.double() if isinstance(model, torch.nn.Module) else model
    for case in spec.cases:
        args = doubled(case.draw(torch.Generator().manual_seed(1)).args)
        wanted = formula_of(spec, model)(*args)
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

"""Inputs: their copies, how they are moved off ties and kinks, and the fingerprint of a model and its inputs."""

import pytest
import torch

from conformance.errors import SelfCheckError
from conformance.evaluate import inputs
from conformance.evaluate.inputs import APART, AXES, move_apart, representable, seed_generator
from conformance.evaluate.weights import fingerprint
from conformance.float64.wide import Oracle
from conformance.oracle import draws
from zoo import Call, Case, Spec

LAYOUTS = {
    "contiguous": torch.arange(6.0).reshape(2, 3),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "every second": torch.arange(12.0)[1::2],
    "expanded": torch.arange(3.0).expand(4, 3),
    "windows": torch.arange(6.0).as_strided((4, 3), (1, 1)),
    "scalar": torch.tensor(2.0),
    "empty": torch.empty(0, 3),
}


@pytest.mark.parametrize("tensor", LAYOUTS.values(), ids=LAYOUTS)
def test_a_copy_has_numbers_and_strides_of_the_original_and_is_no_view(tensor):
    (placed,) = inputs.place(Call((tensor,), {}), convert=lambda t: t.double()).args
    assert placed.dtype == torch.float64
    assert torch.equal(placed, tensor.double())
    assert placed.stride() == tensor.stride()
    assert not placed._is_view()
    assert placed.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr() or not tensor.numel()


def test_a_tensor_that_is_given_twice_is_copied_once():
    tensor = torch.ones(2)
    one, other = inputs.place(Call((tensor, tensor), {}), convert=lambda t: t).args
    assert one is other


# Inputs that rounding has made equal, or put on a limit, are moved apart by small steps.


def apart(x, axis=-1):
    (found,) = move_apart(Call((x,)), axis).args
    return found


@pytest.mark.parametrize(("shape", "axis"), [((8, 64), -1), ((8, 64), 0), ((64, 32), -1), ((64, 32), 0)])
def test_different_numbers_stay_different_and_near(shape, axis):
    x = torch.randn(*shape, generator=seed_generator("x"))
    found = apart(x, axis)
    assert (found.sort(axis).values.diff(dim=axis) > 0).all()
    assert torch.equal(found, found.to(torch.bfloat16).float())
    assert float((found - x).abs().max()) < 0.2
    if x.numel() <= 512:
        assert torch.equal(found.flatten().argsort(), x.flatten().argsort())


def test_equal_and_representable_numbers_stay():
    x = torch.tensor([1.0, 1.0, 0.0, 0.3, 0.3, 1.001, -2.0, float("inf")])
    found = apart(x)
    assert torch.equal(found[[0, 1, 2, 6, 7]], x[[0, 1, 2, 6, 7]])
    assert found[3] == found[4]
    assert found[5] > 1.0


def test_no_number_lands_on_a_round_one():
    x = 1.0 + torch.linspace(-1e-3, 1e-3, 8)
    assert torch.equal(representable(x) == 1.0, x > 1.0)
    assert not (apart(x) == 1.0).any()


def spec_of(model, drawn):
    case = Case(name="typical", inputs=drawn)
    return Spec(name="m", summary="", source="", build=lambda: model, cases=(case,), dtypes="input")


def chosen(function, rows=64):
    """The case of a function, and the number of the draw that is chosen."""
    spec = spec_of(function, lambda g: (torch.randn(rows, 32, generator=g),))
    return spec.cases[0], draws.choose_picks(Oracle(spec, seed=0), spec.cases[0])


@pytest.mark.parametrize(
    ("function", "way"),
    [(lambda x: x.sort(-1).values, 1), (lambda x: x.topk(3, 0).values, 2), (lambda x: x.clamp(-1, 1), 1)],
    ids=["sort", "topk", "clamp"],
)
def test_a_draw_with_ties_that_rounding_made_is_moved_apart(function, way):
    case, number = chosen(function)
    assert number // APART == way <= len(AXES)
    assert number % APART == 0
    (x,) = inputs.draw(case, 0, number).args
    assert torch.equal(x, representable(x))


def test_ties_of_the_model_itself_are_left_alone():
    assert chosen(lambda x: torch.cat([x, x]).amax(0).sin() * 2)[1] % APART < draws.REDRAWS
    assert chosen(lambda x: (x * 2).exp())[1] == 0


def one_on_a_kink(x):
    nothing = x[:1, :1] * 3 - x[:1, :1].detach() * 3  # but for rounding
    return torch.cat([x.flatten(), nothing.flatten()]).relu()


def test_a_number_on_a_kink_in_every_draw_is_too_much_among_few_and_not_among_many():
    with pytest.raises(SelfCheckError, match="case typical: numbers sit exactly on a kink"):
        chosen(one_on_a_kink)
    assert chosen(one_on_a_kink, rows=256)[1] % APART < draws.REDRAWS


def test_a_number_on_a_kink_with_one_slope_on_both_sides_is_no_toss():
    """As in PPO's loss, where the ratio is between its limits."""
    assert chosen(lambda x: torch.minimum(x * 2, x.clamp(-9, 9) * 2))[1] % APART < draws.REDRAWS
    with pytest.raises(SelfCheckError, match="exactly on a kink"):
        chosen(lambda x: torch.minimum(x * 2, x.detach() * 2))


# The fingerprint of a model and its inputs tells them from others.


def fingerprint_of(model, drawn=lambda g: (torch.randn(4, 3, generator=g),), seed=0):
    return fingerprint(spec_of(model, drawn), seed, model)


def linear(**state):
    model = torch.nn.Linear(3, 2)
    model.load_state_dict({"weight": torch.ones(2, 3), "bias": torch.zeros(2), **state})
    return model


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (linear(bias=torch.tensor([0.0, 1e-30])), {}),
        (linear().half(), {}),
        (linear(), {"seed": 1}),
        (linear(), {"drawn": lambda _: (torch.zeros(4, 3),)}),
        (linear(), {"drawn": lambda g: (torch.randn(4, 3, generator=g), 2)}),
    ],
    ids=["a weight", "a dtype", "the seed of the inputs", "the inputs", "an argument that is no tensor"],
)
def test_only_the_same_model_with_the_same_inputs_has_the_same_fingerprint(model, fields):
    assert fingerprint_of(linear()) == fingerprint_of(linear()) != fingerprint_of(model, **fields)


class Doubling(torch.nn.Module):
    def forward(self, x):
        return x * 2


class Tripling(torch.nn.Module):
    def forward(self, x):
        return x * 3


def test_the_code_of_a_graph_counts():
    one, same, other = (fingerprint_of(torch.jit.script(net())) for net in (Doubling, Doubling, Tripling))
    assert one == same != other

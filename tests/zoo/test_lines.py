"""The straight lines and the parabola."""

import pytest
import torch

import zoo
from zoo.models.line import Affine, Line
from zoo.models.quadratic import Quadratic

MODELS = {"Affine": Affine, "Line": Line, "Quadratic": Quadratic}


def lines(slope, offset):
    affine, line = Affine().double(), Line().double()
    affine.load_state_dict({"a": torch.tensor(slope), "b": torch.tensor(offset)})
    line.load_state_dict({"linear.weight": torch.tensor([[slope]]), "linear.bias": torch.tensor([offset])})
    return affine, line


def test_both_lines_agree_in_value_and_gradients():
    affine, line = lines(5.0, 3.0)
    x = torch.tensor([-2.0, 0.0, 0.5, 7.0], dtype=torch.float64, requires_grad=True)
    cotangent = torch.tensor([0.5, -1.0, 2.0, 0.25], dtype=torch.float64)
    for model in (affine, line):
        y = model(x)
        assert y.tolist() == [-7.0, 3.0, 5.5, 38.0]
        of_x, of_slope, of_offset = torch.autograd.grad(y, (x, *model.parameters()), cotangent)
        assert of_x.tolist() == [2.5, -5.0, 10.0, 1.25]
        assert of_slope.item() == 1.75
        assert of_offset.item() == 1.75


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_under_autocast_the_linear_layer_is_low_and_the_sum_is_not(low):
    affine, line = (model.float() for model in lines(1 / 3, 0.0))
    x = torch.ones(2)
    with torch.autocast("cpu", dtype=low):
        assert affine(x).tolist() == [torch.tensor(1 / 3).item()] * 2
        assert line(x).dtype == low
        assert line(x).tolist() == [torch.tensor(1 / 3, dtype=low).item()] * 2


def test_quadratic_weighs_square_number_and_one_in_that_order():
    model = Quadratic()
    model.load_state_dict({"w": torch.tensor([[100.0], [10.0], [1.0]])})
    x = torch.tensor([0.0, 1.0, -2.0, 3.0], requires_grad=True)
    y = model(x)
    assert y.tolist() == [1.0, 111.0, 381.0, 931.0]
    of_x, of_w = torch.autograd.grad(y, (x, model.w), torch.tensor([1.0, 2.0, -1.0, 0.5]))
    assert of_x.tolist() == [10.0, 420.0, 390.0, 305.0]  # (200 x + 10) times the cotangent
    assert of_w.tolist() == [[2.5], [5.5], [2.5]]


def test_features_overflow_float16_beyond_255():
    model = Quadratic()
    model.load_state_dict({"w": torch.tensor([[1.0], [0.0], [0.0]])})
    with torch.autocast("cpu", dtype=torch.float16):
        assert model(torch.tensor([255.0, 256.0])).tolist() == [65024.0, torch.inf]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("scripted", [False, True])
def test_bad_inputs_are_named(name, scripted):
    model = torch.jit.script(MODELS[name]()) if scripted else MODELS[name]()
    wrong_value, wrong_type = (torch.jit.Error, torch.jit.Error) if scripted else (ValueError, TypeError)
    with pytest.raises(wrong_value, match=rf"{name}: x must have shape \(n,\), got \[2, 1\]"):
        model(torch.ones(2, 1))
    with pytest.raises(wrong_value, match=rf"{name}: x must have shape \(n,\), got \[\]"):
        model(torch.tensor(1.0))
    with pytest.raises(wrong_type, match=f"{name}: x must have a floating dtype, got"):
        model(torch.arange(3))
    with pytest.raises(wrong_value, match=f"{name}: x must be on cpu, where the .* are, got meta"):
        model(torch.ones(2, device="meta"))


@pytest.mark.parametrize("name", ["line", "quadratic"])
def test_another_dtype_is_refused_by_torch(name):
    with pytest.raises(RuntimeError, match=r"(?i)double.*float"):
        zoo.create_model(name)(torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize(("name", "names"), [("affine", ["a", "b"]), ("quadratic", ["w"])])
def test_parameters_are_drawn_anew_for_each_model(name, names):
    torch.manual_seed(0)
    one, other = zoo.create_model(name), zoo.create_model(name)
    assert list(one.state_dict()) == names
    assert not any(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))

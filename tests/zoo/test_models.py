"""Small models: merge, lines and parabola, the clipped ReLU, dropout with a seed, and regions of autocast."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.autograd import gradgradcheck

import zoo
from zoo.models.autocast_regions import RegionMLP, squared_distances
from zoo.models.clipped_relu import Clip, ClippedReLU
from zoo.models.line import Affine, Line
from zoo.models.merge import Merge, MergeTiled
from zoo.models.quadratic import Quadratic
from zoo.models.seeded_dropout import SeededDropout, seeded_mask

# merge, its tiled twin, and the plain baseline


@pytest.mark.parametrize("build", [Merge, MergeTiled])
@pytest.mark.parametrize(
    ("lead1", "lead2", "lead"),
    [((5, 3), (5, 1), (5, 3)), ((4, 1), (1, 7), (4, 7)), ((), (2, 3), (2, 3)), ((0, 3), (1, 1), (0, 3))],
)
def test_leading_shapes_broadcast(build, lead1, lead2, lead):
    model = build(5, 6, 10)
    assert model(torch.ones(*lead1, 5), torch.ones(*lead2, 6)).shape == (*lead, 10)


def test_activation_is_applied_to_the_sum():
    model = Merge(5, 6, 10, activation=nn.Tanh())
    x1, x2 = zoo.example_inputs("merge")
    torch.testing.assert_close(model(x1, x2), torch.tanh(model.linear1(x1) + model.linear2(x2)))


def test_scripted_merge_is_float32_where_eager_is_low():
    x1, x2 = zoo.example_inputs("merge")
    eager = zoo.create_model("merge")
    scripted = torch.jit.script(eager)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert eager(x1, x2).dtype == torch.bfloat16
        assert [scripted(x1, x2).dtype for _ in range(4)][-1] == torch.float32


def test_mlp_has_the_sizes_of_its_source():
    model = zoo.create_model("mlp")
    assert [tuple(p.shape) for p in model.parameters()] == [(32, 64), (32,), (10, 32), (10,)]
    with pytest.raises(RuntimeError, match=r"\(3x63 and 64x32\)"):
        model(torch.ones(3, 63))


# the straight lines and the parabola


def lines_of(slope, offset):
    affine, line = Affine().double(), Line().double()
    affine.load_state_dict({"a": torch.tensor(slope), "b": torch.tensor(offset)})
    line.load_state_dict({"linear.weight": torch.tensor([[slope]]), "linear.bias": torch.tensor([offset])})
    return affine, line


def test_both_lines_agree_in_value_and_gradients():
    affine, line = lines_of(5.0, 3.0)
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
    affine, line = (model.float() for model in lines_of(1 / 3, 0.0))
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
    model.load_state_dict({"w": torch.tensor([[1.0], [0.0], [0.0]])})
    with torch.autocast("cpu", dtype=torch.float16):  # in which a feature beyond 255 overflows
        assert model(torch.tensor([255.0, 256.0])).tolist() == [65024.0, torch.inf]


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


# the clamp with a gradient that leaks beyond its bounds

POINTS = [-3.0, 0.0, 0.5, 2.0, 3.0]


def clipped_gradient(function, points=POINTS, dtype=torch.float32):
    x = torch.tensor(points, dtype=dtype, requires_grad=True)
    cotangent = torch.tensor([8.0, -4.0, 2.0, 16.0, -32.0][: len(points)], dtype=dtype)
    return torch.autograd.grad(function(x), x, cotangent)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("leak", "wanted"),
    [(0.0, [0.0, -4.0, 2.0, 16.0, 0.0]), (0.25, [2.0, -4.0, 2.0, 16.0, -8.0]), (1.0, [8.0, -4.0, 2.0, 16.0, -32.0])],
)
def test_gradient_passes_inside_and_leaks_outside_in_the_dtype_of_the_input(leak, wanted, dtype):
    model = ClippedReLU(limit=2.0, leak=leak)
    gradient = clipped_gradient(model, dtype=dtype)
    assert (gradient.tolist(), gradient.dtype, model(torch.ones(1, dtype=dtype)).dtype) == (wanted, dtype, dtype)


def test_without_leak_it_is_the_clamps_own_derivative():
    """Compare away from the bounds: at the bounds, the derivative of clamp differs between torch 2.13 and 2.15."""
    points = [-3.0, 0.25, 0.5, 1.75, 3.0]
    assert torch.equal(
        clipped_gradient(ClippedReLU(2.0, 0.0), points), clipped_gradient(lambda x: torch.clamp(x, 0.0, 2.0), points)
    )


def test_second_derivatives_pass_through_the_gradient():
    x = torch.tensor([-3.0, 0.5, 3.0], dtype=torch.float64, requires_grad=True)

    def squared(t):
        return Clip.apply(t * 1.0, 2.0, 1.0) ** 2  # with leak 1 the derivative is 2 y, which is linear in y

    assert gradgradcheck(lambda g: torch.autograd.grad(ClippedReLU(2.0)(x), x, g, create_graph=True)[0], (x,))
    (first,) = torch.autograd.grad(squared(x), x, torch.ones(3).double(), create_graph=True)
    assert first.tolist() == [0.0, 1.0, 4.0]
    assert torch.autograd.grad(first, x, torch.ones(3).double())[0].tolist() == [2.0, 2.0, 2.0]


def test_vmap_and_func_grad():
    x = torch.tensor(POINTS)
    model = ClippedReLU(2.0, 0.25)
    assert torch.equal(torch.vmap(model)(x), model(x))
    assert torch.vmap(torch.func.grad(model))(x).tolist() == [0.25, 1.0, 1.0, 1.0, 0.25]


@pytest.mark.parametrize(("leak", "recovers"), [(0.0, False), (0.1, True)])
def test_the_leak_brings_a_saturated_unit_back(leak, recovers):
    bias = torch.tensor([-1.0, 3.0], requires_grad=True)
    clip = ClippedReLU(2.0, leak)
    for _ in range(100):
        loss = (clip(bias) - torch.tensor([0.5, 1.5])).square().sum()
        (slope,) = torch.autograd.grad(loss, bias)
        bias = (bias - 0.2 * slope).detach().requires_grad_()
    wanted = [0.5, 1.5] if recovers else [-1.0, 3.0]
    torch.testing.assert_close(bias.tolist(), wanted, rtol=0, atol=1e-4)


def test_the_zoos_cases_reach_both_bounds():
    torch.manual_seed(0)
    y = zoo.create_model("clipped_relu")(*zoo.example_inputs("clipped_relu"))
    assert (y == 0).any()
    assert (y == 0.5).any()
    assert ((y > 0) & (y < 0.5)).any()


# dropout with a seed: one mask in every mode, as random as it should be

COUNT = 1 << 16
seed = torch.tensor  # of a number


MODES = {
    "eager": lambda model: model,
    "scripted": torch.jit.script,
    "compiled": lambda model: torch.compile(model, backend="aot_eager", fullgraph=True),
}


@pytest.mark.parametrize("precision", [None, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mode", MODES)
def test_all_modes_have_the_same_mask_bit_for_bit(mode, precision):
    call, x = MODES[mode](SeededDropout(0.3)), torch.randn(64, 65)
    for number in (0, 7, -1, 2**62 + 3):
        wanted = seeded_mask(x, seed(number), 0.3)
        with torch.autocast("cpu", dtype=precision or torch.bfloat16, enabled=precision is not None):
            leaf = x.clone().requires_grad_()
            y = [call(leaf, seed(number)) for _ in range(4)][-1]
        assert torch.equal(y != 0, wanted)
        (gradient,) = torch.autograd.grad(y, leaf, torch.ones_like(y))
        assert torch.equal(gradient != 0, wanted)


@pytest.mark.slow
def test_inductor_has_the_same_mask_and_makes_one_graph_for_all_seeds():
    torch._dynamo.reset()
    compiled, x = torch.compile(seeded_mask), torch.empty(1000)
    for number in (1, 2, -3):
        with torch.compiler.set_stance("fail_on_recompile" if number != 1 else "default"):
            assert torch.equal(compiled(x, seed(number)), seeded_mask(x, seed(number)))


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_the_share_of_dropped_elements_is_p(p):
    dropped = 1 - seeded_mask(torch.empty(COUNT), seed(11), p).double().mean().item()
    assert abs(dropped - p) <= 4 * (p * (1 - p) / COUNT) ** 0.5


def test_masks_of_neighbouring_seeds_and_of_shifted_positions_are_independent():
    masks = torch.stack([seeded_mask(torch.empty(COUNT), seed(n)).double() for n in (0, 1, 2, 2**32)]) * 2 - 1
    shifted = [masks[0].roll(k) for k in (1, 2, 64, 256)]
    pairs = torch.stack([*masks, *shifted])
    correlation = pairs @ pairs.t() / COUNT - torch.eye(len(pairs), dtype=torch.float64)
    assert correlation.abs().max() < 5 / COUNT**0.5


def test_the_mask_depends_on_the_position_and_not_on_strides():
    x = torch.randn(6, 8)
    assert torch.equal(seeded_mask(x.t().contiguous().t(), seed(3)), seeded_mask(x, seed(3)))
    assert torch.equal(seeded_mask(x, seed(3)), seeded_mask(x.flatten(), seed(3)).reshape(6, 8))


def test_edges_of_p_and_of_values():
    x = torch.tensor([1.0, float("inf"), float("nan"), -2.0])
    assert torch.equal(SeededDropout(1.0)(x, seed(1)), torch.zeros(4))
    torch.testing.assert_close(SeededDropout(0.0)(x, seed(1)), x, equal_nan=True)
    assert SeededDropout(0.5).eval()(x, seed(1)) is x


def test_the_global_generator_has_no_part_in_it():
    x = torch.ones(100)
    one = SeededDropout()(x, seed(5))
    torch.manual_seed(99)
    after = torch.get_rng_state()
    assert torch.equal(SeededDropout()(x, seed(5)), one)
    assert torch.equal(torch.get_rng_state(), after)


# autocast inside a forward: a region that is on, and an island where it is off

AMBIENT = [None, torch.float16, torch.bfloat16]
FINE = 1 + 2**-9  # float16 and float32 represent it; bfloat16 rounds it to 1


def ambient(dtype):
    """Return the autocast context of a caller; None: without autocast."""
    return nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)


def test_the_region_has_the_same_bits_for_every_caller():
    torch.manual_seed(0)
    model, x = RegionMLP(16, 32, 8), torch.randn(6, 16)
    results = []
    for dtype in AMBIENT:
        with ambient(dtype):
            y = model(x)
        assert y.dtype == torch.float16
        gradients = torch.autograd.grad(y, list(model.parameters()), torch.ones_like(y))
        assert {g.dtype for g in gradients} == {torch.float32}
        results.append((y, *gradients))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("dtype", AMBIENT)
def test_the_island_is_as_exact_as_float32(dtype):
    x, y = torch.full((2, 4), FINE), torch.ones(3, 4)
    with ambient(dtype):
        found = squared_distances(x, y)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.full((2, 3), 4 * 2.0**-18))
    halves, zeros = torch.full((2, 4), 128.0, dtype=torch.float16), torch.zeros(3, 4, dtype=torch.float16)
    with ambient(dtype):
        assert squared_distances(halves, zeros).tolist() == [[65536.0] * 3] * 2  # beyond float16's largest number


def test_a_scripted_region_does_not_stop_the_autocast_of_its_caller():
    region, x = torch.jit.script(zoo.create_model("autocast_region")), torch.ones(2, 16)
    island, far = torch.jit.script(squared_distances), torch.full((2, 4), FINE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert [region(x).dtype for _ in range(4)][-1] == torch.bfloat16
        distances = [island(far, far) for _ in range(4)][-1]
    assert distances.abs().max() > 2.0**-10  # from a product in bfloat16; it is zero in float32

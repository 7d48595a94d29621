"""Counts of bytes: what autograd saves, what a graph keeps, the peak of a call, and the saving of a fused layer."""

import gc

import pytest
import torch
import torch._functorch.config
from packaging.version import Version
from saved_tensor_cases import BREAKS, DEVICES, HIDDEN, leaf, perceptron, within
from torch import nn
from torch.nn import functional

from zoo.functions.fused_conv_bn2d import fused_conv_bn2d, fused_conv_bn2d_op
from zoo.memory import SavedBytes, compress, held_bytes, kept_bytes, offload_to_cpu, peak_bytes, recompute, saved_bytes

pytestmark = [
    # torch itself instantiates a Function to trace it
    pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning"),
    # the checkpoint of torch 2.4 uses torch.cpu.amp.autocast
    pytest.mark.filterwarnings("ignore:`torch.cpu.amp.autocast:FutureWarning"),
]


@pytest.fixture(autouse=True, scope="module")
def few_objects():
    """Hide what is there already from the garbage collector: every count of a peak runs it."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


# saved_bytes


@pytest.mark.parametrize("device", [*DEVICES, "meta"])
def test_a_module_saves_its_hidden_layer_once_beside_input_and_weights(device):
    # the first weight is not saved, because the input needs no gradient
    expected = SavedBytes(saved=4 * HIDDEN, inputs=4 * 8 * 32, parameters=4 * 16 * 64)
    model, x = perceptron(device), torch.ones(8, 32, device=device)
    assert [saved_bytes(model, x) for _ in range(3)] == [expected] * 3
    assert expected.total == 4 * (512 + 256 + 1024)
    held = held_bytes(model, x)
    assert held == {device: 4 * HIDDEN}
    assert held["xpu"] == 0


def test_a_storage_counts_once_and_as_a_whole():
    assert saved_bytes(torch.sin, torch.ones(100)[:1].requires_grad_()) == SavedBytes(saved=0, inputs=400, parameters=0)
    x = leaf(10, 10)

    def viewed(x):
        y = x.exp()  # saves y
        return y.t().sin() + y[2:].cos().sum() + y.reshape(100).square().sum() * 2  # each op saves a view of y

    assert saved_bytes(viewed, x) == SavedBytes(saved=400, inputs=0, parameters=0)


def test_tensors_that_the_result_does_not_hold_do_not_count():
    x = leaf(100)

    def with_a_lost_graph(x):
        x.exp().sin().sum()
        torch.autograd.grad(x.exp().sum(), x)
        return x * 2

    assert saved_bytes(with_a_lost_graph, x).total == 0


def test_tensors_from_elsewhere_are_parameters_if_they_get_a_gradient():
    model, weight, constant = perceptron(), leaf(16), torch.ones(16)
    x = torch.ones(8, 32)
    closed = saved_bytes(lambda x: model(x) * weight, x)
    alone = saved_bytes(model, x)
    assert closed.parameters == alone.parameters + 4 * 16
    assert closed.saved == alone.saved + 4 * 8 * 16
    assert saved_bytes(lambda x: x * constant, leaf(16)) == SavedBytes(saved=64, inputs=0, parameters=0)


def test_buffers_are_counted_with_the_parameters_and_inputs_inside_containers_as_inputs():
    saved = saved_bytes(nn.BatchNorm1d(8).eval(), leaf(4, 8))
    assert saved == SavedBytes(saved=0, inputs=128, parameters=4 * 8 * 3)  # weight, mean, variance
    saved = saved_bytes(lambda pair, named: pair[0] * named["y"], [leaf(6)], {"y": leaf(6)})
    assert saved == SavedBytes(saved=0, inputs=48, parameters=0)


class Saves(torch.autograd.Function):
    """x squared; a name selects the tensor to save."""

    @staticmethod
    def forward(ctx, x, name):
        y = x * x
        kept = {"input": x, "view of the input": x[1:], "output": y, "fresh": x + 1, "attribute": None}[name]
        ctx.save_for_backward(kept)
        ctx.unseen = x + 1
        return y

    @staticmethod
    def backward(_ctx, grad):
        return grad, None


@pytest.mark.parametrize(
    ("name", "saved", "inputs"),
    [("input", 0, 40), ("view of the input", 0, 40), ("output", 40, 0), ("fresh", 40, 0), ("attribute", 0, 0)],
)
def test_tensors_that_a_function_saves_count_and_attributes_of_its_ctx_do_not(name, saved, inputs):
    found = saved_bytes(Saves.apply, leaf(10), name)
    assert (found.saved, found.inputs) == (saved, inputs)


def test_under_autocast_the_cast_copies_are_saved():
    model, x = nn.Linear(32, 16), torch.ones(8, 32, requires_grad=True)

    def cast(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x)

    assert saved_bytes(cast, x) == SavedBytes(saved=2 * (8 * 32 + 16 * 32), inputs=0, parameters=0)


def test_a_scripted_module_is_counted_alike_in_every_run():
    # a script that does not know yet which leaf needs a gradient saves more than eager
    model, x = torch.jit.script(perceptron()), leaf(8, 32)
    first, *others = [saved_bytes(model, x) for _ in range(4)]
    assert others == [first] * 3
    assert (first.saved, first.inputs) == (4 * HIDDEN, 4 * 8 * 32)
    assert kept_bytes(model, x)["cpu"] == 4 * HIDDEN
    assert peak_bytes(model, x)["cpu"] >= 4 * (HIDDEN + 8 * 16)


@BREAKS
@pytest.mark.parametrize("graph_break", [False, True])
def test_a_compiled_callable_is_counted_without_compiling_it_again(graph_break):
    weight = leaf(32, 32)
    graphs = 0

    def count(graph, _):
        nonlocal graphs
        graphs += 1
        return graph

    def plain(x):
        y = torch.relu(x @ weight)
        if graph_break:
            torch._dynamo.graph_break()
        return y.sin()

    compiled = torch.compile(plain, backend=count)
    x = leaf(8, 32)
    expected = SavedBytes(saved=4 * 8 * 32, inputs=4 * 8 * 32, parameters=4 * 32 * 32)
    assert saved_bytes(plain, x) == expected
    assert [saved_bytes(compiled, x) for _ in range(3)] == [expected] * 3
    assert graphs == 1 + graph_break


def test_a_callable_that_torch_stopped_compiling_is_counted_like_an_eager_one():
    def plain(x):
        return (x * 1).exp().sin()

    compiled, x = torch.compile(plain, backend="eager"), leaf(64)
    held_bytes(compiled, x)  # torch stops compiling it, and from now on tries to compile the hooks that it calls
    assert saved_bytes(compiled, x) == saved_bytes(plain, x) == SavedBytes(saved=256, inputs=0, parameters=0)


def test_counting_leaves_the_graph_usable():
    x = leaf(10)
    kept = []

    def fn(x):
        kept.append(x.exp().sin())
        return kept[-1]

    saved_bytes(fn, x)
    cotangent = torch.randn(10)
    (gradient,) = torch.autograd.grad(kept[-1], x, cotangent)
    torch.testing.assert_close(gradient, cotangent * x.exp().cos() * x.exp())


# held_bytes


def test_held_excludes_results_and_earlier_tensors():
    x, state = leaf(10), torch.zeros(10)

    def fn(x):
        state.add_(x.detach())
        return x.exp(), {"view": x[2:]}

    assert held_bytes(fn, x)["cpu"] == 0
    kept = []
    assert held_bytes(lambda x: kept.append(x.detach() * 2), x)["cpu"] == 40


# peak_bytes and kept_bytes

MEBIBYTE = 2**20
FLOAT = 4


def empty(size):
    return torch.empty(size, dtype=torch.uint8)


def planted():
    """Allocate three, then five, then three, then four MiB."""
    first = empty(3 * MEBIBYTE)
    second = empty(2 * MEBIBYTE)
    del second
    return first, empty(1 * MEBIBYTE)


def test_a_planted_pattern_is_read_to_the_byte_without_padding():
    assert peak_bytes(planted) == {"cpu": 5 * MEBIBYTE}
    assert peak_bytes(lambda: empty(3)) == {"cpu": 3}


def test_memory_from_before_does_not_count():
    x, box = torch.ones(1000), []
    assert peak_bytes(lambda: x) == peak_bytes(lambda: x[:10]) == {}
    assert peak_bytes(x.neg_) == {}
    kept_bytes(lambda: box.append(empty(100)))
    assert peak_bytes(lambda: (box.clear(), empty(70))) == {"cpu": 70}


def test_backward_counts_when_it_is_part_of_the_call():
    x = leaf(1000)
    cotangent = torch.randn(1000)

    def forward(x):
        return x.exp()

    def both(x):
        return torch.autograd.grad(forward(x), x, cotangent)

    assert peak_bytes(forward, x)["cpu"] == 1000 * FLOAT
    assert peak_bytes(both, x)["cpu"] == 2 * 1000 * FLOAT  # exp(x) and the gradient


@pytest.mark.parametrize("count", [kept_bytes, held_bytes])
def test_kept_is_what_a_graph_holds_beside_its_result_in_every_call(count):
    model, x = perceptron(), leaf(8, 32)
    assert {count(model, x)["cpu"] for _ in range(3)} == {FLOAT * HIDDEN}
    assert len({peak_bytes(model, x)["cpu"] for _ in range(3)}) == 1
    assert count(lambda x: x.exp(), x)["cpu"] == 0  # the result is saved, but not counted
    assert count(lambda x: x.exp().sin()[:2], x)["cpu"] == FLOAT * 8 * 32
    with torch.no_grad():
        assert count(model, x)["cpu"] == 0


@pytest.mark.parametrize(
    "fn",
    [
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5)),
        within(compress, nn.Sequential(nn.Conv2d(1, 4, 3), nn.Sigmoid())),
        within(offload_to_cpu, nn.Softmax(dim=-1)),
        lambda x: {"a": x.exp().sin(), "b": [x, x.cos().view(-1)[3:]]},
        lambda x: nn.functional.max_pool2d(x, 2).double().log_softmax(0),
    ],
)
def test_kept_agrees_with_held_on_eager_calls(fn):
    x = leaf(5, 1, 8, 8)
    assert kept_bytes(fn, x)["cpu"] == held_bytes(fn, x)["cpu"]


def test_kept_sees_tensors_that_no_op_returns():
    model, x = perceptron(), leaf(8, 32)
    state = torch.get_rng_state().nbytes  # recomputation stores the generator's state for dropout
    assert held_bytes(lambda x: recompute(model, x), x)["cpu"] == 0
    assert kept_bytes(lambda x: recompute(model, x), x)["cpu"] == state


def test_garbage_in_a_cycle_is_in_the_peak_and_is_not_kept():
    def cyclic():
        garbage = [empty(50)]
        garbage.append(garbage)
        del garbage
        return empty(20)

    assert peak_bytes(cyclic) == {"cpu": 70}
    assert kept_bytes(cyclic)["cpu"] == 0
    assert gc.isenabled()


@pytest.mark.slow
def test_compiled_is_counted_as_compiled():
    def chain(x):
        return x.exp().sin().exp().sin().exp()

    x = leaf(1000)
    compiled = torch.compile(chain)
    assert kept_bytes(chain, x)["cpu"] == 2 * 1000 * FLOAT  # the two inner results of exp
    assert kept_bytes(compiled, x)["cpu"] == 0  # backward computes all of them again from x and the result
    assert saved_bytes(compiled, x).saved == 1000 * FLOAT  # the result
    with torch.no_grad():
        assert peak_bytes(chain, x)["cpu"] == 2 * 1000 * FLOAT
        assert peak_bytes(compiled, x)["cpu"] == 1000 * FLOAT  # one loop, one result


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_the_bytes_come_from_the_allocator():
    x = torch.ones(1024, device="cuda")
    assert peak_bytes(lambda x: x.exp().sin(), x)["cuda"] == 2 * 1024 * FLOAT
    assert kept_bytes(lambda x: x.exp().sin(), x.requires_grad_())["cuda"] == 1024 * FLOAT


# what `fused_conv_bn2d` saves, how torch.compile adds to it, and three remedies

IMAGES, WEIGHT = 8 * 3 * 32 * 32 * 4, 16 * 3 * 3 * 3 * 4  # bytes: 98 304 and 1 728
WITH_OUTPUT, WITHOUT_OUTPUT = 500_000, 110_000  # the output has 8 x 16 x 30 x 30 numbers, 460 800 bytes


def arguments(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(8, 3, 32, 32, generator=generator, dtype=dtype)
    return images, torch.randn(16, 3, 3, 3, generator=generator, dtype=dtype).requires_grad_()


def unfused(x, weight):
    return functional.batch_norm(functional.conv2d(x, weight), None, None, training=True, eps=1e-3)


def compiled_anew(fn, backend="aot_eager"):
    torch.compiler.reset()
    return torch.compile(fn, backend=backend)


SINCE_2_14 = Version(torch.__version__) >= Version("2.14.dev0")  # no Function.apply in TorchScript


def test_the_fused_layer_saves_its_arguments_scripted_too_and_the_unfused_pair_the_convolution():
    scripted = [torch.jit.script(fn) for fn in (fused_conv_bn2d_op, *([] if SINCE_2_14 else [fused_conv_bn2d]))]
    for fn in (fused_conv_bn2d, fused_conv_bn2d_op, *scripted):
        assert saved_bytes(fn, *arguments()) == SavedBytes(saved=0, inputs=IMAGES + WEIGHT, parameters=0)
    # the convolution's output, and mean and deviation for 16 filters
    expected = SavedBytes(saved=460_800 + 128, inputs=IMAGES + WEIGHT, parameters=0)
    assert saved_bytes(unfused, *arguments()) == expected
    assert (expected.total, IMAGES + WEIGHT) == (560_960, 100_032)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_the_operator_keeps_the_saving_and_the_function_since_torch_2_14(backend):
    assert saved_bytes(compiled_anew(fused_conv_bn2d_op, backend), *arguments()).total < WITHOUT_OUTPUT
    saved = saved_bytes(compiled_anew(fused_conv_bn2d, backend), *arguments())
    if SINCE_2_14:
        assert saved.total == 100_032
        return
    assert WITH_OUTPUT < saved.total < 560_960
    assert saved.saved >= 460_800


@pytest.mark.parametrize("option", [{"activation_memory_budget": 0.0}, {"cse": False}], ids=str)
def test_an_option_restores_the_saving_of_the_compiled_function(option):
    if not hasattr(torch._functorch.config, *option):
        pytest.skip(f"this torch has no {option}")
    with torch._functorch.config.patch(**option):
        assert saved_bytes(compiled_anew(fused_conv_bn2d), *arguments()).total < WITHOUT_OUTPUT


@pytest.mark.parametrize("fn", [fused_conv_bn2d, unfused])
def test_recomputation_restores_the_saving_for_the_compiled_function_and_the_pair(fn):
    inside = compiled_anew(lambda x, weight: recompute(fn, x, weight))
    assert saved_bytes(inside, *arguments()).total < WITHOUT_OUTPUT
    compiled_fn = compiled_anew(fn)
    assert saved_bytes(lambda x, weight: recompute(compiled_fn, x, weight), *arguments()).total == 100_032


def test_every_way_gives_the_same_gradient():
    images, weight = arguments(torch.float64)
    cotangent = torch.randn(8, 16, 30, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def gradient(fn):
        return torch.autograd.grad(fn(images, weight), weight, cotangent)[0]

    def plain(x, weight):
        y = functional.conv2d(x, weight)
        variance, mean = torch.var_mean(y, (0, 2, 3), keepdim=True)
        return (y - mean) / (variance.sqrt() + 1e-3)

    truth = gradient(plain)
    ways = [
        fused_conv_bn2d,
        fused_conv_bn2d_op,
        compiled_anew(fused_conv_bn2d_op),
        compiled_anew(lambda x, weight: recompute(fused_conv_bn2d, x, weight)),
    ]
    for way in ways:
        torch.testing.assert_close(gradient(way), truth, rtol=1e-10, atol=1e-10)
    with torch._functorch.config.patch(cse=False):
        torch.testing.assert_close(gradient(compiled_anew(fused_conv_bn2d)), truth, rtol=1e-10, atol=1e-10)

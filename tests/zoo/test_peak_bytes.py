"""Peak and kept bytes of one call: exact for known allocations, repeatable, and right for compiled code."""

import gc

import pytest
import torch
from saved_tensor_cases import HIDDEN, leaf, perceptron, within
from torch import nn

from zoo.memory import compress, held_bytes, kept_bytes, offload_to_cpu, peak_bytes, recompute, saved_bytes

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


def test_a_planted_pattern_is_read_to_the_byte():
    assert peak_bytes(planted) == {"cpu": 5 * MEBIBYTE}


def test_an_allocation_counts_without_padding():
    assert peak_bytes(lambda: empty(3)) == {"cpu": 3}


def test_repeats_are_equal():
    model, x = perceptron(), leaf(8, 32)
    assert len({peak_bytes(model, x)["cpu"] for _ in range(5)}) == 1
    assert {kept_bytes(model, x)["cpu"] for _ in range(5)} == {FLOAT * HIDDEN}


def test_earlier_tensors_do_not_count():
    x = torch.ones(1000)
    assert peak_bytes(lambda: x) == peak_bytes(lambda: x[:10]) == {}
    assert peak_bytes(x.neg_) == {}


def test_memory_of_an_earlier_count_that_is_freed_leaves_no_trace():
    box = []
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
def test_kept_is_what_a_graph_holds_beside_its_result(count):
    model, x = perceptron(), leaf(8, 32)
    assert count(model, x)["cpu"] == FLOAT * HIDDEN
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


def test_scripted():
    model, x = torch.jit.script(perceptron()), leaf(8, 32)
    for _ in range(3):
        model(x)
    assert kept_bytes(model, x)["cpu"] == FLOAT * HIDDEN
    assert peak_bytes(model, x)["cpu"] >= FLOAT * (HIDDEN + 8 * 16)


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


@pytest.mark.parametrize("count", [peak_bytes, kept_bytes])
def test_a_value_that_is_not_callable_raises(count):
    with pytest.raises(TypeError, match=rf"{count.__name__}: fn must be callable, got int"):
        count(3)

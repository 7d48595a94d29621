"""The four gathers agree bit for bit and check their index in the same way."""

import pytest
import torch

from zoo.ops.batch_gather import (
    CASES,
    batch_gather_loop,
    batch_gather_native,
    batch_gather_scripted,
    batch_gather_vectorised,
)

VARIANTS = (batch_gather_loop, batch_gather_scripted, batch_gather_vectorised, batch_gather_native)


@pytest.fixture(params=VARIANTS, ids=lambda f: f.__name__)
def gather(request):
    return request.param


def value_and_gradient(gather, tensor, index):
    tensor = tensor.detach().requires_grad_()
    out = gather(tensor, index)
    cotangent = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    return out, torch.autograd.grad(out, tensor, cotangent)[0]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_all_agree_bit_for_bit_gradients_too(case):
    tensor, index = case.inputs(torch.Generator().manual_seed(0))
    out, gradient = value_and_gradient(batch_gather_loop, tensor, index)
    assert out.shape == index.shape + tensor.shape[2:]
    for gather in VARIANTS[1:]:
        its_out, its_gradient = value_and_gradient(gather, tensor, index)
        assert torch.equal(its_out, out)
        assert torch.equal(its_gradient, gradient)


def test_rows_are_those_asked_for(gather):
    tensor = torch.arange(12.0).reshape(2, 3, 2)
    index = torch.tensor([[2, 0], [1, 1]])
    assert gather(tensor, index).tolist() == [[[4, 5], [0, 1]], [[8, 9], [8, 9]]]


def test_gradients_of_duplicates_accumulate(gather):
    tensor = torch.zeros(1, 3, requires_grad=True)
    gather(tensor, torch.tensor([[1, 1, 2]])).backward(torch.tensor([[10.0, 1.0, 5.0]]))
    assert tensor.grad.tolist() == [[0, 11, 5]]


@pytest.mark.parametrize("bad", [3, -1, 5])
def test_an_index_out_of_range_reads_no_other_row(gather, bad):
    with pytest.raises(IndexError, match=r"index must lie in \[0, 3\)"):
        gather(torch.zeros(2, 3, 4), torch.tensor([[0, bad], [1, 2]]))


def test_compiled_out_of_range_is_refused_too():
    compiled = torch.compile(batch_gather_vectorised, backend="aot_eager", fullgraph=True)
    tensor = torch.zeros(2, 3, 4)
    compiled(tensor, torch.tensor([[0, 2], [1, 2]]))
    with pytest.raises(RuntimeError, match=r"index must lie in \[0, 3\)"):
        compiled(tensor, torch.tensor([[0, 3], [1, 2]]))


def test_misfits_are_named(gather):
    with pytest.raises(ValueError, match=rf"^{gather.__name__}: tensor must have shape \(B, N, \.\.\.\), got \[3\]"):
        gather(torch.zeros(3), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"B = 2, got \[3, 1\]"):
        gather(torch.zeros(2, 3), torch.zeros(3, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"B = 2, got \[\]"):
        gather(torch.zeros(2, 3), torch.tensor(0))
    with pytest.raises(TypeError, match=r"int64, got torch\.float32"):
        gather(torch.zeros(2, 3), torch.zeros(2, 1))
    with pytest.raises(ValueError, match="index must be on the device of tensor, cpu, got meta"):
        gather(torch.zeros(2, 3), torch.zeros(2, 1, dtype=torch.int64, device="meta"))


def test_no_row_to_pick_from_is_out_of_range_unless_none_is_picked(gather):
    with pytest.raises(IndexError, match=r"index must lie in \[0, 0\)"):
        gather(torch.zeros(2, 0, 4), torch.zeros(2, 1, dtype=torch.int64))
    assert gather(torch.zeros(2, 0, 4), torch.zeros(2, 0, dtype=torch.int64)).shape == (2, 0, 4)


def test_scripted_as_a_whole_refuses_too():
    scripted = torch.jit.script(batch_gather_loop)
    for _ in range(3):
        with pytest.raises(torch.jit.Error, match=r"IndexError: batch_gather_loop: index must lie in \[0, 3\)"):
            scripted(torch.zeros(2, 3, 4), torch.tensor([[0, 3], [1, 2]]))

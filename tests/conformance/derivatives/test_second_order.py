"""Second derivatives that a callable loses: silently, or with an error that only `backward` raises."""

import pytest
import torch

from conformance.evaluate import evaluation, inputs
from conformance.evaluate.evaluation import Question
from conformance.records.cell import TensorName
from zoo.case import Call

WANTED = (TensorName("second", "x"),)


class CutOff(torch.autograd.Function):
    """Returns its first argument, and lets autograd find a way back to the second one alone."""

    @staticmethod
    def forward(gradient, _):
        return gradient.clone()

    @staticmethod
    def setup_context(ctx, inputs, _):
        ctx.loud = inputs[1].numel() == 1

    @staticmethod
    def backward(ctx, _):
        if ctx.loud:
            raise RuntimeError("there is no double backward")
        return None, torch.zeros(2)


class Square(torch.autograd.Function):
    """x², whose gradient has lost its way back to x, and has one to a tensor of its own."""

    @staticmethod
    def forward(x, _):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, _):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, own = ctx.saved_tensors
        return CutOff.apply(2 * x.detach() * grad.detach(), own), None


def second_derivatives(call):
    x = torch.tensor([1.0, 3.0])
    placed = Call((x.clone(),), {})
    question = Question(placed, Call((x,), {}), inputs.named_inputs(call, placed), (0,), second=True)
    return evaluation.differentiate_twice(call, call, question, WANTED)


def test_a_graph_that_is_whole_gives_them_and_one_that_is_lost_none():
    own = torch.ones(2, requires_grad=True)
    assert second_derivatives(lambda x: x**3)[WANTED[0]].shape == (2,)
    assert second_derivatives(lambda x: Square.apply(x, own)) == {WANTED[0]: None}
    assert own.grad is not None  # nobody but the leaves of the question is put back
    assert second_derivatives(lambda x: Square.apply(x, own).detach() + x) == {WANTED[0]: None}


def test_an_error_that_only_backward_raises_is_raised():
    own = torch.ones(1, requires_grad=True)
    with pytest.raises(RuntimeError, match="there is no double backward"):
        second_derivatives(lambda x: Square.apply(x, own))

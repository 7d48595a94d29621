"""Modes that change the numbers, types or shapes of a right model; imported by the sources beside this file."""

import torch
from miniature_parts import around, register
from torch import Tensor
from torch.utils import _pytree as pytree

U = 2.0**-24  # float32's unit roundoff


class Bent(torch.autograd.Function):
    """The identity, but for what `forward_by` does to the value and `backward_by` to the gradient."""

    @staticmethod
    def forward(ctx, value, forward_by, backward_by):
        ctx.backward_by = backward_by
        return forward_by(value)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.backward_by(gradient), None, None


def same(value):
    return value.view_as(value)


def _on_floats(change, tree):
    return pytree.tree_map(lambda t: change(t) if isinstance(t, Tensor) and t.is_floating_point() else t, tree)


def outputs_through(damage):
    """Make a mode that damages every floating output and leaves gradients alone."""

    def call(model, *args, **kwargs):
        return _on_floats(lambda y: Bent.apply(y, damage, same), model(*args, **kwargs))

    return around(call)


def gradients_through(damage):
    """Make a mode that damages the gradient of every floating input and leaves outputs alone."""

    def call(model, *args, **kwargs):
        args, kwargs = _on_floats(lambda x: Bent.apply(x, same, damage), (args, kwargs))
        return model(*args, **kwargs)

    return around(call)


def _one_term_left(model, x):
    """A hundredth of a term that should cancel stays in the gradient of the first weight."""
    weight = Bent.apply(model.first.weight, same, lambda g: g + 0.01)
    return torch.func.functional_call(model, {"first.weight": weight}, (x,))


def first_element(value):
    def damage(y):
        y = y.clone()
        y.view(-1)[0] = value
        return y

    return damage


def _without_sample(y):
    y = y.clone()
    y[-1] = 0
    return y


def _next_ulp(y):
    y = y.clone()
    y.view(-1)[0] = torch.nextafter(y.view(-1)[0], torch.tensor(torch.inf))
    return y


def _through(dtype):
    return lambda y: y.to(dtype).to(y.dtype)


# Damage to a float32 tensor that one value gate alone sees. The perturbed runs of one product stray by about 4 U.


def _spread_evenly(y):
    """Every element off by 7 U of itself, signs balanced so that no factor comes out."""
    signs = torch.ones(y.numel(), dtype=torch.float64)
    signs[y.flatten().abs().argsort()[::2]] = -1
    return (y.double() * (1 + 7 * U * signs.view_as(y))).float()


def _factor_of_five_roundings(y):
    return (y.double() * (1 + 5.0 * U)).float()


def _one_element(y):
    y = y.clone()
    y[3, 5] += 24 * U * (y[3, 5].abs() + y.square().mean().sqrt())
    return y


class GraphLost(torch.autograd.Function):
    """Right values and gradients; second derivatives lost in silence."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        return 3 * ctx.saved_tensors[0].detach() ** 2 * g


class SecondWrong(GraphLost):
    """Right values and gradients; the second derivative is 3 x for 6 x."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x.detach() * g


register(
    one_percent=gradients_through(lambda g: g * 1.01),
    sample_dropped=gradients_through(_without_sample),
    zeros=gradients_through(torch.zeros_like),
    sign=gradients_through(torch.neg),
    one_term_left=around(_one_term_left),
    rolled=gradients_through(lambda g: g.roll(1, 0)),
    gradient_nan=gradients_through(first_element(torch.nan)),
    extra_axis=outputs_through(lambda y: y.unsqueeze(0)),
    wrong_dtype=outputs_through(torch.Tensor.double),
    nan=outputs_through(first_element(torch.nan)),
    inf=outputs_through(first_element(torch.inf)),
    one_ulp=outputs_through(_next_ulp),
    spread_evenly=outputs_through(_spread_evenly),
    row_dropped=outputs_through(_without_sample),
    five_roundings=outputs_through(_factor_of_five_roundings),
    one_element=outputs_through(_one_element),
    bfloat16_inside=outputs_through(_through(torch.bfloat16)),
    float16_inside=outputs_through(_through(torch.float16)),
    plus_one=around(lambda model, x: model(x) + 1),
    no_gradient=around(lambda model, *args: model(*(a.detach() for a in args))),
    tupled=around(lambda model, x: (model(x),)),
    detached=around(lambda model, x: model(x).detach()),
    graph_lost=around(lambda _, x: GraphLost.apply(x)),
    second_wrong=around(lambda _, x: SecondWrong.apply(x)),
)

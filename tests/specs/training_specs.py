"""Specs that train: one as it should be, the others wrong on purpose in what only a fit can do wrong."""

from dataclasses import replace

import torch
from torch import nn

from zoo import Case, Spec

STEPS = 10


def _net():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def _points(generator):
    x = torch.randn(32, 8, generator=generator)
    return x, torch.sin(x @ torch.randn(8, 4, generator=generator))


def _descend(call, model, precision, x, y, *, rate=0.5, low=True):  # noqa: PLR0913
    dtype = {"amp_fp16": torch.float16, "amp_bf16": torch.bfloat16}.get(precision)
    losses = []
    for _ in range(STEPS):
        with torch.autocast("cpu", dtype=dtype, enabled=low and dtype is not None):
            loss = (call(x).to(y.dtype) - y).square().mean()
        for parameter, gradient in zip(
            model.parameters(), torch.autograd.grad(loss, tuple(model.parameters())), strict=True
        ):
            parameter.data.sub_(rate * gradient)
        losses.append(loss.detach())
    return torch.stack(losses)


def _hasty(call, model, precision, x, y):
    return _descend(call, model, precision, x, y, rate=0.5 if precision == "fp32" else 0.55)


def _wide(call, model, precision, x, y):
    return _descend(call, model, precision, x, y, low=False)


def _aloof(_call, model, precision, x, y):
    return _descend(model, model, "fp32", x, y, low=precision == "never")


def _greedy(call, model, precision, x, y):
    curve = _descend(call, model, precision, x, y)
    x.mul_(2)
    return curve


def _wanders(call, model, precision, x, y):
    return _descend(call, model, precision, x + torch.randn(()), y)


RIGHT = Spec(
    name="right",
    summary="gradient descent",
    source="this file",
    build=_net,
    cases=(Case(name="typical", inputs=_points),),
    dtypes="float32",
    differentiable=False,
    fit=_descend,
)
WRONG = tuple(
    replace(RIGHT, name=fit.__name__.lstrip("_"), fit=fit) for fit in (_hasty, _wide, _aloof, _greedy, _wanders)
)

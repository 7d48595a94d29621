"""Models and modes that are wrong under `torch.vmap` or in forward mode only."""

import torch
from miniature_parts import VALUES, around, fails, gets, register, spec_of
from torch import nn
from torch.autograd import forward_ad

from zoo import Case


class _Cube(torch.autograd.Function):
    """Right but for what a subclass replaces."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x * x

    @staticmethod
    def setup_context(ctx, inputs, output):  # noqa: ARG004
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        return 3 * ctx.saved_tensors[0].square() * g

    @staticmethod
    def jvp(ctx, t):
        return 3 * ctx.saved_tensors[0].square() * t


def _tangent(slope):
    return staticmethod(lambda ctx, t: slope * ctx.saved_tensors[0].square() * t)


class _WrongTangent(_Cube):
    jvp = _tangent(3.06)


class _SignTangent(_Cube):
    jvp = _tangent(-3)


class _NoTangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g


class _SwappedBatch(_Cube):
    """Its rule for vmap returns two samples in each other's place."""

    generate_vmap_rule = False

    @staticmethod
    def vmap(_, in_dims, x):
        x = x.movedim(in_dims[0], 0)
        return (x * x * x)[[1, 0, *range(2, x.shape[0])]], 0


class _WrongOnTheWay(torch.autograd.Function):
    """The backward of a square: right itself, and its own backward is wrong."""

    @staticmethod
    def forward(ctx, x, g):
        ctx.save_for_backward(x, g)
        return 2 * x * g

    @staticmethod
    def backward(ctx, h):
        x, g = ctx.saved_tensors
        return 2 * g * h, 2.02 * x * h


class _WrongTranspose(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return _WrongOnTheWay.apply(ctx.saved_tensors[0], g)


class _OnceOnly(_NoTangent):
    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g


class _Hidden(_NoTangent):
    """Its backward hides from autograd how it depends on its cotangent."""

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0].detach() * g.detach()


class Mixing(nn.Module):
    """Centres a sample by its mean; under vmap, by the mean of all samples."""

    def forward(self, x):
        return x - _MeanOfAll.apply(x)


class _MeanOfAll(torch.autograd.Function):
    """The mean of all elements. Its rule for vmap flattens the batch with .view(-1), too."""

    @staticmethod
    def forward(x):
        return x.reshape(-1).mean()

    @staticmethod
    def setup_context(ctx, inputs, output):  # noqa: ARG004
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx, g):
        return (g / torch.Size(ctx.shape).numel()).expand(ctx.shape)

    @staticmethod
    def vmap(_, in_dims, x):
        return x.movedim(in_dims[0], 0).contiguous().view(-1).mean(), None


def _without_tangents(model, x):
    """Forward mode ends here without an error, as in code that was specialised for plain tensors."""
    y = model(x)
    return y.clone() if torch._C._functorch.maybe_current_level() else forward_ad.unpack_dual(y).primal


def _refusing(model, x):
    if torch._C._functorch.is_functorch_wrapped_tensor(x) or forward_ad.unpack_dual(x).tangent is not None:
        raise RuntimeError("this mode transforms nothing")
    return model(x)


def _drawn_shape(generator):
    return (torch.randn(int(torch.randint(1, 2**30, (), generator=generator)) % 997 + 1, generator=generator),)


register(tangents_lost=around(_without_tangents), refuses_transforms=around(_refusing))

WRONG_TANGENT = spec_of("wrong_tangent", lambda: _WrongTangent.apply, forward_mode=True)
SIGN_TANGENT = spec_of("sign_tangent", lambda: _SignTangent.apply, forward_mode=True)
UNCLAIMED_TANGENT = spec_of("unclaimed_tangent", lambda: _WrongTangent.apply)
NO_TANGENT = spec_of("no_tangent", lambda: _NoTangent.apply, forward_mode=True)
SWAPPED = spec_of("swapped_batch", lambda: _SwappedBatch.apply, vmappable=True)
MIXING = spec_of("mixing", Mixing, vmappable=True)
BRANCHES = spec_of("branches", lambda: lambda x: x * 2 if x.sum() > 0 else x * 3, vmappable=True)
TRANSPOSED = spec_of("wrong_transpose", lambda: _WrongTranspose.apply, forward_mode=True)
HIDDEN = spec_of("hidden_cotangent", lambda: _Hidden.apply, forward_mode=True)
ONCE_ONLY = spec_of("once_only", lambda: _OnceOnly.apply, forward_mode=True)
SHAPES = spec_of(
    "drawn_shapes",
    lambda: torch.tanh,
    Case(name="typical", inputs=_drawn_shape),
    vmappable=True,
)
BOTH = spec_of("both_transforms", lambda: nn.Linear(5, 4), vmappable=True, forward_mode=True, dtypes="follows")

SCRIPTED = spec_of(
    "scripted_tangents",
    lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Tanh()),
    forward_mode=True,
    dtypes="follows",
)

MINIATURES = (
    fails(SCRIPTED, "scripted", "fp32", "structure", text="tangent of output.*None, where the oracle has"),
    fails(WRONG_TANGENT, "eager", "fp32", *VALUES, text="tangent of output"),
    fails(SIGN_TANGENT, "eager", "amp_bf16", *VALUES, text="tangent of output"),
    gets(UNCLAIMED_TANGENT, "eager", "fp32", "PASS"),
    gets(NO_TANGENT, "eager", "fp32", "ERROR", text="in phase transforms: .*jvp"),
    fails(SWAPPED, "eager", "fp32", *VALUES, text="vmapped output"),
    fails(SWAPPED, "eager", "amp_bf16", *VALUES, text="vmapped output"),
    fails(MIXING, "eager", "fp32", "norm", "slice", "pointwise", text="vmapped output"),
    gets(BRANCHES, "eager", "fp32", "ERROR", text="in phase transforms: .*vmap"),
    gets(TRANSPOSED, "eager", "fp32", "INVALID", text="forward_mode: the backward, transposed, gives"),
    gets(ONCE_ONLY, "eager", "fp32", "INVALID", text="can the backward be differentiated"),
    gets(HIDDEN, "eager", "fp32", "INVALID", text="forward_mode needs a backward that can be differentiated itself"),
    gets(SHAPES, "eager", "fp32", "INVALID", text="vmappable, but its draws differ in structure, shape"),
    fails(BOTH, "tangents_lost", "fp32", "structure", text="tangent of output.*None, where the oracle has"),
    gets(BOTH, "refuses_transforms", "fp32", "PASS"),
)

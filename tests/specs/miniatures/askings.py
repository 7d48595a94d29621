"""Functions and models that are right in one plain call, and wrong where people ask otherwise."""

import torch
from miniature_parts import VALUES, fails, gets, rows, spec_of
from torch import nn
from torch.autograd import Function

from zoo import Call, Case


class Sine(Function):
    """sin, of which each subclass has a backward of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()


class Clipped(Sine):
    @staticmethod
    def backward(ctx, g):
        return g.clamp(-100.0, 100.0) * ctx.saved_tensors[0].cos()


class BlindToStrides(Sine):
    @staticmethod
    def backward(ctx, g):
        x = ctx.saved_tensors[0]
        return g.as_strided(x.shape, x.stride()) * x.cos()


class Flattening(Sine):
    @staticmethod
    def backward(ctx, g):
        x = ctx.saved_tensors[0]
        return (g.view(-1) * x.reshape(-1).cos()).view(x.shape)


class OnTheClass(Sine):
    @staticmethod
    def forward(ctx, x):
        OnTheClass.last = x.detach()
        return Sine.forward(ctx, x)

    @staticmethod
    def backward(ctx, g):
        return g * OnTheClass.last.cos() + 0 * ctx.saved_tensors[0]


class CountsPasses(Sine):
    @staticmethod
    def backward(ctx, g):
        x = ctx.saved_tensors[0]
        seen = getattr(ctx, "seen", 0)
        ctx.seen = seen + 1
        return g * x.cos() * (1.0 + seen)


class TwoOutputs(Function):
    """sin and exp; without the second, the backward of the first is twice as large."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.set_materialize_grads(False)
        return x.sin(), x.exp()

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        return 2 * g * x.cos() if h is None else (0 if g is None else g * x.cos()) + h * x.exp()


class Product(Function):
    """x · w; wrong for one operand where the other needs no gradient."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        both = all(ctx.needs_input_grad)
        return (g * w if both else 2 * g * w), (g * x if both else 2 * g * x)


class OneGradient(Function):
    """x + y, whose two gradients lie in one memory."""

    @staticmethod
    def forward(_, x, y):
        return x + y

    @staticmethod
    def backward(_, g):
        own = g.clone()
        return own.view(g.shape), own.view(g.shape)


class Demanding(Product):
    """Its backward needs a gradient of each operand to be asked for."""

    @staticmethod
    def backward(ctx, g):
        if not all(ctx.needs_input_grad):
            raise ValueError("no gradient of w")
        return Product.backward(ctx, g)


class Scale(nn.Module):
    """A product with a weight."""

    def __init__(self, function):
        super().__init__()
        self.function, self.w = function, nn.Parameter(torch.linspace(0.5, 1.5, 5))

    def forward(self, x):
        return self.function.apply(x, self.w.expand(x.shape))


class Force(nn.Linear):
    """The slope of an energy: forward itself needs the gradient of its input."""

    def forward(self, x):
        return torch.autograd.grad(super().forward(x).exp().sum(), x, create_graph=True)[0]


class Serving(nn.Linear):
    """A Linear whose result is another one without gradients."""

    def __init__(self, change):
        super().__init__(5, 4)
        self.change = change

    def forward(self, x):
        y = super().forward(x)
        return y if torch.is_grad_enabled() else self.change(y)


class Counter(nn.Linear):
    """A Linear that divides by the number of its calls, which is a plain attribute."""

    def __init__(self):
        super().__init__(5, 4)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) / self.calls


class Recurrent(nn.Module):
    """A cell that keeps its hidden state, a tensor that the first call makes."""

    def __init__(self):
        super().__init__()
        self.cell, self.hidden = nn.GRUCell(5, 4), None

    def forward(self, x):
        hidden = torch.zeros(x.shape[0], 4, dtype=x.dtype, device=x.device) if self.hidden is None else self.hidden
        y = self.cell(x, hidden)
        self.hidden = y.detach()
        return y


class Largest(nn.Linear):
    """A Linear of inputs over the largest number so far, which is a tensor and no buffer."""

    def __init__(self):
        super().__init__(5, 4)
        self.largest = torch.zeros(())

    def forward(self, x):
        self.largest = torch.maximum(self.largest, x.detach().float().abs().max())
        return super().forward(x / self.largest.to(x.dtype))


class SharingCopies(nn.Linear):
    """A Linear whose deep copy has its weight."""

    def __deepcopy__(self, memo):
        other = SharingCopies(5, 4)
        other.weight, other.bias = self.weight, self.bias
        return other


class KeepingItself(nn.Linear):
    """A Linear that holds a function of itself, by which its copies use its weight."""

    def __init__(self):
        super().__init__(5, 4)
        self.product = lambda x: nn.functional.linear(x, self.weight, self.bias)

    def forward(self, x):
        return self.product(x)


class Unsaved(nn.Linear):
    """A Linear that adds numbers which it has drawn and does not save."""

    def __init__(self):
        super().__init__(5, 4)
        self.added = torch.randn(4)

    def forward(self, x):
        return super().forward(x) + self.added.to(x.dtype)


class Forgetting(nn.Linear):
    """A Linear that divides by an attribute, which is not pickled."""

    by = 1.0

    def __deepcopy__(self, memo):
        other = _dividing()
        other.load_state_dict(self.state_dict())
        return other

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "by"}

    def forward(self, x):
        return super().forward(x) / self.by


class Remembering(nn.Linear):
    """A Linear on the weight that it had when it was made."""

    def __init__(self):
        super().__init__(5, 4)
        vars(self)["held"] = self.weight

    def forward(self, x):
        return nn.functional.linear(x, self.held, self.bias)


class Branching(nn.Linear):
    """A Linear that returns a wider dtype for some inputs."""

    def forward(self, x):
        y = super().forward(x)
        wider = torch.float64 if y.dtype == torch.float32 else torch.float32
        return y if x.flatten()[0] < 0 else y.to(wider)


class Scratch(nn.Module):
    """sin(x) · 2, of which it keeps a part on itself from one line to the next."""

    def forward(self, x):
        self.sine = x.sin()
        for _ in range(300):
            x = x + 1
        return self.sine * 2


class Batched(Sine):
    """sin under vmap, right only if the first operand has its samples in front, and the second has some too."""

    @staticmethod
    def forward(x, y):
        return x.sin() * y

    @staticmethod
    def setup_context(ctx, inputs, _):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * x.cos() * y, g * x.sin()


class BlindToAxes(Batched):
    @staticmethod
    def vmap(info, in_dims, x, y):
        x, y = (
            t if axis is None or t.shape[0] == info.batch_size else t.movedim(axis, 0)
            for t, axis in zip((x, y), in_dims, strict=True)
        )
        return BlindToAxes.apply(x, y), 0


class NeedsBoth(Batched):
    @staticmethod
    def vmap(_, in_dims, x, y):
        axes = [-1 if axis is None else axis for axis in in_dims]
        return NeedsBoth.apply(x.movedim(axes[0], 0), y.movedim(axes[1], 0)), 0


def _dividing():
    model = Forgetting(5, 4)
    model.by = 3.0
    return model


CLIPPED = spec_of("clipped", lambda: Clipped.apply)
BLIND = spec_of("blind_to_strides_of_g", lambda: BlindToStrides.apply)
ON_THE_CLASS = spec_of("on_the_class", lambda: OnTheClass.apply)
COUNTS_PASSES = spec_of("counts_its_passes", lambda: CountsPasses.apply)
TWO_OUTPUTS = spec_of("needs_both_outputs", lambda: TwoOutputs.apply)
FLATTENING = spec_of("flattening", lambda: Flattening.apply)
SCALE = spec_of("scale_by_product", lambda: Scale(Product))
DEMANDING = spec_of("demanding", lambda: Scale(Demanding))
FORCE = spec_of("force", lambda: Force(5, 4))
OTHER_IN_INFERENCE = spec_of("other_in_inference", lambda: Serving(lambda y: 1.5 * y))
INFINITE_IN_INFERENCE = spec_of("infinite_in_inference", lambda: Serving(lambda y: y / 0.0))
PAIR_IN_INFERENCE = spec_of("pair_in_inference", lambda: Serving(lambda y: (y, y)))
NO_INFERENCE = spec_of("no_inference", lambda: Serving(lambda y: y.backward()))
SHARING, KEEPING = spec_of("sharing_copies", lambda: SharingCopies(5, 4)), spec_of("keeping_itself", KeepingItself)
UNSAVED, FORGETTING = spec_of("unsaved", Unsaved), spec_of("forgetting", _dividing)
TWO = Case(name="typical", inputs=lambda g: (torch.randn(3, 3, generator=g), torch.randn(3, 3, generator=g)))
BLIND_TO_AXES = spec_of("blind_to_axes", lambda: BlindToAxes.apply, TWO, vmappable=True)
ONE_GRADIENT = spec_of("one_gradient", lambda: OneGradient.apply, TWO)
NEEDS_BOTH = spec_of("needs_both", lambda: NeedsBoth.apply, TWO, vmappable=True)
SCRATCH, SHARED_SCRATCH = spec_of("scratch", Scratch), spec_of("shared_scratch", Scratch, threads=2)
BRANCHING = spec_of("branching", lambda: Branching(5, 4), stops_gradients=True)
REMEMBERING = spec_of("remembering", Remembering)
PADDING = {"src_key_padding_mask": torch.tensor([[False] * 6, [False] * 4 + [True] * 2])}
ENCODER = spec_of(
    "encoder_with_padding",
    lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval(),
    Case(name="typical", inputs=lambda g: Call((torch.randn(2, 6, 16, generator=g),), PADDING)),
)
BARE_ENCODER = spec_of(
    "encoder",
    lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval(),
    rows(2, 6, 16),
)
STATES = {"stops_gradients": True}
COUNTER, RECURRENT = spec_of("counter", Counter), spec_of("recurrent", Recurrent, **STATES)
LARGEST = spec_of("largest_so_far", Largest, **STATES)

MINIATURES = (
    fails(CLIPPED, "eager", "fp32", *VALUES, text="with a loss 256 times as large"),
    fails(BLIND, "eager", "fp32", *VALUES, text="with a cotangent that is not contiguous"),
    fails(ON_THE_CLASS, "eager", "fp32", *VALUES, text="with another call before backward"),
    gets(COUNTS_PASSES, "eager", "fp32", "INVALID", text="two backward passes over one graph"),
    fails(TWO_OUTPUTS, "eager", "fp32", *VALUES, text="with an output unused"),
    fails(ONE_GRADIENT, "eager", "fp32", "exact", text="with .grad halved in place"),
    fails(FLATTENING, "eager", "fp32", "structure", text="it raises RuntimeError: view size is not compatible"),
    fails(SCALE, "eager", "fp32", *VALUES, text="with frozen weights"),
    fails(DEMANDING, "eager", "fp32", "structure", text="with frozen weights: it raises ValueError: no gradient of w"),
    gets(FORCE, "eager", "fp32", "PASS"),
    # In low precision
    fails(ON_THE_CLASS, "eager", "amp_fp16", *VALUES, text="with another call before backward"),
    fails(SCALE, "eager", "amp_bf16", *VALUES, text="with frozen weights"),
    fails(OTHER_IN_INFERENCE, "eager", "amp_bf16", *VALUES, text="under no_grad"),
    gets(FORCE, "eager", "amp_bf16", "PASS"),
    # Without gradients
    fails(PAIR_IN_INFERENCE, "eager", "fp32", "structure", text="under no_grad: None, where the oracle has a tensor"),
    fails(OTHER_IN_INFERENCE, "eager", "fp32", *VALUES, text="under no_grad"),
    fails(INFINITE_IN_INFERENCE, "eager", "fp32", "class", "precision", text="under no_grad"),
    gets(NO_INFERENCE, "eager", "fp32", "PASS"),
    gets(ENCODER, "eager", "fp32", "PASS"),
    gets(BARE_ENCODER, "eager", "fp32", "PASS"),
    gets(BARE_ENCODER, "eager", "amp_fp16", "PASS"),
    # Of another draw
    fails(BRANCHING, "eager", "fp32", "dtype", text="typical, with other weights: float64"),
    fails(BRANCHING, "eager", "amp_bf16", "dtype", text="typical, with other weights: float32, should be bfloat16"),
    gets(SCRATCH, "eager", "fp32", "PASS"),
    # Under vmap
    fails(BLIND_TO_AXES, "eager", "fp32", *VALUES, text="under vmap over the last axis"),
    fails(NEEDS_BOTH, "eager", "fp32", *VALUES, text="under vmap over input 1 alone"),
    # Of a copy
    fails(SHARING, "eager", "fp32", *VALUES, text="after its deep copy was changed"),
    fails(KEEPING, "eager", "fp32", "structure", text="in a deep copy: None, where the oracle has a tensor"),
    fails(UNSAVED, "eager", "fp32", *VALUES, text="with its state_dict in a fresh build"),
    fails(FORGETTING, "eager", "fp32", *VALUES, text="saved and loaded"),
    fails(REMEMBERING, "eager", "fp32", *VALUES, text="by functional_call on other weights"),
    # State in plain attributes
    *(
        gets(spec, "eager", precision, "PASS")
        for spec in (COUNTER, RECURRENT, LARGEST)
        for precision in ("fp32", "amp_bf16")
    ),
)

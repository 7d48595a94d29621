"""A network of twelve modules with one fault in `layers.7`: of a backend, of TorchScript, or of eager in float16."""

import torch
from torch import nn
from torch.autograd import Function

import conformance
from zoo import Case, Spec

FAULTY = 7


class Block(nn.Module):
    """A residual block that keeps a running mean."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        y = x + torch.tanh(self.norm(self.linear(x)))
        with torch.no_grad():
            self.mean.mul_(0.5).add_(y.mean(0), alpha=0.25)
        return y


class ScriptedOtherwise(nn.Module):
    """A block that computes something else in TorchScript."""

    def __init__(self, fault):
        super().__init__()
        self.linear, self.fault = nn.Linear(8, 8), fault

    def forward(self, x):
        y = x + self.linear(x)
        if torch.jit.is_scripting():
            if self.fault == "value":
                y = y * 1.0625
            if self.fault == "gradient":
                y = y.detach() + 0.9375 * (y - y.detach())
            if self.fault == "error":
                assert x.shape[0] < 0
        return y


class ScriptedAsFloat64(nn.Module):
    """A block whose script returns float64."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        y = x + self.linear(x)
        if torch.jit.is_scripting():
            return y.double()
        return y


class WrongWhenLow(Function):
    """x; under autocast, its value or its gradient is wrong."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        low = torch.is_autocast_enabled("cpu")
        ctx.factor = backward if low else 1.0
        return x * (forward if low else 1.0)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor, None, None


class Low(Block):
    """A block that is wrong under autocast."""

    def __init__(self, forward, backward):
        super().__init__()
        self.factors = forward, backward

    def forward(self, x):
        return WrongWhenLow.apply(super().forward(x), *self.factors)


class Overflowing(Block):
    """A block that holds a number above the largest of float16."""

    def forward(self, x):
        return super().forward(x) + 2.0**-24 * (self.linear(2.0**12 * x) * 64.0).mean(-1, keepdim=True)


class AsFloat32(nn.Module):
    """A linear layer whose output float32 makes of every sum behind it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x).float()


class WrongBackward(Function):
    """sin, with half of its derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return 0.5 * g * ctx.saved_tensors[0].cos()


class Misled(Block):
    """A block with a wrong backward."""

    def forward(self, x):
        return WrongBackward.apply(super().forward(x))


class Net(nn.Module):
    """Twelve modules, of which one is odd."""

    def __init__(self, odd):
        super().__init__()
        self.layers = nn.ModuleList((odd if number == FAULTY else Block)() for number in range(12))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Plain(Net):
    """The same without buffers, as TorchScript takes it."""

    def __init__(self, odd):
        nn.Module.__init__(self)
        self.layers = nn.ModuleList(odd() if number == FAULTY else ScriptedOtherwise("") for number in range(12))


def _damaging(name, damage):
    """A backend on top of eager that damages the node of that name in the faulty block."""

    def compile_graph(graph, _):
        found = [node for node in graph.graph.nodes if name in node.name]
        if len(found) > FAULTY:
            damage(graph.graph, found[FAULTY])
            graph.recompile()
        return graph

    return compile_graph


def _apply(function):
    def damage(graph, node):
        with graph.inserting_after(node):
            new = graph.call_function(function, (node,))
        node.replace_all_uses_with(new)
        new.args = (node,)

    return damage


def _double_alpha(_, node):
    node.kwargs = {"alpha": 0.5}


def _refuse(_):
    raise ValueError("this backend takes no such graph")


conformance.register_backend("wrong_value", _damaging("tanh", _apply(lambda y: y * 1.0625)))
conformance.register_backend("wrong_gradient", _damaging("tanh", _apply(lambda y: y.detach() * 0.5 + y * 0.5)))
conformance.register_backend("wrong_number", _damaging("tanh", _apply(lambda y: y / (y != y.max()))))
conformance.register_backend("wrong_state", _damaging("add_", _double_alpha))
conformance.register_backend("refusing", _damaging("tanh", _apply(_refuse)))


def _spec(name, build, **fields):
    case = Case(name="typical", inputs=lambda g: (torch.randn(6, 8, generator=g),))
    return Spec(name=name, summary=name, source="a test", build=build, cases=(case,), **fields)


RIGHT = _spec("right", lambda: Net(Block))
ODD_VALUE = _spec("odd_value", lambda: Plain(lambda: ScriptedOtherwise("value")))
ODD_GRADIENT = _spec("odd_gradient", lambda: Plain(lambda: ScriptedOtherwise("gradient")))
ODD_ERROR = _spec("odd_error", lambda: Plain(lambda: ScriptedOtherwise("error")))
ODD_DTYPE = _spec("odd_dtype", lambda: Plain(ScriptedAsFloat64))
LOW_VALUE = _spec("low_value", lambda: Net(lambda: Low(1.0625, 1.0)))
LOW_GRADIENT = _spec("low_gradient", lambda: Net(lambda: Low(1.0, 1.25)))
OVERFLOWING = _spec("overflowing", lambda: Net(Overflowing))
MISLED = _spec("misled", lambda: Net(Misled))
LATE = _spec("late", lambda: nn.Sequential(nn.Linear(8, 8), AsFloat32(), nn.Tanh()), dtypes="follows")


class Hebb(nn.Module):
    """A layer that keeps a sum of products; torch loses the factor where it compiles that (pytorch#167313)."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("sum", torch.zeros(8, 8))

    def forward(self, x):
        y = self.linear(x)
        with torch.no_grad():
            self.sum.mul_(0.5).add_(y.t() @ x, alpha=0.25)
        return x + torch.tanh(y @ self.sum)


LOSING = _spec("losing", lambda: Net(Hebb))

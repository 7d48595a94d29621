"""An LSTM cell written out, and the loop that runs it over a sequence.

Source: Hochreiter and Schmidhuber, "Long Short-Term Memory", Neural Computation 9(8), 1997, with the forget gate of
Gers et al. 2000. `LSTMCell` has the parameters of `torch.nn.LSTMCell`, so a state dict fits both. It is plain torch
code: TorchScript compiles it, and `torch.compile` unrolls the loop over the steps, a graph for each length. torch does
not compile `nn.LSTM`, which it runs eagerly without a word.

Under autocast the products have the autocast dtype. The state stays in the dtype in which it came, because a gate in
low precision times a float32 state is float32.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from zoo.arguments import want_sizes, want_tensors
from zoo.case import Case
from zoo.error_input import ErrorInput
from zoo.family import Family
from zoo.scale import Scale
from zoo.spec import Spec


def _want_pair(state: object) -> None:
    if not isinstance(state, (tuple, list)) or len(state) != 2:  # noqa: PLR2004
        kind = "None" if state is None else type(state).__name__
        raise TypeError(f"LSTMCell: state must be a pair of tensors, got {kind}")


class LSTMCell(nn.Module):
    """One step of an LSTM: i, f, g, o = W x + b + U h + d;  c' = σ(f) c + σ(i) tanh(g);  h' = σ(o) tanh(c').

    Args:
        input_size: features of an input.
        hidden_size: features of the state.

    Raises:
        TypeError: a size is not an integer.
        ValueError: a size is below 1.

    >>> h, c = LSTMCell(4, 6)(torch.ones(3, 4), (torch.zeros(3, 6), torch.zeros(3, 6)))
    >>> h.shape, c.shape
    (torch.Size([3, 6]), torch.Size([3, 6]))
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        want_sizes("LSTMCell", input_size=input_size, hidden_size=hidden_size)
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        self.bias_ih = nn.Parameter(torch.empty(4 * hidden_size))
        self.bias_hh = nn.Parameter(torch.empty(4 * hidden_size))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1 / math.sqrt(hidden_size), 1 / math.sqrt(hidden_size))

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Map (batch, input_size) and the state h, c, each (batch, hidden_size), to the next state.

        Raises:
            ValueError: a shape does not fit.
            TypeError: an argument is not a tensor, or does not hold floating-point numbers.
        """
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            _want_pair(state)
            want_tensors("LSTMCell", x=x, h=state[0], c=state[1])
        h, c = state
        if x.dim() != 2 or x.size(1) != self.input_size:  # noqa: PLR2004
            raise ValueError(f"LSTMCell: x must have shape (batch, {self.input_size}), got {list(x.shape)}")
        wanted = [x.size(0), self.hidden_size]
        if list(h.shape) != wanted or list(c.shape) != wanted:
            raise ValueError(f"LSTMCell: h and c must have shape {wanted}, got {list(h.shape)} and {list(c.shape)}")
        if not (x.is_floating_point() and h.is_floating_point() and c.is_floating_point()):
            raise TypeError(f"LSTMCell: x, h and c must have a floating dtype, got {x.dtype}, {h.dtype} and {c.dtype}")
        gates = nn.functional.linear(x, self.weight_ih, self.bias_ih)
        gates = gates + nn.functional.linear(h, self.weight_hh, self.bias_hh)
        i, f, g, o = gates.chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class Recurrence(nn.Module):
    """Runs a cell over the steps of a sequence.

    Args:
        cell: maps (batch, input_size) and (h, c) to the next (h, c): `LSTMCell` or `nn.LSTMCell`.

    Raises:
        TypeError: `cell` is not a module.

    >>> outputs, h, c = Recurrence(LSTMCell(4, 6))(torch.ones(5, 3, 4), torch.zeros(3, 6), torch.zeros(3, 6))
    >>> outputs.shape, torch.equal(outputs[-1], h)
    (torch.Size([5, 3, 6]), True)
    """

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        if not isinstance(cell, nn.Module):
            raise TypeError(f"Recurrence: cell must be a module, got {'None' if cell is None else type(cell).__name__}")
        self.cell = cell

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map (steps, batch, input_size) and the first state to all h, (steps, batch, hidden_size), and the last state.

        Raises:
            ValueError: `x` has another rank or no steps; `LSTMCell` also checks the other shapes.
            TypeError: an argument is not a tensor.
        """
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            want_tensors("Recurrence", x=x, h=h, c=c)
        if x.dim() != 3 or x.size(0) == 0:  # noqa: PLR2004
            raise ValueError(
                f"Recurrence: x must have shape (steps, batch, input_size) with at least one step, got {list(x.shape)}"
            )
        outputs: list[Tensor] = []
        for step in x.unbind(0):
            h, c = self.cell(step, (h, c))
            outputs.append(h)
        return torch.stack(outputs), h, c


def _sigmoid(x: Tensor) -> Tensor:
    return (-x).exp().add(1).reciprocal()


def _reference(model: Recurrence, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute each gate on its own, from the concatenated input and state; tanh from exponentials."""
    weights = dict(model.cell.named_parameters())
    joint = torch.cat([weights["weight_ih"], weights["weight_hh"]], 1).chunk(4)
    bias = (weights["bias_ih"] + weights["bias_hh"]).chunk(4)
    outputs = []
    for step in range(x.size(0)):
        both = torch.cat([x[step], h], 1)
        i, f, g, o = (torch.einsum("bk,hk->bh", both, w) + b for w, b in zip(joint, bias, strict=True))
        c = c * _sigmoid(f) + (2 * _sigmoid(2 * g) - 1) * _sigmoid(i)
        h = (2 * _sigmoid(2 * c) - 1) * _sigmoid(o)
        outputs.append(h)
    return torch.stack(outputs), h, c


def _sequence(
    shape: tuple[int, int, int], hidden: int, generator: torch.Generator, loud: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        loud * torch.randn(shape, generator=generator),
        torch.rand(shape[1], hidden, generator=generator) - 0.5,
        torch.randn(shape[1], hidden, generator=generator),
    )


def _strided(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw batch-first data, seen as steps first."""
    x, h, c = _sequence((3, 4, 5), 6, generator)
    return x.transpose(0, 1), torch.cat([h, h])[:3], c.t().contiguous().t()[:3]


def _scale(cell: type[nn.Module]) -> Scale:
    return Scale(
        size_name="width",
        sizes=(16, 64, 256),
        working=64,
        working_on_cuda=2**12,
        build=lambda n: Recurrence(cell(n, n)),
        inputs=lambda n, g: _sequence((8, 16, n), n, g),
    )


def _build(cell: type[nn.Module], input_size: int = 5, hidden_size: int = 6) -> Recurrence:
    want_sizes(cell.__name__, input_size=input_size, hidden_size=hidden_size)
    return Recurrence(cell(input_size, hidden_size))


NO_STEPS = ErrorInput(
    name="no-steps",
    inputs=partial(_sequence, (0, 3, 5), 6),
    error=ValueError,
    match="Recurrence: x must have shape",
)
WRITTEN_OUT = Spec(
    name="lstm_cell",
    summary="an LSTM cell written out, run over a sequence",
    source="Hochreiter and Schmidhuber 1997, Long Short-Term Memory, Neural Computation 9(8)",
    formula="c' = σ(f) c + σ(i) tanh(g), h' = σ(o) tanh(c'), (i, f, g, o) = W x + b + U h + d",
    shapes="(steps, batch, in), (batch, hidden) × 2 → (steps, batch, hidden), (batch, hidden) × 2",
    build=partial(_build, LSTMCell),
    cases=(
        Case(name="typical", inputs=partial(_sequence, (4, 3, 5), 6)),
        Case(name="one-step-of-one-row", inputs=partial(_sequence, (1, 1, 5), 6)),
        Case(name="empty-batch", inputs=partial(_sequence, (2, 0, 5), 6)),
        Case(name="saturated", inputs=partial(_sequence, (3, 3, 5), 6, loud=8.0)),
        Case(name="non-contiguous", inputs=_strided),
    ),
    error_inputs=(
        NO_STEPS,
        ErrorInput(
            name="wide-rows",
            inputs=partial(_sequence, (4, 3, 7), 6),
            error=ValueError,
            match="LSTMCell: x must have shape",
        ),
        ErrorInput(
            name="wide-state",
            inputs=partial(_sequence, (4, 3, 5), 7),
            error=ValueError,
            match="LSTMCell: h and c must have shape",
        ),
        ErrorInput(
            name="integers",
            inputs=lambda g: tuple(t.long() for t in _sequence((4, 3, 5), 6, g)),
            error=TypeError,
            match="must have a floating dtype",
        ),
    ),
    dtypes="input",
    twice_differentiable=True,
    one_graph=True,
    reference=_reference,
    family=Family(
        sizes={"steps": (1, 5), "batch": (1, 5)}, inputs=lambda steps, batch, g: _sequence((steps, batch, 5), 6, g)
    ),
    scale=_scale(LSTMCell),
)

NATIVE = replace(
    WRITTEN_OUT,
    name="lstm_cell_native",
    summary="`torch.nn.LSTMCell`, run over a sequence",
    build=partial(_build, nn.LSTMCell),
    error_inputs=(NO_STEPS,),
    dtypes={f"output[{i}]": {"cpu": "input", "cuda": "follows"} for i in range(3)},  # autocast casts it on CUDA alone
    twin="lstm_cell",
    scale=_scale(nn.LSTMCell),
)

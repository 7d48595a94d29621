"""Two inputs merged by linear maps and a broadcast add: y = activation(x1 W1ᵀ + b1 + x2 W2ᵀ + b2).

Source: "Effective PyTorch", on broadcasting. `Merge` maps each input in its own, small shape and the add
broadcasts. `MergeTiled` first repeats the inputs to the common shape and computes the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from zoo.case import Case
from zoo.expect import Expect
from zoo.scale import Scale
from zoo.spec import Spec


def _check(name: str, x1: Tensor, in1: int, x2: Tensor, in2: int) -> None:
    if x1.dim() == 0 or x1.size(-1) != in1:
        raise ValueError(f"{name}: x1 must have trailing size {in1}, got shape {list(x1.shape)}")
    if x2.dim() == 0 or x2.size(-1) != in2:
        raise ValueError(f"{name}: x2 must have trailing size {in2}, got shape {list(x2.shape)}")
    if not (x1.is_floating_point() and x2.is_floating_point()):
        raise TypeError(f"{name}: x1 and x2 must have a floating dtype, got {x1.dtype} and {x2.dtype}")


class Merge(nn.Module):
    """activation(linear1(x1) + linear2(x2)), with a broadcast add.

    Args:
        in1: trailing size of `x1`.
        in2: trailing size of `x2`.
        out: trailing size of the result.
        activation: module that is applied to the sum, or None. (TorchScript needs a module, not a function.)

    >>> Merge(5, 6, 10)(torch.ones(5, 3, 5), torch.ones(5, 1, 6)).shape
    torch.Size([5, 3, 10])
    """

    def __init__(self, in1: int, in2: int, out: int, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.in1 = in1
        self.in2 = in2
        self.linear1 = nn.Linear(in1, out)
        self.linear2 = nn.Linear(in2, out)
        self.activation = nn.Identity() if activation is None else activation

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Merge (*s1, in1) and (*s2, in2), any floating dtype, into (*broadcast(s1, s2), out).

        Raises:
            ValueError: the trailing size of an argument does not fit its linear map.
            TypeError: an argument does not hold floating-point numbers.
            RuntimeError: the leading shapes do not broadcast, or a dtype differs from that of the parameters
                without autocast (torch names both).
        """
        _check("Merge", x1, self.in1, x2, self.in2)
        merged: Tensor = self.activation(self.linear1(x1) + self.linear2(x2))
        return merged


class MergeTiled(Merge):
    """`Merge` by repetition: expand both inputs, concatenate them and apply one linear map.

    Arguments and parameters are those of `Merge`, so a state dict fits both. The concatenation copies every
    repeated row, which takes more memory and more arithmetic for the same result.

    >>> model, twin = Merge(5, 6, 10), MergeTiled(5, 6, 10)
    >>> twin.load_state_dict(model.state_dict())
    <All keys matched successfully>
    >>> x1, x2 = torch.randn(5, 3, 5), torch.randn(5, 1, 6)
    >>> torch.testing.assert_close(twin(x1, x2), model(x1, x2))
    """

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Merge (*s1, in1) and (*s2, in2) into (*broadcast(s1, s2), out); errors as in `Merge`."""
        _check("MergeTiled", x1, self.in1, x2, self.in2)
        lead = torch.broadcast_tensors(x1[..., 0], x2[..., 0])[0]
        tiled1 = x1.expand(list(lead.shape) + [self.in1])  # noqa: RUF005 - TorchScript has no [*a, b]
        tiled2 = x2.expand(list(lead.shape) + [self.in2])  # noqa: RUF005
        weight = torch.cat([self.linear1.weight, self.linear2.weight], dim=1)
        bias = self.linear1.bias + self.linear2.bias
        tiled = torch.cat([tiled1, tiled2], dim=-1)
        merged: Tensor = self.activation(nn.functional.linear(tiled, weight, bias))
        return merged


def _reference(model: Merge, x1: Tensor, x2: Tensor) -> Tensor:
    def term(x: Tensor, linear: nn.Linear) -> Tensor:
        return (x.unsqueeze(-2) * linear.weight).sum(-1) + linear.bias

    result: Tensor = model.activation(term(x1, model.linear1) + term(x2, model.linear2))
    return result


def _pair(shape1: tuple[int, ...], shape2: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(shape1, generator=generator), torch.randn(shape2, generator=generator)


CASES = (
    Case(name="typical", inputs=partial(_pair, (5, 3, 5), (5, 1, 6))),
    Case(name="rows-and-columns", inputs=partial(_pair, (4, 1, 5), (1, 7, 6))),
    Case(name="one-row", inputs=partial(_pair, (1, 1, 5), (1, 1, 6))),
    Case(name="empty", inputs=partial(_pair, (0, 3, 5), (1, 1, 6))),
    Case(
        name="non-contiguous",
        inputs=lambda g: (
            torch.randn(5, 3, 4, generator=g).transpose(0, 2),
            torch.randn(4, 1, 12, generator=g)[..., ::2],
        ),
    ),
)


def _scale(build: Callable[[int, int, int], Merge]) -> Scale:
    return Scale(
        size_name="width",
        sizes=(16, 64, 256, 1024),
        build=lambda n: build(n, n, n),
        inputs=lambda n, g: _pair((8, 8, n), (8, 1, n), g),
    )


MERGE = Spec(
    name="merge",
    summary="two linear maps and a broadcast add",
    source="Effective PyTorch, broadcasting the good and the ugly",
    formula="y = x1 W1ᵀ + b1 + x2 W2ᵀ + b2",
    shapes="(..., in1), (..., in2) → (broadcast ..., out)",
    build=partial(Merge, in1=5, in2=6, out=10),
    cases=CASES,
    dtypes="follows",
    one_graph=True,
    reference=_reference,
    expectations=(
        Expect(
            outcome="dtype",
            modes=("scripted",),
            precisions=("amp_fp16", "amp_bf16"),
            torch=">=2.4",
            tensor="output",
            dtype="float32",
            reason="TorchScript's autocast pass promotes arithmetic on low-precision values to float32",
            link="https://github.com/pytorch/pytorch/blob/main/torch/csrc/jit/JIT-AUTOCAST.md",
        ),
    ),
    scale=_scale(Merge),
)

MERGE_TILED = replace(
    MERGE,
    name="merge_tiled",
    summary="merge by repeating, concatenating and one linear map",
    formula="y = (x1, x2) (W1, W2)ᵀ + b1 + b2",
    build=partial(MergeTiled, in1=5, in2=6, out=10),
    twin="merge",
    expectations=(),
    scale=_scale(MergeTiled),
)

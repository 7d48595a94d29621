"""Two inputs merged by linear maps and a broadcast add: y = activation(x1 W1ᵀ + b1 + x2 W2ᵀ + b2).

Source: "Effective PyTorch", on broadcasting. `Merge` maps each input in its own, small shape and the add
broadcasts. `MergeTiled` first repeats the inputs to the common shape and computes the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from zoo.arguments import want_sizes, want_tensors
from zoo.case import Case
from zoo.error_input import ErrorInput
from zoo.expect import Expect
from zoo.family import Family
from zoo.scale import Scale
from zoo.spec import Spec


def _check(name: str, x1: Tensor, in_features1: int, x2: Tensor, in_features2: int) -> None:
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        want_tensors(name, x1=x1, x2=x2)
    if x1.dim() == 0 or x1.size(-1) != in_features1:
        raise ValueError(f"{name}: x1 must have trailing size {in_features1}, got shape {list(x1.shape)}")
    if x2.dim() == 0 or x2.size(-1) != in_features2:
        raise ValueError(f"{name}: x2 must have trailing size {in_features2}, got shape {list(x2.shape)}")
    if not (x1.is_floating_point() and x2.is_floating_point()):
        raise TypeError(f"{name}: x1 and x2 must have a floating dtype, got {x1.dtype} and {x2.dtype}")


class Merge(nn.Module):
    """activation(linear1(x1) + linear2(x2)), with a broadcast add.

    Args:
        in_features1: trailing size of `x1`.
        in_features2: trailing size of `x2`.
        out_features: trailing size of the result.
        activation: what is applied to the sum: a class of modules, of which the model makes its own, a module, a
            function, or None. TorchScript takes no function.

    Raises:
        TypeError, ValueError: a size is no integer of at least 1, or `activation` cannot be called.

    >>> Merge(5, 6, 10)(torch.ones(5, 3, 5), torch.ones(5, 1, 6)).shape
    torch.Size([5, 3, 10])
    """

    def __init__(
        self,
        in_features1: int,
        in_features2: int,
        out_features: int,
        activation: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        want_sizes(name, in_features1=in_features1, in_features2=in_features2, out_features=out_features)
        if not (activation is None or callable(activation)):
            raise TypeError(
                f"{name}: activation must be a module, its class, a function or None, got {type(activation).__name__}"
            )
        self.in_features1 = in_features1
        self.in_features2 = in_features2
        self.linear1 = nn.Linear(in_features1, out_features)
        self.linear2 = nn.Linear(in_features2, out_features)
        made = activation() if isinstance(activation, type) else activation
        self.activation = nn.Identity() if made is None else made

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Merge (*s1, in_features1) and (*s2, in_features2), any floating dtype, along their broadcast leading shape.

        Returns:
            (*broadcast(s1, s2), out_features).

        Raises:
            ValueError: the trailing size of an argument does not fit its linear map.
            TypeError: an argument does not hold floating-point numbers.
            RuntimeError: the leading shapes do not broadcast, or a dtype differs from that of the parameters
                without autocast (torch names both).
        """
        _check("Merge", x1, self.in_features1, x2, self.in_features2)
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
        """Merge as `Merge` does, with its shapes and errors."""
        _check("MergeTiled", x1, self.in_features1, x2, self.in_features2)
        lead = torch.broadcast_tensors(x1[..., 0], x2[..., 0])[0]
        tiled1 = x1.expand(list(lead.shape) + [self.in_features1])  # noqa: RUF005 - TorchScript has no [*a, b]
        tiled2 = x2.expand(list(lead.shape) + [self.in_features2])  # noqa: RUF005
        weight = torch.cat([self.linear1.weight, self.linear2.weight], dim=1)
        bias = self.linear1.bias + self.linear2.bias
        tiled = torch.cat([tiled1, tiled2], dim=-1)
        merged: Tensor = self.activation(nn.functional.linear(tiled, weight, bias))
        return merged


def _reference(model: Merge, x1: Tensor, x2: Tensor) -> Tensor:
    def term(x: Tensor, linear: nn.Linear) -> Tensor:
        return (x.unsqueeze(-2) * linear.weight).sum(-1) + linear.bias

    merged = term(x1, model.linear1) + term(x2, model.linear2)
    return merged * (merged > 0)


def _pair(shape1: tuple[int, ...], shape2: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(shape1, generator=generator), torch.randn(shape2, generator=generator)


CASES = (
    Case(name="typical", inputs=partial(_pair, (5, 3, 5), (5, 1, 6)), independent_samples=True),
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


ERROR_INPUTS = (
    *(
        ErrorInput(name=name, inputs=partial(_pair, shape1, shape2), error=error, match=match)
        for name, shape1, shape2, error, match in (
            ("x1-too-wide", (5, 3, 6), (5, 1, 6), ValueError, "x1 must have trailing size 5"),
            ("x2-too-narrow", (5, 3, 5), (5, 1, 5), ValueError, "x2 must have trailing size 6"),
            ("number", (), (5, 1, 6), ValueError, "x1 must have trailing size 5"),
            ("no-broadcast", (5, 3, 5), (5, 2, 6), RuntimeError, "must match"),
        )
    ),
    ErrorInput(
        name="integers",
        inputs=lambda g: tuple(t.long() for t in _pair((5, 3, 5), (5, 1, 6), g)),
        error=TypeError,
        match="must have a floating dtype",
    ),
)


def _scale(build: Callable[[int, int, int, type[nn.Module]], Merge]) -> Scale:
    return Scale(
        size_name="width",
        sizes=(16, 64, 256, 1024),
        working=2**9,
        working_on_cuda=2**13,
        build=lambda n: build(n, n, n, nn.ReLU),
        inputs=lambda n, g: _pair((8, 8, n), (8, 1, n), g),
    )


MERGE = Spec(
    name="merge",
    summary="two linear maps, a broadcast add and a ReLU",
    source="Effective PyTorch, broadcasting the good and the ugly",
    formula="y = relu(x1 W1ᵀ + b1 + x2 W2ᵀ + b2)",
    shapes="(..., in_features1), (..., in_features2) → (broadcast ..., out_features)",
    build=partial(Merge, in_features1=5, in_features2=6, out_features=10, activation=nn.ReLU),
    cases=CASES,
    error_inputs=ERROR_INPUTS,
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
    family=Family(
        sizes={"batch": (1, 9), "rows": (1, 5)}, inputs=lambda batch, rows, g: _pair((batch, rows, 5), (batch, 1, 6), g)
    ),
    scale=_scale(Merge),
)

MERGE_TILED = replace(
    MERGE,
    name="merge_tiled",
    summary="merge by repeating, concatenating, one linear map and a ReLU",
    formula="y = relu((x1, x2) (W1, W2)ᵀ + b1 + b2)",
    build=partial(MergeTiled, in_features1=5, in_features2=6, out_features=10, activation=nn.ReLU),
    twin="merge",
    expectations=tuple(
        Expect(
            outcome="FAIL",
            modes=("compiled", "compiled_dynamic"),
            precisions=("fp32",),
            tensor=f"gradient of {bias}",
            case="typical",
            reason="Inductor returns one tensor as the gradient of both biases, so both accumulate into it",
            probe="equal_gradients_share_memory",
        )
        for bias in ("linear1.bias", "linear2.bias")
    ),
    scale=_scale(MergeTiled),
)

"""Two inputs merged by linear maps and a broadcast add: y = activation(x1 W1ᵀ + b1 + x2 W2ᵀ + b2).

Source: "Effective PyTorch", on broadcasting. `Merge` maps each input at its own, small shape and lets the
add broadcast. `MergeTiled` computes the same from a copy of the inputs repeated to the common shape.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from zoo.spec import Case, Expect, Spec


class Merge(nn.Module):
    """activation(linear1(x1) + linear2(x2)), with a broadcast add.

    Args:
        in1: trailing size of `x1`.
        in2: trailing size of `x2`.
        out: trailing size of the result.
        activation: module applied to the sum; None for none. (A module, so that TorchScript takes it.)
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
            ValueError: an argument's trailing size is not what its linear map takes.
            RuntimeError: the leading shapes do not broadcast (torch names both).
        """
        if x1.dim() == 0 or x1.size(-1) != self.in1:
            raise ValueError(f"Merge: x1 must have trailing size {self.in1}, got shape {list(x1.shape)}")
        if x2.dim() == 0 or x2.size(-1) != self.in2:
            raise ValueError(f"Merge: x2 must have trailing size {self.in2}, got shape {list(x2.shape)}")
        merged: Tensor = self.activation(self.linear1(x1) + self.linear2(x2))
        return merged


class MergeTiled(nn.Module):
    """`Merge` by repetition: expand both inputs, concatenate them, apply one linear map.

    Parameters have the names and shapes of `Merge`'s, so a state dict fits both. The concatenation
    materialises every repeated row: more memory and more arithmetic for the same result.

    Args: as for `Merge`.
    """

    def __init__(self, in1: int, in2: int, out: int, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.in1 = in1
        self.in2 = in2
        self.linear1 = nn.Linear(in1, out)
        self.linear2 = nn.Linear(in2, out)
        self.activation = nn.Identity() if activation is None else activation

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Merge (*s1, in1) and (*s2, in2) into (*broadcast(s1, s2), out).

        Raises:
            ValueError: an argument's trailing size is not what its linear map takes.
            RuntimeError: the leading shapes do not broadcast (torch names both).
        """
        if x1.dim() == 0 or x1.size(-1) != self.in1:
            raise ValueError(f"MergeTiled: x1 must have trailing size {self.in1}, got shape {list(x1.shape)}")
        if x2.dim() == 0 or x2.size(-1) != self.in2:
            raise ValueError(f"MergeTiled: x2 must have trailing size {self.in2}, got shape {list(x2.shape)}")
        lead = torch.broadcast_tensors(x1[..., 0], x2[..., 0])[0]
        tiled1 = x1.expand(list(lead.shape) + [self.in1])  # noqa: RUF005 - TorchScript has no [*a, b]
        tiled2 = x2.expand(list(lead.shape) + [self.in2])  # noqa: RUF005
        weight = torch.cat([self.linear1.weight, self.linear2.weight], dim=1)
        bias = self.linear1.bias + self.linear2.bias
        tiled = torch.cat([tiled1, tiled2], dim=-1)
        merged: Tensor = self.activation(nn.functional.linear(tiled, weight, bias))
        return merged


def _reference(model: Merge | MergeTiled, x1: Tensor, x2: Tensor) -> Tensor:
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

MERGE = Spec(
    name="merge",
    summary="two linear maps and a broadcast add",
    source="Effective PyTorch, broadcasting the good and the ugly",
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
            devices=("cpu",),
            torch=">=2.4",
            tensor="output",
            dtype="float32",
            reason="TorchScript's autocast pass promotes arithmetic on low-precision values to float32",
            link="https://github.com/pytorch/pytorch/blob/main/torch/csrc/jit/JIT-AUTOCAST.md",
        ),
    ),
)

MERGE_TILED = Spec(
    name="merge_tiled",
    summary="merge by repeating, concatenating and one linear map",
    source="Effective PyTorch, broadcasting the good and the ugly",
    build=partial(MergeTiled, in1=5, in2=6, out=10),
    cases=CASES,
    dtypes="follows",
    one_graph=True,
    reference=_reference,
    twin="merge",
)

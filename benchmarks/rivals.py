"""Other criteria that people judge with, applied to the same tensors.

All of them compare with eager at the same precision. In an eager cell, eager is the candidate itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from conformance.gates.budget import TensorCriteria
from zoo import internals

TOLERANCES = {"fp32": 1e-4, "amp_fp16": 1e-3, "amp_bf16": 1e-3, "fp16": 1e-3, "bf16": 1e-3}  # of dynamo's `same`


@dataclass(frozen=True)
class Known:
    """What the rivals may look at besides the candidate.

    Attributes:
        eager: the tensor of eager at the same precision.
        oracle: the float64 tensor, in eager's shape.
        precision: name of the cell's precision.
    """

    eager: torch.Tensor
    oracle: torch.Tensor
    precision: str


def known(y: torch.Tensor, criteria: TensorCriteria) -> Known:
    """What the rivals may look at. If there is no eager tensor, `y` takes its place."""
    oracle = criteria.reference.oracle.reals
    if y.is_complex():
        oracle = torch.view_as_complex(oracle.contiguous())
    eager = y if criteria.baseline is None else criteria.baseline
    return Known(eager.detach().cpu(), oracle, criteria.cell_precision.name)


def _assert_close(z: torch.Tensor, known: Known) -> bool:
    """`torch.testing.assert_close` with its defaults."""
    torch.testing.assert_close(z, known.eager)
    return True


def _dynamo_same(z: torch.Tensor, known: Known) -> bool:
    """`torch._dynamo.utils.same`, which judges PyTorch's own benchmarks."""
    reference = known.oracle if known.oracle.is_floating_point() else None
    same, tolerance = internals.compare_as_benchmarks, TOLERANCES[known.precision]
    return same(known.eager, z, fp64_ref=reference, tol=tolerance, log_error=lambda *_, **__: None)


def _flash_attention(z: torch.Tensor, known: Known) -> bool:
    """At most twice eager's own largest error, plus flash-attention's floor: twice the roundings near 0.3."""
    narrow = known.oracle.to(known.eager.dtype)
    floor = 0.0
    if known.eager.is_floating_point():
        floor = 2.0 * float((narrow + 0.3 - 0.3 - narrow).abs().amax())
    own = float((known.eager.to(known.oracle.dtype) - known.oracle).abs().amax())
    return float((z.to(known.oracle.dtype) - known.oracle).abs().amax()) <= 2.0 * own + floor


RIVALS: dict[str, Callable[[torch.Tensor, Known], bool]] = {
    "assert_close": _assert_close,
    "dynamo same": _dynamo_same,
    "flash-attention": _flash_attention,
}


def rejections(z: torch.Tensor, beside: Known) -> list[str]:
    """Names of the rivals that reject a tensor. A rival that raises an error rejects it."""
    return [name for name, accepts in RIVALS.items() if not _accepted(accepts, z, beside)]


def _accepted(accepts: Callable[[torch.Tensor, Known], bool], z: torch.Tensor, beside: Known) -> bool:
    try:
        return accepts(z, beside)
    except (AssertionError, RuntimeError, ValueError, TypeError):
        return False

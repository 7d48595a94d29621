"""Other criteria that people judge with, asked about the same tensors.

All of them measure against eager at the same precision; in an eager cell eager is the candidate itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.gates.compare import Ruler

TOLERANCES = {"fp32": 1e-4, "amp_fp16": 1e-3, "amp_bf16": 1e-3}  # of dynamo's `same`


@dataclass(frozen=True)
class Known:
    """What the rivals may look at beside the candidate.

    Attributes:
        eager: the tensor of eager at the same precision.
        oracle: in float64, in eager's shape.
        precision: name of the cell's.
    """

    eager: torch.Tensor
    oracle: torch.Tensor
    precision: str


def known(y: torch.Tensor, held: Ruler) -> Known:
    """Gather it; `y` stands in where no eager tensor is at hand."""
    oracle = held.bounds.yardstick.oracle
    if y.is_complex():
        oracle = torch.view_as_complex(oracle.contiguous())
    eager = y if held.baseline is None else held.baseline
    return Known(eager.detach().cpu(), oracle, held.cell_precision.name)


def _assert_close(z: torch.Tensor, known: Known) -> bool:
    """`torch.testing.assert_close` with its defaults."""
    torch.testing.assert_close(z, known.eager)
    return True


def _dynamo_same(z: torch.Tensor, known: Known) -> bool:
    """`torch._dynamo.utils.same`, which PyTorch's own benchmarks are judged by."""
    from torch._dynamo.utils import same  # noqa: PLC0415 -- two seconds, where nothing has imported it

    reference = known.oracle if known.oracle.is_floating_point() else None
    tolerance = TOLERANCES[known.precision]
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
    """Names of the rivals that reject a tensor; one that raises rejects."""
    return [name for name, accepts in RIVALS.items() if not _accepted(accepts, z, beside)]


def _accepted(accepts: Callable[[torch.Tensor, Known], bool], z: torch.Tensor, beside: Known) -> bool:
    try:
        return accepts(z, beside)
    except (AssertionError, RuntimeError, ValueError, TypeError):
        return False

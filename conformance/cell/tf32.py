"""Switches the rounding of float32 products to TF32 on or off, and proves what the device does.

TF32 keeps ten mantissa bits of each operand of a product. By default torch allows it in convolutions and not in matrix
products. Here it is off for every precision except tf32.
"""

from __future__ import annotations

import torch

from conformance.axes import Precision
from conformance.errors import NotProvenError

SIDE, CHANNELS = 512, 64  # large enough for kernels that use tensor cores
FINE = 1 + 2**-12  # TF32 rounds it to 1


def switch(precision: Precision) -> None:
    """Allow or forbid TF32 in all matrix products and convolutions of this process, as the precision says."""
    allowed = bool(precision.product_unit)
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def prove(precision: Precision, device: str) -> dict[str, str]:
    """Test on the device whether operands are rounded to TF32. The model may have changed the switch before.

    Returns:
        The fact for the record; nothing on a device without TF32.

    Raises:
        NotProvenError: the device rounds and should not, or does not and should.
    """
    if device != "cuda":
        return {}
    asked = bool(precision.product_unit)
    for what, rounds in (("matrix products", _product_rounds(device)), ("convolutions", _convolution_rounds(device))):
        if rounds != asked:
            raise NotProvenError(f"{what} are {'' if rounds else 'not '}rounded to TF32")
    return {"tf32": "on" if asked else "off"}


@torch.no_grad()
def _product_rounds(device: str) -> bool:
    fine = torch.full((SIDE, SIDE), FINE, device=device)
    return _is_off(fine @ torch.eye(SIDE, device=device))


@torch.no_grad()
def _convolution_rounds(device: str) -> bool:
    fine = torch.full((8, CHANNELS, 32, 32), FINE, device=device)
    identity = torch.zeros(CHANNELS, CHANNELS, 3, 3, device=device)
    identity[range(CHANNELS), range(CHANNELS), 1, 1] = 1.0
    return _is_off(torch.nn.functional.conv2d(fine, identity, padding=1))


def _is_off(result: torch.Tensor) -> bool:
    """Whether a result is off by more than half of what TF32 drops.

    Kernels that transform their operands lose the last bits in float32 too, so a smaller difference proves nothing.
    """
    return bool((result - FINE).abs().amax() > (FINE - 1) / 2)

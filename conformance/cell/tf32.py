"""Whether float32 products are rounded to TF32: the switch, and the proof of what the device does.

TF32 keeps ten bits behind the point of each operand of a product. By default torch allows it to convolutions and
not to matrix products, so that "float32" alone says neither; here it is off for every precision but tf32.
"""

from __future__ import annotations

import torch

from conformance.axes import Precision
from conformance.errors import NotProvenError

SIDE, CHANNELS = 512, 64  # large enough for kernels that use tensor cores
FINE = 1 + 2**-12  # TF32 makes it 1


def switch(precision: Precision) -> None:
    """Allow TF32 to products and convolutions of this process, or forbid it, as the precision says."""
    allowed = bool(precision.product_unit)
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def prove(precision: Precision, device: str) -> dict[str, str]:
    """What the device does to operands that TF32 would round, now, after all that the model may have switched.

    Returns: the fact for the record; nothing on a device that has no such switch.

    Raises:
        NotProvenError: it rounds and should not, or does not and should.
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
    """By more than half of what TF32 drops: kernels that transform their operands miss the last bits in float32 too."""
    return bool((result - FINE).abs().amax() > (FINE - 1) / 2)

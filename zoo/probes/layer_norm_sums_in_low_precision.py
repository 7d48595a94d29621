"""The gradient of a layer norm's bias is wrong on the CPU if its input is bfloat16 or float16 and has many rows.

The gradient is a sum over all rows. If the input has a low precision and weight and bias are float32, as under
autocast, the kernel adds the rows up in the low precision. A sum that is 256 times as large as its terms does not grow
any more in bfloat16. With rows whose gradients are alike, as behind a mean over tokens, the error is 4 % for 128 rows
and 90 % for 8192. In float16 it is 0.4 % and 24 %.

Only on the CPU: the kernel for GPUs adds up in float32.

Instead: run the layer norm in float32 (`norm(x.float())`, in a region with autocast off).
"""

import torch

from zoo.probe import EVERY_MINOR, Probe, Seen

SYMPTOM = "the gradient of the bias is wrong by more than half of its size"
ROWS = 8192


def observe(device: str) -> str:
    """Differentiate a layer norm of bfloat16 rows; return SYMPTOM if the gradient of its bias is far from the sum."""
    torch.manual_seed(0)
    norm = torch.nn.LayerNorm(32, device=device)
    with torch.autocast(device, torch.bfloat16):
        normed = norm(torch.randn(ROWS, 32, dtype=torch.bfloat16, device=device))
    gradient = torch.randn(32, dtype=normed.dtype, device=device).expand(ROWS, 32)
    normed.backward(gradient)
    right = gradient.double().sum(0)
    assert norm.bias.grad is not None
    error = (norm.bias.grad.double() - right).norm() / right.norm()
    return SYMPTOM if error > 0.5 else ""  # noqa: PLR2004 -- bfloat16 alone explains 0.002


PROBE = Probe(
    name="layer_norm_sums_in_low_precision",
    summary="a layer norm of many bfloat16 rows on the CPU, with float32 parameters",
    source="no report found; pytorch#88064 added the kernel",
    symptom=SYMPTOM,
    devices=("cpu",),
    seen={"cpu": Seen(torch=">=2.4", checked=EVERY_MINOR)},
    observe=observe,
)

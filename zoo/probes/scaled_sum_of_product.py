"""torch.compile forgets `alpha` in a sum of a tensor and a matrix product, `torch.add(s, a @ b, alpha=c)`.

Inductor joins a product and a sum to one `addmm`, and passes no `alpha` on. So a running average such as
`s.mul_(0.9).add_(h.t() @ z, alpha=0.1)` adds ten times too much. There is no error or warning.

Instead: multiply the product, `s + c * (a @ b)`, or set `torch._inductor.config.pattern_matcher = False`.
"""

import torch
from torch import Tensor

from zoo.probe import Probe, Seen

SYMPTOM = "the compiled sum takes the whole product"


def observe(device: str) -> str:
    """Add a tenth of a product in a compiled function; return SYMPTOM if the whole product is added."""

    def add_tenth(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.add(total, a @ b, alpha=0.1)

    a, b = (torch.arange(12.0, device=device).sin().view(shape) for shape in ((3, 4), (4, 3)))
    total = torch.ones(3, 3, device=device)
    error = (torch.compile(add_tenth)(total, a, b) - (total + 0.1 * (a @ b))).abs().max()
    return SYMPTOM if error > 0.1 else ""  # noqa: PLR2004 -- roundings explain 1e-7, and a lost factor 1


PROBE = Probe(
    name="scaled_sum_of_product",
    summary="a compiled `torch.add` with `alpha` of a matrix product",
    issue="https://github.com/pytorch/pytorch/issues/167313",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch="<2.15", checked=("2.4.1", "2.9.1", "2.13.0", "2.14.1", "2.15.0"))},
    observe=observe,
)

"""The compile cache hands a graph made under bfloat16 autocast to a float16 run.

The key of the AOTAutograd cache held autocast as on or off, without its dtype. The cache outlives the
process: whoever compiled first, perhaps yesterday, decides the precision. The result has the wrong dtype.
The cache is on by default in 2.8; in 2.5 and 2.6 it must be asked for.

Instead: where this torch shows it, set TORCHINDUCTOR_AUTOGRAD_CACHE=0.
"""

import torch
from torch import Tensor

from zoo.probe import Probe, Seen, Unavailable

SYMPTOM = "under float16 autocast the product is bfloat16"


def observe(device: str) -> str:
    from torch._dynamo import reset  # noqa: PLC0415 -- reading this file must not load the compiler
    from torch._functorch import config as tracing  # noqa: PLC0415
    from torch._inductor import config as inductor  # noqa: PLC0415

    if not hasattr(tracing, "enable_autograd_cache"):
        raise Unavailable("this torch has no AOTAutograd cache")

    def product(x: Tensor, y: Tensor) -> Tensor:
        return x @ y

    x = torch.ones(4, 4, device=device)
    with tracing.patch(enable_autograd_cache=True), inductor.patch(fx_graph_cache=True):
        for dtype in (torch.bfloat16, torch.float16):
            reset()  # as a second process would: only the cache on disk is left
            with torch.autocast(device, dtype=dtype):
                out = torch.compile(product)(x, x)
    return SYMPTOM if out.dtype == torch.bfloat16 else ""


PROBE = Probe(
    name="compile_cache_mixes_dtypes",
    summary="a function compiled under two autocast dtypes, through the cache on disk",
    issue="https://github.com/pytorch/pytorch/pull/181564",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.5,<2.13", checked=("2.4.1", "2.5.1", "2.6.0", "2.8.0", "2.11.0", "2.13.0", "2.15.0"))},
    observe=observe,
)

"""The compile cache returns a graph that was compiled under bfloat16 autocast to a float16 run.

The key of the AOTAutograd cache contained whether autocast is on, but not its dtype. The cache is on disk, so an
earlier process can decide the precision. The result has the wrong dtype. The cache is on by default in 2.8; in 2.5
and 2.6 it must be enabled.

Instead: set TORCHINDUCTOR_AUTOGRAD_CACHE=0 if this torch shows the fault.
"""

import torch
from torch import Tensor

from zoo import internals
from zoo.probe import EVERY_MINOR, Probe, Seen, Unavailable

SYMPTOM = "under float16 autocast the product is bfloat16"


def observe(device: str) -> str:
    """Compile a product under bfloat16, then under float16 autocast; return SYMPTOM if the second is bfloat16."""
    tracing, inductor = internals.functorch_config, internals.inductor_config
    if not hasattr(tracing, "enable_autograd_cache"):
        raise Unavailable("this torch has no AOTAutograd cache")

    def product(x: Tensor, y: Tensor) -> Tensor:
        return x @ y

    x = torch.ones(4, 4, device=device)
    with tracing.patch(enable_autograd_cache=True), inductor.patch(fx_graph_cache=True):
        for dtype in (torch.bfloat16, torch.float16):
            torch.compiler.reset()  # leaves only the cache on disk, as in a new process
            with torch.autocast(device, dtype=dtype):
                out = torch.compile(product)(x, x)
    return SYMPTOM if out.dtype == torch.bfloat16 else ""


PROBE = Probe(
    name="compile_cache_mixes_dtypes",
    summary="a function compiled under two autocast dtypes, with the cache on disk",
    issue="https://github.com/pytorch/pytorch/pull/181564",
    symptom=SYMPTOM,
    seen={"cpu": Seen(torch=">=2.5,<2.13", checked=EVERY_MINOR)},
    observe=observe,
)

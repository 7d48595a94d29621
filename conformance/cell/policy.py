"""Sets what a whole process of a cell is bound to: switches, TF32, random numbers, and its share of a GPU's memory."""

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
from packaging.version import Version

from conformance.axes import PRECISIONS, Precision
from conformance.errors import NotProvenError
from conformance.evaluate import process_state
from conformance.process import environment
from zoo import Spec, internals

FOR_TENSORS = 0.9  # share of a GPU's memory; every process keeps kernels and handles there too

INDUCTORS_LIMIT = 2000  # Python's limit of recursion that Inductor sets when it compiles


def set_policy(precision: Precision = PRECISIONS["fp32"]) -> None:
    """Set every global switch that a verdict may depend on, so that none is inherited."""
    warnings.simplefilter("ignore")  # models and compilers warn; the verdict is the report
    torch.set_num_threads(1)
    sys.setrecursionlimit(max(sys.getrecursionlimit(), INDUCTORS_LIMIT))
    switch_tf32(precision)
    sound = Version(torch.__version__).release >= (2, 13)  # pytorch#181564: the cache key lacked the autocast dtype
    for switch in ("enable_autograd_cache", "autograd_cache_allow_custom_autograd_functions"):
        if hasattr(internals.functorch_config, switch):
            setattr(internals.functorch_config, switch, sound)


def leave_room(device: str) -> None:
    """Limit this process to its share of the GPU's memory, so that one cell cannot starve the others."""
    if device == "cuda":
        torch.cuda.set_per_process_memory_fraction(FOR_TENSORS / environment.at_once_on_gpu())


# TF32 keeps ten mantissa bits of each operand of a product. By default torch allows it in convolutions and not in
# matrix products. Here it is off for every precision except tf32.

SIDE, CHANNELS = 512, 64  # large enough for kernels that use tensor cores
FINE = 1 + 2**-12  # TF32 rounds it to 1


def switch_tf32(precision: Precision) -> None:
    """Allow or forbid TF32 in all matrix products and convolutions of this process, as the precision says."""
    allowed = bool(precision.product_unit)
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def prove_tf32(precision: Precision, device: str) -> dict[str, str]:
    """The fact whether the device rounds operands to TF32, as it is seen to do; nothing on a device without TF32.

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


# In half precision, the CPU draws other random numbers from one seed than in float32.

HALF = (torch.float16, torch.bfloat16)
DRAWING = ("normal_", "uniform_")  # below all ops whose numbers depend on the dtype
TRIED = 24  # numbers; of so many, torch draws the last 16 once more in float32
IN_FLOAT32 = "drawn in float32"  # the fact of a cell


@cache
def can_draw_in_float32() -> bool:
    """Whether this torch lets a kernel be replaced by one that calls it. It is tried."""
    if not hasattr(torch.library, "get_kernel"):
        return False
    try:
        with draw_in_float32():
            half, single = (
                torch.randn(TRIED, dtype=dtype, generator=torch.Generator().manual_seed(0))
                for dtype in (HALF[0], torch.float32)
            )
    except (RuntimeError, TypeError):
        return False
    return torch.equal(half, single.to(half.dtype))


def draw_as_the_oracle(spec: Spec, precision: Precision) -> contextlib.AbstractContextManager[set[str]]:
    """A context for the calls of a model, in which it draws what the oracle draws, as far as this torch can do that."""
    if process_state.DRAWS in spec.changes_state and precision.low_dtype and can_draw_in_float32():
        return draw_in_float32()
    return contextlib.nullcontext(set())


@contextlib.contextmanager
def draw_in_float32() -> Iterator[set[str]]:
    """While active, what a kernel of the CPU draws in half precision is drawn in float32 and rounded.

    It replaces the kernels, and not the ops that a model calls, so that scripts and compiled code draw so too. It gives
    the names of the kernels that have drawn so; each is added when it does.
    """
    drew: set[str] = set()
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of a kernel that is replaced
            for name in DRAWING:
                kernel = torch.library.get_kernel(f"aten::{name}", "CPU")
                library.impl(name, _widen(kernel, partial(drew.add, name)), "CPU", with_keyset=True)
        yield drew
    finally:
        internals.remove_kernels(library)


def _widen(kernel: Any, note: Callable[[], None]) -> Callable[..., torch.Tensor]:
    def draw(keys: Any, target: torch.Tensor, *numbers: float, generator: torch.Generator | None = None) -> Any:
        if target.dtype not in HALF:
            return kernel.call_boxed(keys, target, *numbers, generator=generator)
        note()
        drawn = torch.empty_strided(target.shape, target.stride(), dtype=torch.float32)
        kernel.call_boxed(keys, drawn, *numbers, generator=generator)
        return target.copy_(drawn)

    return draw

"""Dropout whose mask is a function of a seed and of the position, and so the same in every mode.

Source: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", JMLR 15, 2014; the
idea of a generator without state is that of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.

The mask comes from a hash of (seed, index) in integer arithmetic inside the graph. Integers do not round, so eager,
scripted and compiled agree bit for bit, forward and backward use one mask, and a second call with the same seed gives
the same mask. Change the seed at every step. It is a tensor, because torch.compile makes a new graph for every value of
a Python integer.

Other ways, and what they lack: `torch.manual_seed` before `nn.Dropout` agrees between eager and scripted, but Inductor
has a generator of its own (pytorch#141557). `torch._inductor.config.fallback_random` brings eager's generator back,
without fusion, and not always in eager's order (pytorch#192635). A mask that is drawn outside and passed in agrees
everywhere, but costs memory as large as the input.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from zoo.arguments import want_numbers, want_tensors
from zoo.case import Case
from zoo.error_input import ErrorInput
from zoo.expect import Expect
from zoo.family import Family
from zoo.scale import Scale
from zoo.spec import Spec

RANGE = 2**32  # the hash has 32 bits, and all products fit into 64 bits with a sign


def _mix(bits: Tensor) -> Tensor:
    """Permute the numbers below 2³² so that every bit depends on all others: xor with a shift, multiply, repeat."""
    bits = (((bits >> 16) ^ bits) * 0x45D9F3B) & 0xFFFFFFFF
    bits = (((bits >> 16) ^ bits) * 0x45D9F3B) & 0xFFFFFFFF
    return (bits >> 16) ^ bits


def seeded_mask(x: Tensor, seed: Tensor, p: float = 0.5) -> Tensor:
    """Return a mask that is False with probability `p`, from the seed and the position of each element.

    Args:
        x: any tensor with fewer than 2³² elements; only its shape and device matter.
        seed: (), int64, on the device of `x`; every value gives another mask.
        p: probability of False, in [0, 1].

    Returns:
        A tensor in the shape of `x`, bool.

    Raises:
        TypeError: `x` or `seed` is not a tensor, `seed` is not int64, or `p` is not a number.
        ValueError: `seed` is not a scalar, or `p` is outside [0, 1].

    >>> seeded_mask(torch.empty(8), torch.tensor(7)).int().tolist()
    [1, 0, 0, 1, 0, 1, 1, 0]
    """
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        want_tensors("seeded_mask", x=x, seed=seed)
        want_numbers("seeded_mask", p=p)
    if seed.dtype != torch.int64:
        raise TypeError(f"seeded_mask: seed must have dtype torch.int64, got {seed.dtype}")
    if seed.dim() != 0:
        raise ValueError(f"seeded_mask: seed must have shape [], got {list(seed.shape)}")
    if not 0 <= p <= 1:
        raise ValueError(f"seeded_mask: p must lie in [0, 1], got {p}")
    key = _mix(_mix(seed & 0xFFFFFFFF) ^ ((seed >> 32) & 0xFFFFFFFF))
    index = torch.arange(x.numel(), device=x.device)
    bits = _mix((_mix(index) + key) & 0xFFFFFFFF)
    return (bits >= int(p * 2**32)).reshape(x.shape)


class SeededDropout(nn.Module):
    """Sets elements to zero with probability p and divides the others by 1 − p; in eval mode it does nothing.

    Args:
        p: probability of an element to be zeroed, in [0, 1].

    Raises:
        TypeError: `p` is not a number.
        ValueError: `p` is outside [0, 1].

    >>> dropout = SeededDropout(0.5)
    >>> dropout(torch.ones(8), torch.tensor(7)).tolist()
    [2.0, 0.0, 0.0, 2.0, 0.0, 2.0, 2.0, 0.0]
    >>> dropout.eval()(torch.ones(3), torch.tensor(7)).tolist()
    [1.0, 1.0, 1.0]
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        want_numbers("SeededDropout", p=p)
        if not 0 <= p <= 1:
            raise ValueError(f"SeededDropout: p must lie in [0, 1], got {p}")
        self.p = float(p)

    def forward(self, x: Tensor, seed: Tensor) -> Tensor:
        """Map x of any shape, floating, to the same shape and dtype; in eval mode return `x` itself.

        Args:
            x: the input. An element that is dropped gives 0, also if it is infinite or NaN.
            seed: (), int64, on the device of `x`.

        Raises:
            TypeError: `x` or `seed` is not a tensor, `x` is not floating, or `seed` is not int64.
            ValueError: `seed` is not a scalar.
        """
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            want_tensors("SeededDropout", x=x, seed=seed)
        if not x.is_floating_point():
            raise TypeError(f"SeededDropout: x must have a floating dtype, got {x.dtype}")
        if not self.training:
            return x
        scale = 1 / (1 - self.p) if self.p < 1 else 0.0
        return torch.where(seeded_mask(x, seed, self.p), x * scale, 0.0)


def _mixed(bits: int) -> int:
    for _ in range(2):
        bits = (bits ^ bits // 2**16) * 0x45D9F3B % RANGE
    return bits ^ bits // 2**16


def _reference(model: SeededDropout, x: Tensor, seed: Tensor) -> Tensor:
    """Hash one index after the other in Python's integers, which have no limit, and multiply by 0 or 1 / (1 − p)."""
    if not model.training:
        return x.clone()
    low, high = int(seed) % RANGE, int(seed) // RANGE % RANGE
    key = _mixed(_mixed(low) ^ high)
    kept = [_mixed((_mixed(i) + key) % RANGE) / RANGE >= model.p for i in range(x.numel())]
    factors = torch.tensor(kept, dtype=x.dtype).reshape(x.shape) / (1 - model.p)
    return x * factors


def _draw(shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(shape, generator=generator), torch.randint(2**62, (), generator=generator)


def _strided(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x, seed = _draw((8, 6), generator)
    return x.t()[::2], -seed


SEEDED_INTEGERS = ErrorInput(
    name="integers",
    inputs=lambda _: (torch.ones(6, 8, dtype=torch.int64), torch.tensor(3)),
    error=TypeError,
    match="x must have a floating dtype",
)
TRAIN = Spec(
    name="seeded_dropout",
    summary="dropout with a mask from a seed, the same in every mode",
    source="Srivastava et al. 2014, Dropout, JMLR 15; Salmon et al. 2011, Parallel Random Numbers: As Easy as 1, 2, 3",
    formula="y[i] = x[i] / (1 − p) if hash(seed, i) >= 2³² p else 0",
    shapes="(...), () → (...)",
    build=partial(SeededDropout, p=0.25),
    cases=(
        Case(name="typical", inputs=partial(_draw, (6, 8))),
        Case(name="one-row", inputs=partial(_draw, (1, 16))),
        Case(name="empty", inputs=partial(_draw, (0, 4))),
        Case(name="negative-seed-non-contiguous", inputs=_strided),
    ),
    error_inputs=(
        SEEDED_INTEGERS,
        ErrorInput(
            name="seed-of-float",
            inputs=lambda _: (torch.ones(6, 8), torch.tensor(3.0)),
            error=TypeError,
            match="seed must have dtype torch.int64",
        ),
        ErrorInput(
            name="two-seeds",
            inputs=lambda _: (torch.ones(6, 8), torch.tensor([3, 4])),
            error=ValueError,
            match="seed must have shape",
        ),
    ),
    dtypes="input",
    vmappable=True,
    one_graph=True,
    float32_accurate=("output", "gradient of x"),
    reference=_reference,
    family=Family(sizes={"rows": (1, 9), "n": (1, 17)}, inputs=lambda rows, n, g: _draw((rows, n), g)),
    scale=Scale(
        size_name="numbers",
        sizes=(2**10, 2**14, 2**17, 2**20),
        working=2**18,
        working_on_cuda=2**26,
        build=lambda _: SeededDropout(),
        inputs=lambda n, g: _draw((n,), g),
    ),
)

EVAL = replace(
    TRAIN,
    name="seeded_dropout_eval",
    summary="dropout in eval mode, which returns its input",
    formula="y = x",
    initialise=nn.Module.eval,
    cases=tuple(case for case in TRAIN.cases if case.name != "empty"),  # which has no memory to share
    error_inputs=(SEEDED_INTEGERS,),
    aliases=(("output", "x"),),
    expectations=(
        Expect(
            outcome="VOID",
            modes=("compiled", "compiled_dynamic", "graphed"),
            match="nothing was captured",
            reason="torch.compile makes no graph of a function that returns its input",
        ),
    ),
    scale=None,
)

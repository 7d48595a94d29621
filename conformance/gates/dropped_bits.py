"""Finds float32 tensors that went through a narrower dtype: their low bits are zero."""

import math

import torch

from conformance.axes import PRECISIONS
from conformance.gates.budget import DROPPED_SHARE, TensorCriteria
from conformance.gates.distance import BLOCK, OracleTensor, real_numbers
from conformance.records.cell import Measure

FLOAT32_BITS = 24
KEPT = 8.0  # times smaller than the bits in question, rounding must be
ALL_BITS = 2.0**11  # times the smallest number of float16; from there on it has as many bits as bfloat16, and three
FEWEST, FEWEST_OF_FLOAT16 = 2, 7  # elements that can tell
SMALL_ELEMENT = 2.0**-12  # times the rms: smaller elements of the oracle may be zeros plus float64's noise


def tested_bits(dtype: torch.dtype, criteria: TensorCriteria) -> dict[str, int]:
    """How many low bits of a candidate of that dtype are looked at, by the name of the narrower dtype; empty for none.

    By chance, 13 bits are zero in one of 8192 elements. Of float16's own roundings, one in 8 also has the three more
    bits zero that bfloat16 drops. What a low precision may round is not looked at, but for a state that eager keeps.
    """
    if dtype not in (torch.float32, torch.complex64) or criteria.is_judged_by_size:
        return {}
    found = {p.autocast: p.dropped_bits for p in PRECISIONS.values() if p.dropped_bits}
    if criteria.cell_precision.low_dtype and criteria.kind != "float32" and not criteria.keeps_float32:
        if criteria.cell_precision.low_dtype != "float16":
            return {}
        del found["float16"]
    norm, strays = criteria.reference.oracle.norm, criteria.reference.spread["fp32"].absolute
    for name, bits in list(found.items()):
        if strays > norm * 2.0 ** (bits - FLOAT32_BITS) / KEPT:
            del found[name]  # after cancellation, float32 itself leaves these bits zero
    return found


def is_in_float32(y: torch.Tensor, oracle: OracleTensor) -> bool:
    """Whether hardly an element of a tensor went through a narrower dtype; False if no element can tell."""
    if y.dtype not in (torch.float32, torch.complex64) or tuple(y.shape) != oracle.shape:
        return False
    bits = tuple(precision.dropped_bits for precision in PRECISIONS.values() if precision.dropped_bits)
    return all(share <= 1.0 - DROPPED_SHARE for share in dropped_bits_shares(y, oracle, bits, FEWEST))


def precision_measure(y: torch.Tensor, criteria: TensorCriteria) -> tuple[Measure, ...]:
    """Whether the low bits of a candidate are zero, as only a round trip through a narrower dtype makes them."""
    tests = tested_bits(y.dtype, criteria)
    if not tests:
        return ()
    least, smallest = FEWEST, 0.0
    if criteria.kind != "float32":
        least = FEWEST_OF_FLOAT16 if criteria.cell_precision.low_dtype == "float16" else FEWEST
        smallest = ALL_BITS * criteria.reference.quantum(criteria.precision)  # below it, float16 has fewer bits
    shares = dropped_bits_shares(y, criteria.reference.oracle, tuple(tests.values()), least, smallest)
    found = {name: 0.0 if math.isnan(share) else share for name, share in zip(tests, shares, strict=True)}
    name = max(found, key=lambda name: (found[name], tests[name]))  # what bfloat16 leaves, float16 would leave too
    detail = f"{found[name]:.0%} of its elements went through {name}"
    return (Measure("precision", found[name], math.nextafter(DROPPED_SHARE, 0), detail),)


def dropped_bits_shares(
    y: torch.Tensor, oracle: OracleTensor, bits: tuple[int, ...], least: int, smallest: float = 0.0
) -> tuple[float, ...]:
    """The share of elements other than zero whose low bits are all zero, if the oracle's are not.

    Args:
        y: a float32 or complex64 tensor.
        oracle: the oracle's tensor of the same shape.
        bits: numbers of low mantissa bits of a float32; each gives a share.
        least: the fewest elements that give an answer.
        smallest: elements of the oracle below it tell nothing.

    Returns:
        For each number of bits, a number from 0 to 1; NaN if fewer than `least` elements can tell.
    """
    quiet = max(smallest, SMALL_ELEMENT * oracle.rms)  # see `SMALL_ELEMENT`
    counts = [[0, 0] for _ in bits]
    for found, values in zip(*(t.reshape(-1).split(BLOCK) for t in (real_numbers(y), oracle.values)), strict=True):
        left, wanted = found.view(torch.int32), values.to(torch.float32).view(torch.int32)
        loud = (values.abs() - quiet).clamp_(min=0.0).bool()  # faster than a comparison
        loud &= found.bool()  # a zero went through nothing; the other gates judge it
        for number, dropped in zip(counts, bits, strict=True):
            mask = (1 << dropped) - 1
            telling = (wanted & mask).bool() & loud
            number[0] += int(telling.sum())
            number[1] += int((telling & ~(left & mask).bool()).sum())
    return tuple(lost / telling if telling >= least else math.nan for telling, lost in counts)

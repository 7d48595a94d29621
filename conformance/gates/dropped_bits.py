"""Finds float32 tensors that went through a narrower dtype: their low bits are zero."""

from __future__ import annotations

import math

import torch

from conformance.gates.distance import BLOCK, OracleTensor, real_numbers

SMALL_ELEMENT = 2.0**-12  # times the rms: smaller elements of the oracle may be zeros plus float64's noise


def dropped_bits_shares(
    y: torch.Tensor, oracle: OracleTensor, bits: tuple[int, ...], least: int, smallest: float = 0.0
) -> tuple[float, ...]:
    """The share of elements whose low bits are all zero, among those whose oracle has some of these bits set.

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
        for number, dropped in zip(counts, bits, strict=True):
            mask = (1 << dropped) - 1
            telling = (wanted & mask).bool() & loud
            number[0] += int(telling.sum())
            number[1] += int((telling & ~(left & mask).bool()).sum())
    return tuple(lost / telling if telling >= least else math.nan for telling, lost in counts)

"""Families of ops, one per file: the loop beside the scripted and the vectorised form."""

from zoo.ops.autocast_rules import add_and_matmul
from zoo.ops.batch_gather import batch_gather_loop, batch_gather_native, batch_gather_scripted, batch_gather_vectorised
from zoo.ops.broadcasting import sum_explicit
from zoo.ops.chain_rule import negative_square
from zoo.ops.creation import add_created
from zoo.ops.cross_entropy import softmax_cross_entropy, softmax_cross_entropy_naive, softmax_cross_entropy_native
from zoo.ops.in_place import augment, augment_copy
from zoo.ops.operators import Arithmetic, Logic, arithmetic, logic
from zoo.ops.ratio import log_clamped, ratio_naive, ratio_safe
from zoo.ops.row_sum import row_sum, row_sum_sliced, row_sum_unbind
from zoo.ops.softmax import softmax, softmax_naive

__all__ = [
    "Arithmetic",
    "Logic",
    "add_and_matmul",
    "add_created",
    "arithmetic",
    "augment",
    "augment_copy",
    "batch_gather_loop",
    "batch_gather_native",
    "batch_gather_scripted",
    "batch_gather_vectorised",
    "log_clamped",
    "logic",
    "negative_square",
    "ratio_naive",
    "ratio_safe",
    "row_sum",
    "row_sum_sliced",
    "row_sum_unbind",
    "softmax",
    "softmax_cross_entropy",
    "softmax_cross_entropy_naive",
    "softmax_cross_entropy_native",
    "softmax_naive",
    "sum_explicit",
]

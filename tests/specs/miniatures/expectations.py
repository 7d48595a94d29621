"""Declared divergences: those that come true, those that no longer do, and those that something worse hides behind."""

import damaging_modes  # noqa: F401 -- registers modes
import misbehaving_modes  # noqa: F401 -- registers modes
from miniature_parts import VALUES, expect, fails, gets, spec_of
from torch import nn

DECLARED = spec_of(
    "declared",
    lambda: nn.Linear(5, 4),
    dtypes="follows",
    expectations=(
        expect("dtype", "wrong_dtype", tensor="output", dtype="float64"),
        expect("refuses", "refusing", error="NotImplementedError", match="takes no Linear"),
        expect("ERROR", "raising", error="LookupError", match="no kernel"),
        expect("FAIL", "sign", tensor="gradient of input"),
        expect("UNSTABLE", "noise"),
        expect("VOID", "unproven"),
        expect("CRASH", "segfault"),
        expect("OOM", "memory_refused"),
    ),
)
STALE = spec_of(
    "stale",
    lambda: nn.Linear(5, 4),
    dtypes="follows",
    expectations=(
        expect("dtype", "eager", precisions=("fp32",), tensor="output", dtype="float64"),
        expect("refuses", "eager", precisions=("amp_fp16",), error="TypeError", match="."),
        expect("FAIL", "eager", precisions=("amp_bf16",), tensor="output"),
    ),
)
MISDECLARED = spec_of(
    "misdeclared",
    lambda: nn.Linear(5, 4),
    dtypes="follows",
    expectations=(
        expect("FAIL", "segfault", "leaving", "hanging", "raising", "memory_refused"),
        expect("FAIL", "sign", tensor="output"),
        expect("FAIL", "nan", gate="norm"),
        expect("FAIL", "input_changed", tensor="output"),
        expect("refuses", "refusing", error="NotImplementedError", match="takes no Conv"),
        expect("dtype", "wrong_dtype", tensor="output", dtype="float16"),
    ),
)

MINIATURES = (
    # They come true
    gets(DECLARED, "wrong_dtype", "fp32", "EXPECTED", text="output is float64"),
    gets(DECLARED, "refusing", "fp32", "UNSUPPORTED"),
    gets(DECLARED, "raising", "fp32", "EXPECTED"),
    gets(DECLARED, "sign", "fp32", "EXPECTED", *VALUES),
    gets(DECLARED, "noise", "fp32", "EXPECTED"),
    gets(DECLARED, "unproven", "fp32", "EXPECTED"),
    gets(DECLARED, "segfault", "fp32", "EXPECTED"),
    gets(DECLARED, "memory_refused", "fp32", "EXPECTED"),
    # They no longer do
    gets(STALE, "eager", "fp32", "STALE", text="has the contract's dtype again"),
    gets(STALE, "eager", "amp_fp16", "STALE", text="declared refuses did not happen"),
    gets(STALE, "eager", "amp_bf16", "STALE", text="declared FAIL did not happen"),
    # Something worse must not hide behind them
    gets(MISDECLARED, "segfault", "fp32", "CRASH"),
    gets(MISDECLARED, "leaving", "fp32", "CRASH"),
    gets(MISDECLARED, "raising", "fp32", "ERROR"),
    gets(MISDECLARED, "memory_refused", "fp32", "OOM"),
    fails(MISDECLARED, "sign", "fp32", *VALUES),
    fails(MISDECLARED, "nan", "fp32", "class"),
    fails(
        MISDECLARED,
        "input_changed",
        "fp32",
        "structure",
        *VALUES,
        text="input, case typical: changed in forward, undeclared",
    ),
    gets(MISDECLARED, "refusing", "fp32", "ERROR"),
    fails(MISDECLARED, "wrong_dtype", "fp32", "dtype"),
)

# Ends only at the deadline
HANGING = (gets(MISDECLARED, "hanging", "fp32", "TIMEOUT"),)

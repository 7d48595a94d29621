"""Checks the two controls of a measurement, which test the meter itself.

The A/A control is a second copy of the baseline: it must come out the same. The slower control is the baseline with
10 % more work: it must come out slower. If either fails, the process gives no figure.
"""

from __future__ import annotations

from conformance.errors import NotMeasuredError
from conformance.records.measurements import FASTER, SLOWER, Ratio

A_A_CONTROL, SLOWER_CONTROL = "A/A control", "10 % slower control"


def check_controls(same: Ratio, slower: Ratio) -> None:
    """Check that the meter sees the differences that exist, and no others.

    Args:
        same: ratio of the A/A control to the baseline.
        slower: ratio of the slower control to the baseline.

    Raises:
        NotMeasuredError: the meter saw a difference between two copies, or did not see the 10 % more work.
    """
    if same.verdict in (FASTER, SLOWER):
        raise NotMeasuredError("control failed", f"two copies of one model came out {same.middle:.3g} apart")
    if slower.verdict != SLOWER:
        seen = f"[{slower.low:.3g}, {slower.high:.3g}]"
        raise NotMeasuredError("too noisy", f"the meter could not see 10 % more work, {seen}")

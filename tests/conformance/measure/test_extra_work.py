"""The work that the slower control does beside its call, and the calls that must not compile."""

import math
import time

from harness.processes import printed

from conformance.figures.meter import TimedCall
from conformance.measure import side_by_side
from conformance.measure.side_by_side import EXTRA_WORK, slow_down

COMPILED = """
import json
import torch
from conformance.measure.side_by_side import no_recompilation

compiled = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
compiled(torch.zeros(2))
raised = []
with no_recompilation():
    compiled(torch.zeros(2))
    try:
        compiled(torch.zeros(3))
    except RuntimeError:
        raised.append("recompiled")
compiled(torch.zeros(4))
print(json.dumps([hasattr(torch.compiler, "set_stance"), raised]))
"""


def quickest(call):
    """Seconds of the quickest of several calls, without those that the thread waited for a processor."""
    best = math.inf
    for _ in range(5):
        started = time.thread_time()
        call()
        best = min(best, time.thread_time() - started)
    return best


def test_a_tenth_of_its_time_is_added_behind_a_call(monkeypatch):
    assert EXTRA_WORK == 0.1
    monkeypatch.setattr(side_by_side, "_quickest", lambda *_: 2e5)  # nanoseconds of 10 000 turns
    timed = TimedCall("a", lambda: "result", quickest=100e6)
    slow_down(timed, "cpu")
    assert timed.call() == "result"
    assert (500_000,) in [getattr(cell.cell_contents, "args", None) for cell in timed.call.__closure__]  # 10 ms


def test_the_added_work_takes_time():
    timed = TimedCall("a", lambda: "result", quickest=100e6)
    slow_down(timed, "cpu")
    assert quickest(timed.call) > 0.003  # of 10 ms on a machine that calibration saw slowed down


def test_a_timed_call_that_would_compile_again_raises_an_error():
    can_forbid, raised = printed(COMPILED)
    assert raised == (["recompiled"] if can_forbid else [])

"""The limits that the executor sets."""

from dataclasses import replace

import pytest
from harness.whole_runs import plan_of_zoo

from conformance.judging.executor import Executor
from conformance.process import child


@pytest.mark.parametrize(("limit", "of_reference"), [(20.0, 40.0), (300.0, 3600.0), (7200.0, 14400.0)])
def test_a_reference_gets_an_hour_unless_a_shorter_limit_is_asked_for(tmp_path, monkeypatch, limit, of_reference):
    deadlines = []

    def run(target, task, *, deadline, method):
        deadlines.append(deadline)
        return child.Ending("timed out", message="late")

    monkeypatch.setattr(child, "run", run)
    executor = Executor(replace(plan_of_zoo(("net",)), deadline=limit, digests={}), tmp_path)
    assert executor.reference("net").message == "late"
    assert deadlines == [of_reference]

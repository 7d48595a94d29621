"""A cell that kills or stops what judges it: that cell is CRASH after two starts, and all others are judged."""

import re

import pytest
from harness.command import conformance, stored_runs
from harness.tiny import judged, models

KILLED = "CRASH  took the run down twice"


@pytest.mark.parametrize("action", ["os.kill(worker(), signal.SIGKILL)", "os.kill(worker(), signal.SIGSTOP)"])
def test_a_worker_that_a_cell_ends_is_replaced(tmp_path, action):
    source = models(
        tmp_path, first="same", guilty=f"once(lambda: {action})", innocent="once(lambda: time.sleep(1))", last="same"
    )
    code, output = judged(tmp_path, source, "-n2", "--timeout=60")
    assert code == 1, output
    assert "4 cells: 3 pass, 1 crash" in output, output
    assert re.search(rf"guilty\[eager-fp32-cpu\]  {KILLED}", output)
    assert "INTERNALERROR" not in output


def test_a_cell_that_kills_the_main_process_is_passed_after_two_starts(tmp_path):
    source = models(
        tmp_path,
        guilty="once(lambda: (time.sleep(1), os.kill(main_process(), signal.SIGKILL)))",
        innocent="once(lambda: time.sleep(3))",
        last="same",
    )
    code, _ = judged(tmp_path, source, "-n2")
    assert code == -9
    (stored,) = stored_runs(tmp_path)
    resume = ("run", source, "--resume", str(stored), "-n2", "--timeout=60")
    code, output = conformance(tmp_path, *resume)
    assert code == -9, output
    code, output = conformance(tmp_path, *resume)
    assert code == 1, output
    assert "3 cells: 2 pass, 1 crash" in output, output
    assert re.search(rf"guilty\[eager-fp32-cpu\]  {KILLED}", output)
    assert not (stored / "started").exists()


def test_a_cell_cannot_interrupt_the_worker(tmp_path):
    source = models(tmp_path, one="once(lambda: os.kill(worker(), signal.SIGINT))", two="same")
    code, output = judged(tmp_path, source, "-n2")
    assert code == 0, output
    assert "2 cells: 2 pass" in output

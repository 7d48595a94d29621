"""A cell that kills what judges it: that cell is CRASH, and all others are judged."""

import re

from harness.tiny import judged, models

KILL = "once(lambda: os.kill(worker(), signal.SIGKILL))"
CRASH = r"{}\[eager-fp32-cpu\]  CRASH  the process that judges cells died while it judged this one"


def test_a_cell_that_kills_its_worker_is_a_crash_and_the_others_are_judged(tmp_path):
    others = {f"other_{number}": "same" for number in range(4)}
    source = models(tmp_path, first="same", guilty=KILL, slow="once(lambda: time.sleep(1))", **others)
    code, output = judged(tmp_path, source, "-n2", "--timeout=60")
    assert code == 1, output
    assert "7 cells: 6 pass, 1 crash" in output, output
    assert re.search(CRASH.format("guilty"), output)
    assert "INTERNALERROR" not in output


def test_all_cells_may_kill_their_workers(tmp_path):
    names = ("one", "two", "three", "four", "five")
    code, output = judged(tmp_path, models(tmp_path, **dict.fromkeys(names, KILL)), "-n2", "--timeout=60")
    assert code == 1, output
    assert "5 cells: 5 crash" in output, output
    assert all(re.search(CRASH.format(name), output) for name in names)


def test_a_cell_cannot_interrupt_the_worker(tmp_path):
    source = models(tmp_path, one="once(lambda: os.kill(worker(), signal.SIGINT))", two="same")
    code, output = judged(tmp_path, source, "-n2")
    assert code == 0, output
    assert "2 cells: 2 pass" in output

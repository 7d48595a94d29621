"""A run that does not see planted faults is void as a whole, and says so whenever it is shown."""

import re

import pytest
from harness.command import FP32, ROOT, conformance, run_folder
from harness.spec_files import MODEL, planned

from conformance.commands.stored import exit_code
from conformance.records.convert import to_json
from conformance.records.sentinels import DYING, PLANTED, WRONG, why_void
from conformance.records.verdicts import Verdict
from conformance.run import store
from conformance.show import matrix

AS_PLANTED = [Verdict(cell, status) for cell, status in PLANTED.items()]
BLIND = """
import conformance.verdict
from conformance.records.verdicts import Verdict

conformance.verdict._plain_verdict = lambda cell, seen, dtypes: Verdict(cell, "PASS")
"""


def two_models(folder):
    path = folder / "two.py"
    path.write_text(MODEL.format(name="one", expectations="") + MODEL.format(name="other", expectations=""))
    return path.name


def sentinels(folder):
    return [(verdict.cell, verdict.status) for verdict in store.read(folder).sentinels]


def test_each_run_judges_them_beside_its_cells_and_does_not_count_them(tmp_path):
    code, printed = conformance(tmp_path, "run", two_models(tmp_path), *FP32)
    assert code == 0, printed
    assert "2 cells: 2 pass" in printed
    assert "planted" not in printed
    folder = run_folder(printed)
    assert set(sentinels(folder)) == set(PLANTED.items())
    (wrong,) = {v.text for v in store.read(folder).sentinels if v.cell == WRONG.id}
    assert re.match(r"norm  output, case typical.*: error 0.25, budget", wrong)
    (dead,) = {v.text for v in store.read(folder).sentinels if v.cell == DYING.id}
    assert "phase call" in dead


def test_a_session_that_resumes_a_run_judges_them_again(tmp_path):
    code, printed = conformance(tmp_path, "run", two_models(tmp_path), *FP32, "-n", "0")
    folder = run_folder(printed)
    lines = (folder / store.LINES).read_bytes().splitlines(keepends=True)
    (folder / store.LINES).write_bytes(b"".join(lines[:-1]))  # as if it was killed before the last cell
    (folder / store.DONE).unlink(missing_ok=True)
    code, printed = conformance(tmp_path, "run", "two.py", "--resume", str(folder))
    assert (code, "2 cells: 2 pass" in printed) == (0, True), printed
    assert sentinels(folder) == 2 * list(PLANTED.items())


def test_a_run_whose_judge_is_blind_is_void(tmp_path):
    (tmp_path / "blind").mkdir()
    (tmp_path / "blind" / "sitecustomize.py").write_text(BLIND)
    code, printed = conformance(tmp_path, "run", two_models(tmp_path), *FP32, PYTHONPATH=f"{ROOT}:{tmp_path / 'blind'}")
    void = f"VOID: {WRONG.id} was planted to be FAIL and came out as PASS"
    assert (code, void in printed) == (1, True), printed
    code, printed = conformance(tmp_path, "show", str(run_folder(printed)))
    assert (code, void in printed) == (1, True), printed


@pytest.mark.parametrize(
    ("judged", "said"),
    [
        (AS_PLANTED, ""),
        (2 * AS_PLANTED, ""),
        ([AS_PLANTED[1]], f"{WRONG.id} was planted to be FAIL and was not judged"),
        (AS_PLANTED[:1], f"{DYING.id} was planted to be CRASH and was not judged"),
        ([*AS_PLANTED, Verdict(WRONG.id, "PASS")], f"{WRONG.id} was planted to be FAIL and came out as PASS"),
        ([AS_PLANTED[0], Verdict(DYING.id, "TIMEOUT")], f"{DYING.id} was planted to be CRASH and came out as TIMEOUT"),
    ],
)
def test_every_process_must_see_both(judged, said):
    assert why_void(PLANTED, judged) == said


def test_a_stored_run_without_them_is_void(tmp_path):
    (tmp_path / "one.py").write_text(MODEL.format(name="one", expectations=""))
    plan = planned(str(tmp_path / "one.py"), modes=("eager",), precisions=("fp32",), devices=("cpu",))
    folder = tmp_path / "run"
    store.create(folder, plan)
    assert store.read(folder).void == ""  # nothing is judged yet
    writer = store.Writer(folder)
    try:
        writer.add(to_json(Verdict(plan.cells[0].id, "PASS")))
        assert store.read(folder).void
        assert "VOID" in matrix.render(store.read(folder), folder=folder)
        assert exit_code(store.read(folder)) == 1
        for verdict in AS_PLANTED:
            writer.add_sentinel(to_json(verdict))
    finally:
        writer.close()
    assert store.read(folder).void == ""
    assert exit_code(store.read(folder)) == 0

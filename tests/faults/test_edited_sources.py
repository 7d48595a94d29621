"""A file that changes while the run goes on: what depends on it has no verdict, and the run says so."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from harness.command import FP32, conformance, run_folder
from harness.spec_files import planned
from harness.tiny import models

from conformance import verdict
from conformance.errors import ChangedError, UsageError
from conformance.judging.executor import Executor
from conformance.plan import matrix
from conformance.process import environment
from conformance.records.plan import OwnModel
from conformance.records.tasks import PlanRequest
from conformance.store import run_files
from zoo import spec

HELPED = """
import factor, weakref

def file(name):
    return Path(__file__).with_name(name)

def first(action):
    "What the first call does."
    if not file("done").exists():
        file("done").touch()
        action()

def edit(name):
    file(name).write_text(file(name).read_text() + "# edited\\n")

def edit_and_restore(name):
    before = file(name).read_text()
    edit(name)
    file(name).write_text(before)
"""
EDITS = {
    "a source": "edit('nets.py')",
    "a helper": "edit('factor.py')",
    "a source that no longer imports": "file('nets.py').write_text('import')",
    "a source that goes": "file('nets.py').unlink()",
    "a source, and the cell dies": "(edit('nets.py'), os.kill(os.getpid(), 9))",
}
WHEN = {"cell": "once(lambda: first(lambda: {}))", "reference": "lambda: (lambda x: (first(lambda: {}), x * 2)[1])"}


def executor_of(folder, **plan):
    """An executor of the one eager cell in `nets.py`, and the cell."""
    own = planned(str(folder / "nets.py"), modes=("eager",), precisions=("fp32",), devices=("cpu",))
    environment.prepare_children(None, compiles_for=())
    return Executor(replace(own, **plan), folder / "references"), own.cells[0]


def written(folder, build):
    """Write `nets.py`, with a model that imports a helper."""
    (folder / "factor.py").write_text("two = 2\n")
    source = folder / models(folder, one=build)
    head, spec = source.read_text().rsplit("ONE = ", 1)
    source.write_text(f"{head}{HELPED}\nONE = {spec}")


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("what", EDITS)
def test_what_depends_on_a_file_that_has_changed_is_not_judged(tmp_path, what, when):
    written(tmp_path, WHEN[when].format(EDITS[what]))
    executor, cell = executor_of(tmp_path)
    name = "factor.py" if "helper" in what else "nets.py"
    for _ in range(2):  # it is noticed after the cell, and then before it
        with pytest.raises(ChangedError) as caught:
            executor.verdict(cell)
        assert caught.value.files == (str(tmp_path / name),)


@pytest.mark.parametrize("deed", ["file('nets.py').touch()", "edit_and_restore('factor.py')"])
@pytest.mark.parametrize("when", WHEN)
def test_a_file_that_holds_the_same_again_is_no_difference_and_what_ran_meanwhile_runs_again(tmp_path, deed, when):
    written(tmp_path, WHEN[when].format(f"({deed}, os.kill(os.getpid(), 9))"))
    executor, cell = executor_of(tmp_path)
    assert executor.verdict(cell).status == "PASS"


def test_a_file_that_is_written_to_each_time_as_by_the_model_itself_is_told(tmp_path):
    written(tmp_path, "once(file('nets.py').touch)")
    executor, cell = executor_of(tmp_path)
    found = executor.verdict(cell)
    said = f"{tmp_path / 'nets.py'} was written to while this was judged, twice, and holds the same again"
    assert (found.status, found.notes) == ("PASS", (said,))


@pytest.mark.parametrize("module", [verdict, spec])
def test_an_edit_of_the_tool_is_noticed_too(tmp_path, module):
    written(tmp_path, "same")
    executor, cell = executor_of(tmp_path)
    digests = {**executor.plan.digests, module.__file__: "edited"}
    executor, cell = executor_of(tmp_path, digests=digests)
    with pytest.raises(ChangedError, match=Path(module.__file__).name):
        executor.verdict(cell)


def test_a_file_of_another_model_is_none_of_its_business(tmp_path):
    written(tmp_path, "same")
    executor, cell = executor_of(tmp_path)
    executor, cell = executor_of(tmp_path, digests={**executor.plan.digests, str(tmp_path / "other.py"): "gone"})
    assert executor.verdict(cell).status == "PASS"


def test_a_data_file_that_changes_between_reference_and_cell_is_noticed_unless_the_model_writes_it(tmp_path):
    for name, writes in {"given": "", "own": "file('own').write_text(str(os.getpid())), "}.items():
        (tmp_path / name).write_text("1")
        written(tmp_path, f"lambda: ({writes}file('{name}').read_text(), lambda x: x * 2)[-1]")
        executor, cell = executor_of(tmp_path)
        executor.reference("one")
        (tmp_path / name).write_text("2")
        if writes:
            assert executor.verdict(cell).status == "PASS"
        else:
            with pytest.raises(ChangedError, match="given"):
                executor.verdict(cell)
        shutil.rmtree(tmp_path / "references")


def test_a_saved_model_that_is_replaced_is_noticed(tmp_path):
    saved = tmp_path / "net.pt"
    torch.jit.script(torch.nn.Linear(3, 3)).save(saved)
    asked = PlanRequest((str(saved),), ("scripted",), ("fp32",), ("cpu",), given=OwnModel(inputs=("2,3",)))
    plan = matrix.plan(asked)
    environment.prepare_children(None, compiles_for=())
    executor = Executor(plan, tmp_path / "references")
    assert executor.verdict(plan.cells[0]).status == "PASS"
    torch.jit.script(torch.nn.Linear(3, 3, bias=False)).save(saved)
    with pytest.raises(ChangedError, match=r"net\.pt changed while the run went on"):
        executor.verdict(plan.cells[0])


def test_a_source_that_changes_while_the_run_is_planned_is_refused(tmp_path, monkeypatch):
    written(tmp_path, "same")
    plan_all = matrix.try_all

    def edit(*arguments):
        (tmp_path / "factor.py").write_text("two = 3\n")
        return plan_all(*arguments)

    monkeypatch.setattr(matrix, "try_all", edit)
    with pytest.raises(UsageError, match=r"factor\.py changed while the run was planned; start it again"):
        planned(str(tmp_path / "nets.py"), modes=("eager",), precisions=("fp32",), devices=("cpu",))


@pytest.mark.parametrize("workers", ["-n1", "-n2"])
def test_the_run_says_what_changed_judges_other_sources_and_ends_as_incomplete(tmp_path, workers):
    source = models(tmp_path, one="once(lambda: Path(__file__).write_text(HEAD))", two="same")
    source = tmp_path / source
    source.write_text(f"HEAD = 'edited'\n{source.read_text()}")
    typed = ("nets.py", "others.py", *FP32, workers)
    models(tmp_path, "others", other="same")
    code, printed = conformance(tmp_path, "run", *typed)
    folder, changed = run_folder(printed), f"{source} changed while the run went on, so start a new one"
    last = f"incomplete: {changed}: conformance run {' '.join(typed)}\n"
    assert (code, printed.endswith(last)) == (1, True), printed
    assert printed.count("nets.py has changed: no more cells of it are judged") == 1
    assert "Error" not in printed
    verdicts = {cell: found.status for cell, found in run_files.read(folder).verdicts.items()}
    assert verdicts.pop("other[eager-fp32-cpu]") == "PASS"
    assert set(verdicts) <= {"two[eager-fp32-cpu]"}  # if it was judged before
    code, shown = conformance(tmp_path, "show", folder)
    assert (code, shown.endswith(last)) == (1, True), shown
    code, refused = conformance(tmp_path, "run", "nets.py", "others.py", "--resume", folder)
    assert (code, refused.endswith(f"start a new run: {source} has changed since it was planned\n")) == (4, True)


def test_a_run_goes_on_once_its_sources_are_as_they_were(tmp_path):
    source = tmp_path / models(tmp_path, one="once(lambda: Path('go').exists() or Path(__file__).write_text('edited'))")
    before = source.read_text()
    code, printed = conformance(tmp_path, "run", "nets.py", *FP32)
    folder = run_folder(printed)
    assert (code, run_files.read(folder).changed) == (1, (str(source),))
    (tmp_path / "go").touch()
    source.write_text(before)
    code, printed = conformance(tmp_path, "run", "nets.py", "--resume", folder)
    assert (code, run_files.read(folder).changed) == (0, ()), printed


def test_what_is_measured_after_an_edit_is_no_figure(tmp_path):
    models(
        tmp_path, one="lambda: stored('verdict') and Path(__file__).write_text('edited') and None or (lambda x: x * 2)"
    )
    speed = [word for word in FP32 if word != "--no-speed"]
    code, printed = conformance(tmp_path, "run", "nets.py", *speed, "--speed")
    assert code == 1, printed
    assert "nets.py changed while the run went on; start it again" in printed
    contents = run_files.read(run_folder(printed))
    assert ([one.status for one in contents.verdicts.values()], contents.results) == (["PASS"], {})

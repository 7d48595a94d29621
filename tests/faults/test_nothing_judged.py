"""A model that gives nothing to judge is never green, and the verdict says why."""

import math
import re

import pytest
from harness.command import FP32, conformance, run_folder
from harness.made_by_hand import passed, plan_for

from conformance.commands.stored import exit_code
from conformance.errors import ExitCode
from conformance.records.cell import OUTPUT, Cell, Discrepancy, Measure, Observation, TensorName
from conformance.store import run_files
from conformance.verdict import judge

MODELS = """
import torch
from zoo import Case, Spec


def inputs(generator):
    return (torch.randn(3, 4, generator=generator),)


class Forgets(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        self.layer(x)


def write(x):
    x.mul_(2.0)


TYPICAL = Case(name="typical", inputs=inputs)
NO_ROWS = Case(name="no-rows", inputs=lambda generator: (torch.randn(0, 4, generator=generator),))


def spec(name, build, *cases, **fields):
    return Spec(name=name, summary="s", source="s", build=build, cases=cases or (TYPICAL,), **fields)


FORGETS = spec("forgets", lambda: Forgets(torch.nn.Linear(4, 2)))
CHANGES_BUFFERS = spec("changes_buffers", lambda: Forgets(torch.nn.BatchNorm1d(4)))
TEXT = spec("text", lambda: lambda x: "done")
NOTHING_INSIDE = spec("nothing_inside", lambda: lambda x: {"a": (), "b": None})
EMPTY = spec("empty", lambda: lambda x: x[:0])
ALL_NAN = spec("all_nan", lambda: lambda x: x * float("nan"))
ONE_CASE_WITHOUT = spec("one_case_without", lambda: lambda x: torch.tanh(x) if len(x) else None, TYPICAL, NO_ROWS)
PARTLY_EMPTY = spec("partly_empty", lambda: torch.tanh, TYPICAL, NO_ROWS)
WRITES = spec("writes", lambda: write, mutates=("x",), differentiable=False)
NUMBER = spec("number", lambda: lambda x: 3, differentiable=False)
"""
FORGOTTEN = "returns no tensor and no number, so nothing was judged; if its forward lacks a `return`, add it"
INCONCLUSIVE = {
    "forgets": FORGOTTEN,
    "changes_buffers": FORGOTTEN,
    "text": FORGOTTEN,
    "nothing_inside": FORGOTTEN,
    "empty": "every output is empty, so no value was judged",
    "all_nan": "no wrong tensor was rejected",
    "one_case_without": f"case no-rows: the model {FORGOTTEN}",
}
GREEN = ("partly_empty", "writes", "number")


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """The exit code, the output and the verdicts of one run of all models, by model."""
    folder = tmp_path_factory.mktemp("nothing")
    (folder / "models.py").write_text(MODELS)
    code, printed = conformance(folder, "run", "models.py", *FP32, "-n", "2")
    verdicts = run_files.read(run_folder(printed)).verdicts
    return code, printed, {name.partition("[")[0]: verdict for name, verdict in verdicts.items()}


@pytest.mark.parametrize("model", INCONCLUSIVE)
def test_nothing_judged_is_inconclusive_and_says_why(judged, model):
    code, _, verdicts = judged
    assert (verdicts[model].status, code) == ("INCONCLUSIVE", 1)
    assert INCONCLUSIVE[model] in verdicts[model].text


@pytest.mark.parametrize("model", GREEN)
def test_what_gives_a_value_is_judged_as_before(judged, model):
    assert judged[2][model].status == "PASS", judged[2][model].text


def test_a_case_of_empty_tensors_beside_another_is_a_remark(judged):
    assert re.search(r"only shapes and dtypes were judged:\s+partly_empty\[eager-fp32-cpu\] \(no-rows\)", judged[1])


# The rule, on observations made by hand


def tensor(name=OUTPUT, case="typical", kind="rounded", **fields):
    return Discrepancy(case, name, kind, "float32", "float32", (Measure("norm", 0.5, 1.0),), **fields)


def verdict(*tensors, cases=("typical",)):
    return judge("m[eager-fp32-cpu]", Observation("finished", discrepancies=tensors, cases=cases))


GRADIENT = TensorName("gradient", "x")
CHANGED = Discrepancy("typical", OUTPUT, "conduct", "", "", (Measure("structure", 0.0, 0.0),))


@pytest.mark.parametrize(
    "seen",
    [
        (),
        (tensor(),),
        (tensor(GRADIENT, rejected=9),),
        (tensor(TensorName("buffer", "mean"), rejected=9), tensor(TensorName("tangent", "output"), rejected=9)),
        (tensor(kind="empty"),),
        (CHANGED,),
        (tensor(case="typical, with other weights", rejected=9),),
    ],
)
def test_without_an_output_and_a_rejected_canary_there_is_no_pass(seen):
    found = verdict(*seen)
    assert (found.status, found.short) == ("INCONCLUSIVE", "evidence")


@pytest.mark.parametrize("missing", ["typical", "other"])
def test_every_case_needs_its_own_evidence(missing):
    seen = [tensor(case=case, rejected=3) for case in ("typical", "other") if case != missing]
    found = verdict(*seen, cases=("typical", "other"))
    assert found.status == "INCONCLUSIVE"
    assert f"case {missing}:" in found.text
    assert verdict(*seen, tensor(case=missing, rejected=1), cases=("typical", "other")).status == "PASS"


def test_missing_evidence_never_hides_a_failure():
    wrong = Discrepancy("typical", GRADIENT, "rounded", "", "", (Measure("norm", math.inf, 1.0),))
    assert verdict(wrong).status == "FAIL"


# A run


@pytest.mark.parametrize("status", ["SKIPPED", None])
def test_a_run_that_judged_no_cell_is_not_green(status):
    plan = plan_for(*([Cell("m", "graphed", "fp32", "cuda")] if status else []))
    contents = run_files.Contents(plan, tuple(p.id for p in plan.cells), passed(plan, graphed=status))
    assert contents.missing == ()
    assert exit_code(contents) == ExitCode.RED

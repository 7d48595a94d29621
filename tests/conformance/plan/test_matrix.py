"""What is planned: the product of models and axes, what is skipped or refused, and which modes compile."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from harness.spec_files import complaint, file_of, planned

from conformance.axes import register_mode
from conformance.errors import RecordError
from conformance.records.cell import SizedModel
from conformance.records.convert import from_json, to_json
from conformance.records.plan import Place, Plan, SpecLocation


def test_a_plan_is_the_product_of_models_and_axes(tmp_path):
    files = file_of(tmp_path, "one"), file_of(tmp_path, "two")
    plan = planned(*files, modes=("eager", "compiled"), precisions=("amp_bf16", "fp32"), devices=("cpu",))
    assert [(p.cell.model, p.cell.precision, p.cell.mode) for p in plan.cells] == [
        (model, precision, mode)
        for model in ("one", "two")
        for precision in ("fp32", "amp_bf16")
        for mode in ("eager", "compiled")
    ]
    assert (plan.seed, plan.deadline) == (3, 7.0)
    assert {p.cell.device for p in plan.cells} == {"cpu"}
    assert plan.environment.torch == torch.__version__


def test_at_the_first_case_compiled_cells_leave_the_others_out_and_what_is_declared_for_them(tmp_path):
    declared = 'Expect(outcome="FAIL", reason="r", modes=("eager", "compiled"), gate="norm", case="later"),'
    path = file_of(tmp_path, "one", declared)
    text = Path(path).read_text().replace("inputs=inputs),)", 'inputs=inputs), Case(name="later", inputs=inputs))')
    Path(path).write_text(text)
    axes = {"modes": ("eager", "compiled"), "precisions": ("fp32",), "devices": ("cpu",)}
    quick, whole = (planned(path, **axes, first_case=first) for first in (True, False))
    assert [(one.left_out, len(one.expect)) for one in quick.cells] == [((), 1), (("later",), 0)]
    assert [(one.left_out, len(one.expect)) for one in whole.cells] == [((), 1), ((), 1)]
    assert (quick.depth, whole.depth) == ("compiled at the first case", "all cases")


def test_the_working_size_of_a_model_is_planned_for_each_device():
    plan = planned("merge", "arithmetic", devices=("cpu", "cuda") if torch.cuda.is_available() else ("cpu",))
    assert plan.working_size(plan.cells[0].cell) == SizedModel("merge", 512, "width")
    assert plan.working_size(plan.cells[-1].cell) is None


def test_a_whole_plan_survives_json(tmp_path):
    expectations = 'Expect(outcome="FAIL", reason="r", modes=("eager",), gate="norm"),'
    plan = planned(file_of(tmp_path, "one", expectations), devices=("cpu",))
    assert from_json(Plan, to_json(plan)) == plan
    assert plan.models["one"].location == SpecLocation(file=str(tmp_path / "one.py"))
    assert plan.models["one"].figures == ("forward", "gradient", "step")


@pytest.mark.parametrize(
    ("axis", "value", "message"),
    [
        ("modes", "compield", "unknown mode 'compield'; did you mean compiled?"),
        ("modes", "script", "unknown mode 'script'; did you mean scripted?"),
        (
            "modes",
            "onnx",
            "unknown mode 'onnx'; known: eager, scripted, compiled, compiled_dynamic, exported, packaged, graphed",
        ),
        ("precisions", "amp_pf16", "unknown precision 'amp_pf16'; did you mean amp_fp16, amp_bf16?"),
        ("precisions", "double", "unknown precision 'double'; known: fp32, tf32, amp_fp16, amp_bf16, fp16, bf16"),
        ("devices", "tpu", "unknown device 'tpu'; did you mean cpu?"),
        ("devices", "xla", "unknown device 'xla'; known: cpu, cuda"),
    ],
)
def test_an_unknown_value_of_an_axis_is_named_with_the_near_ones_or_the_known(axis, value, message):
    assert complaint("merge", **{axis: (value,)}) == message


def test_a_registered_mode_is_offered_to_who_mistypes_it(tmp_path):
    path = tmp_path / "backend.py"
    path.write_text("import conformance\nconformance.register_mode('planted', lambda model: None)\n")
    assert complaint(str(path), modes=("plantd",)) == "unknown mode 'plantd'; did you mean planted?"


def test_an_absent_device_is_not_planned_and_refused_if_it_was_asked_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert {p.cell.device: p.skip for p in planned("merge").cells} == {"cpu": ""}
    assert complaint("merge", devices=("cuda",)) == "device 'cuda' was asked for, but torch sees no CUDA device"


def see_gpus(monkeypatch, *names):
    """Let torch see GPUs of these names, as far as planning asks."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(names))
    monkeypatch.setattr(torch.cuda, "get_device_name", names.__getitem__)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU, as far as planning asks for one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    see_gpus(monkeypatch, "a GPU")


@pytest.mark.usefixtures("gpu")
def test_what_only_cuda_has_is_planned_there_alone():
    cells = [p.cell for p in planned("merge").cells]
    assert {cell.device for cell in cells if cell.precision == "tf32"} == {"cuda"}
    assert "graphed" not in {cell.mode for cell in cells}  # only where it is asked for
    asked = planned("merge", modes=("graphed",), precisions=("fp32",))
    assert [(p.cell.mode, p.cell.device) for p in asked.cells] == [("graphed", "cuda")]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("asked", "names", "numbers"),
    [
        (("cuda",), ("A", "A"), (0, 1)),
        ((), ("A", "A", "B", "A"), (0, 1, 3)),
        (("cpu",), ("A", "A"), ()),
        (("cuda:1",), ("A", "A"), (1,)),
        (("cuda:3", "cpu", "cuda:1", "cuda:3"), ("A", "A", "B", "A"), (1, 3)),
    ],
)
def test_a_run_uses_the_gpus_that_it_names_or_all_of_the_first_kind(monkeypatch, asked, names, numbers):
    see_gpus(monkeypatch, *names)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: (9, 0) if names[number] == "A" else (7, 5))
    plan = planned("merge", devices=asked)
    assert (plan.gpus, plan.environment.gpus) == (numbers, names)
    assert {cell.device for cell in (p.cell for p in plan.cells)} <= {"cpu", "cuda"}
    assert not any(p.skip for p in plan.cells)
    plan.check()
    with pytest.raises(RecordError, match=r"^Plan\.gpus: "):
        replace(plan, gpus=(4,)).check()


@pytest.mark.usefixtures("gpu")
def test_a_gpu_that_is_not_there_or_of_another_kind_is_refused_with_those_that_are(monkeypatch):
    see_gpus(monkeypatch, "A", "B")
    seen = "torch sees cuda:0 (A), cuda:1 (B)"
    assert complaint("merge", devices=("cuda:7",)) == f"device 'cuda:7' was asked for, but {seen}"
    assert complaint("merge", devices=("cuda:0", "cuda:1")) == f"the GPUs of a run must be of one kind; {seen}"
    assert complaint("merge", devices=("cuda:x",)) == "unknown device 'cuda:x'; did you mean cuda?"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert complaint("merge", devices=("cuda:1",)) == "device 'cuda:1' was asked for, but torch sees no CUDA device"


@pytest.mark.parametrize(("axis", "value"), [("mode", "graphed"), ("precision", "tf32")])
def test_what_only_cuda_has_is_refused_on_the_cpu(axis, value):
    asked = {f"{axis}s": ("eager", value) if axis == "mode" else (value,)}
    told = complaint("merge", **asked, devices=("cpu",))
    assert told == f"{axis} '{value}' exists on cuda only, and this run is on cpu"


@pytest.mark.parametrize(("capability", "reason"), [((7, 5), "this GPU has no TF32"), ((8, 0), "")])
def test_tf32_is_skipped_where_the_gpu_has_none(monkeypatch, capability, reason):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    see_gpus(monkeypatch, "a GPU")
    skips = {p.cell.precision: p.skip for p in planned("merge", devices=("cuda",)).cells}
    assert skips == {"fp32": "", "tf32": reason, "amp_fp16": "", "amp_bf16": ""}


def test_an_expectation_reaches_only_its_cells(tmp_path):
    expectations = """
        Expect(outcome="FAIL", reason="r", modes=("eager",), precisions=("fp32",)),
        Expect(outcome="VOID", reason="r", torch=">=99"),
        Expect(outcome="CRASH", reason="r", devices=("cpu",), torch=">=2.0"),
    """
    plan = planned(file_of(tmp_path, "one", expectations), modes=("eager",), devices=("cpu",))
    assert [[e.outcome for e in p.expect] for p in plan.cells] == [["FAIL", "CRASH"], ["CRASH"], ["CRASH"]]


def test_every_field_of_a_declared_divergence_reaches_the_judge(tmp_path):
    expectations = """
        Expect(outcome="FAIL", reason="r", link="https://l", tensor="output", gate="norm", case="typical"),
        Expect(outcome="dtype", reason="r", tensor="output", dtype="float64"),
        Expect(outcome="refuses", reason="r", error="TypeError", match="takes no"),
    """
    plan = planned(file_of(tmp_path, "one", expectations), modes=("eager",), precisions=("fp32",), devices=("cpu",))
    (cell,) = plan.cells
    assert [to_json(e) for e in cell.expect] == [
        {"outcome": "FAIL", "reason": "r", "link": "https://l", "tensor": "output", "gate": "norm", "case": "typical"},
        {"outcome": "dtype", "reason": "r", "tensor": "output", "dtype": "float64"},
        {"outcome": "refuses", "reason": "r", "error": "TypeError", "match": "takes no"},
    ]


@pytest.mark.usefixtures("gpu")
def test_the_modes_of_planned_cells_compile_and_a_registered_one_unless_it_says_that_it_does_not():
    register_mode("some_backend", print)
    register_mode("some_wrapper", print, compiles=False)
    everything = ("eager", "scripted", "compiled", "some_backend", "some_wrapper")
    assert planned("merge", modes=everything, devices=("cpu",)).compiling_modes == ("compiled", "some_backend")
    assert planned("merge", modes=("scripted", "some_wrapper"), devices=("cpu",)).compiling_modes == ()
    assert planned("merge", modes=("eager",), devices=("cpu",)).compiling_modes == ()
    assert planned("merge", modes=("graphed",), precisions=("fp32",)).compiling_modes == ("graphed",)


# Candidates in a plan: cells of their own model alone, chosen by name, refused by name.


SPECS = """
import torch
from torch import nn
from zoo import Candidate, Case, Scale, Spec

def spec(name, **fields):
    cases = (Case(name="typical", inputs=lambda g: (torch.randn(4, 3, generator=g),)),)
    return Spec(name=name, summary=name, source="here", build=lambda: nn.Linear(3, 3), cases=cases, **fields)

def at(width):
    return nn.Linear(width, width)

SCALE = Scale(size_name="width", sizes=(4, 8), build=at, inputs=lambda n, g: (torch.randn(4, n, generator=g),))
FUSED = Candidate(name="fused", build=lambda: nn.Linear(3, 3), build_at=at, compiles=True)
PLAIN = Candidate(name="plain", build=lambda: nn.Linear(3, 3))
GPU = Candidate(name="on_gpu", build=lambda: nn.Linear(3, 3), devices=("cuda",))
ONE = spec("one", scale=SCALE, candidates=(FUSED, PLAIN))
TWO = spec("two", candidates=(GPU,))
THREE = spec("three")
"""


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "specs.py"
    path.write_text(SPECS)
    return str(path)


def cells(source, **asked):
    plan = planned(source, precisions=("fp32",), **{"devices": ("cpu",), **asked})
    return [p.id.partition("-")[0] for p in plan.cells], plan


def test_a_candidate_is_a_mode_of_its_model_alone(source):
    found, plan = cells(source)
    modes = ["eager", "scripted", "compiled"]
    assert [name for name in found if name.startswith("one")] == [f"one[{m}" for m in (*modes, "fused", "plain")]
    others = [f"{name}[{mode}" for name in ("two", "three") for mode in modes]
    assert [name for name in found if not name.startswith("one")] == others
    assert [model.candidates for model in plan.models.values()] == [("fused", "plain"), ("on_gpu",), ()]
    assert plan.compiling_modes == ("compiled", "fused")


def test_a_candidate_is_chosen_by_name_and_at_the_sizes_of_a_scale_needs_a_builder_for_them(source):
    assert cells(source, modes=("fused", "eager"))[0] == ["one[eager", "one[fused", "two[eager", "three[eager"]
    assert cells(source, modes=("plain",))[0] == ["one[plain"]
    assert cells(source, modes=("plain",))[1].compiling_modes == ()
    assert cells(source, modes=("fused",), all_sizes=True)[0] == ["one@4[fused", "one@8[fused"]
    told = complaint(source, modes=("plain",), all_sizes=True)
    assert told.startswith("mode 'plain' is a candidate of one without build_at, so a bench")


def test_a_candidate_is_offered_to_who_mistypes_it_and_refused_where_it_is_not(source):
    assert complaint(source, modes=("fusd",)) == "unknown mode 'fusd'; did you mean fused?"
    assert complaint("merge", modes=("fused",)).startswith("unknown mode 'fused'; known: eager, scripted, compiled")
    told = complaint(source, modes=("on_gpu",), devices=("cpu",))
    assert told == "mode 'on_gpu' exists on cuda only, and this run is on cpu"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("plain", "compiled"), "one: candidate 'compiled' has the name of a mode"),
        (("plain", "fused"), "one: two candidates are named 'fused'"),
        (("plain", "Plain"), "candidate name 'Plain': want lower-case letters, digits and '_'"),
        (("(FUSED, PLAIN)", "FUSED"), "one: candidates must be a tuple of Candidate records, got Candidate(name='fus"),
        (("(FUSED, PLAIN)", "(nn.ReLU,)"), "one: candidates must be a tuple of Candidate records, got (<class"),
        (("build_at=at, ", "build_at=3, "), "candidate 'fused': build_at must be callable, got 3"),
    ],
)
def test_a_wrong_candidate_is_refused_by_its_name_and_field(source, tmp_path, change, said):
    path = tmp_path / "wrong.py"
    path.write_text(SPECS.replace(*(f'"{part}"' if change[0] == "plain" else part for part in change)))
    assert said in complaint(str(path))


# The file and line at which each planned model is written.


HEAD = """import torch
from zoo import Case, Spec

CASE = Case(name="typical", inputs=lambda g: (torch.randn(4, 3, generator=g),))


def spec(name):
    return Spec(name=name, summary="s", source="a test", build=lambda: lambda x: x * 2, cases=(CASE,), dtypes="input")


"""
LINE = len(HEAD.splitlines()) + 1


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ('NET = spec("net")\n', LINE),
        ("# net\n\nNET = spec('net')\n", LINE + 2),
        ('OTHER = "net"\nNETS = (\n    spec(\n        name="net",\n    ),\n)\n', LINE + 3),
        ('\nNET = spec("n" + "et")\n', LINE + 1),
        ('\n\nNETS: tuple = (spec("n" + "et"),)\n', LINE + 2),
        ('globals()["NET"] = spec("n" + "et")\n', 1),
    ],
)
def test_a_spec_is_written_where_its_source_names_it(tmp_path, source, line):
    path = tmp_path / "nets.py"
    path.write_text(HEAD + source)
    (model,) = planned(str(path), modes=("eager",), devices=("cpu",)).models.values()
    assert model.written == Place(str(path), line)


def test_a_model_at_a_size_is_written_where_the_model_is():
    models = planned("mlp", "mlp@64", modes=("eager",), devices=("cpu",)).models
    place = models["mlp"].written
    assert place == models["mlp@64"].written
    assert place.line > 1
    assert place.file.endswith("zoo/models/mlp.py")

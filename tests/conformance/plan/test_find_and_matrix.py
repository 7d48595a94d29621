"""What a person may name, and what is said of what they may not."""

import json
import sys

import pytest
import torch

from conformance import axes
from conformance.plan import find, matrix
from conformance.axes import UsageError
from zoo import catalog
from zoo.case import SpecError

MODEL = """
import torch
from zoo import Case, Expect, Spec

def inputs(generator):
    return (torch.randn(3, generator=generator),)

{name} = Spec(
    name="{name}",
    summary="s",
    source="s",
    build=lambda: torch.nn.Identity(),
    cases=(Case(name="typical", inputs=inputs),),
    expectations=({expectations}),
)
"""


def file_of(folder, name, expectations="", stem=""):
    path = folder / f"{stem or name}.py"
    path.write_text(MODEL.format(name=name, expectations=expectations))
    return str(path)


def made(*named, modes=(), precisions=(), devices=()):
    task = {"sources": list(named), "modes": list(modes), "precisions": list(precisions), "devices": list(devices)}
    return matrix.make({**task, "seed": 3, "deadline": 7.0}, lambda _: None)


@pytest.fixture(autouse=True)
def _tidy(monkeypatch):
    """Modes and path entries of one test are none of the next one's."""
    monkeypatch.setattr("sys.path", list(sys.path))
    before = dict(axes.MODES)
    yield
    axes.MODES.clear()
    axes.MODES.update(before)


def test_a_plan_is_the_product_of_models_and_axes(tmp_path):
    files = file_of(tmp_path, "one"), file_of(tmp_path, "two")
    found = made(*files, modes=("eager", "compiled"), precisions=("amp_bf16", "fp32"), devices=("cpu",))
    cells = [(c["model"], c["precision"], c["mode"]) for c in found["cells"]]
    assert cells == [
        (model, precision, mode)
        for model in ("one", "two")
        for precision in ("fp32", "amp_bf16")
        for mode in ("eager", "compiled")
    ]
    assert (found["seed"], found["deadline"]) == (3, 7.0)
    assert {c["device"] for c in found["cells"]} == {"cpu"}
    assert found["environment"]["torch"] == torch.__version__


def test_a_whole_plan_survives_json(tmp_path):
    found = made(file_of(tmp_path, "one"))
    returned = json.loads(json.dumps(found, allow_nan=False))
    assert returned["cells"][0] == found["cells"][0]
    assert returned["models"] == found["models"] == {"one": {"module": "", "file": str(tmp_path / "one.py")}}


def whole_zoo():
    return catalog.list_models() + catalog.list_models(module="counterexamples")


def test_no_source_means_the_whole_zoo():
    found = made(modes=("eager",), precisions=("fp32",), devices=("cpu",))
    assert [c["model"] for c in found["cells"]] == whole_zoo()


@pytest.mark.parametrize("folder", ["functions", "counterexamples"])
def test_a_folder_of_the_zoo_is_a_source(folder):
    found = made(folder, "merge", modes=("eager",), precisions=("fp32",), devices=("cpu",))
    assert [c["model"] for c in found["cells"]] == [*catalog.list_models(module=folder), "merge"]


def test_what_is_wrong_on_purpose_is_listed_apart():
    assert "sum_over_broadcast" in catalog.list_models(module="counterexamples")
    assert "sum_over_broadcast" not in catalog.list_models()


@pytest.mark.parametrize(
    ("axis", "value", "message"),
    [
        ("modes", "compield", "unknown mode 'compield'; known: eager, scripted, compiled, graphed"),
        ("precisions", "fp64", "unknown precision 'fp64'; known: fp32, tf32, amp_fp16, amp_bf16"),
        ("devices", "tpu", "unknown device 'tpu'; known: cpu, cuda"),
    ],
)
def test_an_unknown_value_of_an_axis_is_named_with_the_known(axis, value, message):
    assert made("merge", **{axis: (value,)})["usage"].startswith(message)


def test_an_unknown_model_offers_the_nearest():
    assert "no model named 'merg'; did you mean merge" in made("merg")["usage"]


def test_an_absent_device_is_skipped_unless_it_was_asked_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    skips = {c["device"]: c["skip"] for c in made("merge")["cells"]}
    assert skips == {"cpu": "", "cuda": "torch sees no CUDA device"}
    assert made("merge", devices=("cuda",)) == {"usage": "device 'cuda' was asked for, but torch sees no CUDA device"}


def test_what_only_cuda_has_is_planned_there_alone():
    cells = made("merge")["cells"]
    assert {c["device"] for c in cells if c["precision"] == "tf32"} == {"cuda"}
    assert "graphed" not in {c["mode"] for c in cells}  # only where it is asked for
    assert [(c["mode"], c["device"]) for c in made("merge", modes=("graphed",), precisions=("fp32",))["cells"]] == [
        ("graphed", "cuda")
    ]


@pytest.mark.parametrize(("axis", "value"), [("mode", "graphed"), ("precision", "tf32")])
def test_what_only_cuda_has_is_refused_on_the_cpu(axis, value):
    found = made("merge", **{f"{axis}s": ("eager", value) if axis == "mode" else (value,)}, devices=("cpu",))
    assert found == {"usage": f"{axis} '{value}' exists on cuda only, and this run is on cpu"}


@pytest.mark.parametrize(("capability", "reason"), [((7, 5), "this GPU has no TF32"), ((8, 0), "")])
def test_tf32_is_skipped_where_the_gpu_has_none(monkeypatch, capability, reason):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    skips = {c["precision"]: c["skip"] for c in made("merge", devices=("cuda",))["cells"]}
    assert skips == {"fp32": "", "tf32": reason, "amp_fp16": "", "amp_bf16": ""}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nowhere_to_be_found", "does not import: ModuleNotFoundError: No module named 'nowhere_to"),
        ("def f(:", "does not import: SyntaxError"),
        ("1 / 0", "does not import: ZeroDivisionError"),
        ("x = 1", "defines no zoo.Spec and registers no mode"),
        ("", "defines no zoo.Spec and registers no mode"),
    ],
)
def test_a_file_of_no_use_says_why(tmp_path, text, message):
    path = tmp_path / "useless.py"
    path.write_text(text)
    usage = made(str(path))["usage"]
    assert str(path) in usage
    assert message in usage


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('(Case(name="typical", inputs=inputs),)', "()", "one: cases: want a tuple with at least one Case, got ()"),
        ('name="one"', 'name="One"', "spec name 'One': want lower-case"),
        ("lambda: torch.nn.Identity()", "3", "one: build must be callable, got 3"),
        ('source="s",', 'source="s", dtypes="float33",', "one: dtypes: 'float33' is neither"),
    ],
)
def test_a_spec_that_contradicts_itself_names_spec_and_field(tmp_path, old, new, message):
    path = tmp_path / "one.py"
    text = MODEL.format(name="one", expectations="")
    assert old in text
    path.write_text(text.replace(old, new))
    assert message in made(str(path))["usage"]


def test_no_file():
    assert made("nowhere/nothing.py") == {"usage": "no file nowhere/nothing.py"}


def test_no_module():
    assert "no_such_package.nets does not import: ModuleNotFoundError" in made("no_such_package.nets:SPEC")["usage"]


def test_a_name_in_a_module_that_is_no_spec():
    assert "zoo.models.merge:Merge: Merge is no zoo.Spec" in made("zoo.models.merge:Merge")["usage"]
    assert "Nothing is no zoo.Spec" in made("zoo.models.merge:Nothing")["usage"]


def test_a_name_in_a_module():
    found = made("zoo.models.merge:MERGE", modes=("eager",), precisions=("fp32",), devices=("cpu",))
    assert [c["model"] for c in found["cells"]] == ["merge"]


def test_two_models_of_one_name_are_refused_with_both_places(tmp_path):
    first, second = file_of(tmp_path, "same"), file_of(tmp_path, "same", stem="other")
    usage = made(first, second)["usage"]
    assert usage.startswith("two models are named 'same'")
    assert first in usage
    assert second in usage


def test_a_file_may_not_take_the_name_of_a_zoo_model_beside_it(tmp_path):
    assert "two models are named 'merge'" in made("merge", file_of(tmp_path, "merge"))["usage"]


def test_a_source_named_twice_is_there_once(tmp_path):
    path = file_of(tmp_path, "one")
    found = made(path, path, modes=("eager",), precisions=("fp32",), devices=("cpu",))
    assert len(found["cells"]) == 1


def test_a_file_that_only_registers_a_mode_adds_it_to_the_zoo(tmp_path):
    path = tmp_path / "backend.py"
    path.write_text("import conformance\nconformance.register_mode('planted', lambda model: None)\n")
    found = made(str(path), modes=("planted",), precisions=("fp32",), devices=("cpu",))
    assert [c["model"] for c in found["cells"]] == whole_zoo()
    assert {c["mode"] for c in found["cells"]} == {"planted"}
    assert found["homes"] == [{"module": "", "file": str(path)}]


@pytest.mark.parametrize(
    ("name", "prepare", "message"),
    [
        ("eager", print, "mode 'eager' is already registered"),
        ("My Mode", print, "mode name 'My Mode': want lower-case"),
        ("mine", 3, "mode 'mine': prepare must be callable, got 3"),
    ],
)
def test_a_mode_that_cannot_be_registered(name, prepare, message):
    with pytest.raises(UsageError, match=message):
        axes.register_mode(name, prepare)


def test_an_expectation_reaches_only_its_cells(tmp_path):
    expectations = """
        Expect(outcome="FAIL", reason="r", modes=("eager",), precisions=("fp32",)),
        Expect(outcome="VOID", reason="r", torch=">=99"),
        Expect(outcome="CRASH", reason="r", devices=("cpu",), torch=">=2.0"),
    """
    found = made(file_of(tmp_path, "one", expectations), modes=("eager",), devices=("cpu",))
    assert [[e["outcome"] for e in c["expect"]] for c in found["cells"]] == [["FAIL", "CRASH"], ["CRASH"], ["CRASH"]]


def test_a_file_beside_the_source_cannot_hide_a_standard_module(tmp_path):
    (tmp_path / "json.py").write_text("raise AssertionError('the wrong json')")
    path = tmp_path / "uses_json.py"
    path.write_text(MODEL.format(name="uses_json", expectations="") + "\nimport json.decoder\n")
    assert "usage" not in made(str(path))


def test_a_home_finds_its_spec_again_and_loads_a_file_once(tmp_path):
    path = file_of(tmp_path, "one")
    ((spec, home),), _ = find.find([path])
    assert home.spec("one") is spec


def test_registering_a_taken_name_in_the_catalogue_raises(tmp_path):
    ((spec, _),), _ = find.find([file_of(tmp_path, "merge", stem="impostor")])
    with pytest.raises(SpecError, match="'merge' is already registered"):
        catalog.register(spec)

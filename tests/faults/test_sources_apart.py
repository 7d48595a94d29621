"""What the import of one source does to its process changes no other source's verdict, and no other source's plan."""

import pytest
from harness.command import FP32, conformance, run_folder
from harness.spec_files import planned

from conformance.store import run_files

INNOCENT = """
import torch
from zoo import Case, Spec

innocent = Spec(
    name="innocent", summary="s", source="s", build=lambda: torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()),
    cases=(Case(name="typical", inputs=lambda g: (torch.randn(5, 3, generator=g),), independent_samples=True),),
)
"""
RUDE = """
import sys
import torch
import zoo
from zoo import Case, Spec

{what}

rude = Spec(
    name="rude", summary="s", source="s", build=lambda: torch.tanh,
    cases=(Case(name="typical", inputs=lambda g: (torch.randn(3, generator=g),)),),
)
"""
DEEDS = {
    "replaces relu": "torch.nn.functional.relu = lambda x, inplace=False: 0.9 * x.clamp(min=0)",
    "replaces the forward of a layer": "torch.nn.Linear.forward = lambda self, x: x",
    "sets the default dtype": "torch.set_default_dtype(torch.float64)",
    "sets the default device": "torch.set_default_device('meta')",
    "switches gradients off": "torch.set_grad_enabled(False)",
    "sets seeds": "torch.manual_seed(3)\ntorch.manual_seed = lambda seed: None",
    "replaces a function of the zoo": "zoo.spec.Spec.dtype_word = lambda self, leaf, device: 'int8'",
}
OWN_PARTS = """
import torch
from parts import BUILD, {constant}
from zoo import Case, Spec

{name} = Spec(
    name="{name}", summary="s", source="s", build=BUILD,
    cases=(Case(name="typical", inputs=lambda g: (torch.randn(3, generator=g),)),),
)
"""
MODE = """
import torch
import conformance

def prepare(model):
    return conformance.Prepared(model, lambda: {{"kind": "mine"}})

conformance.register_mode("{name}", prepare, compiles=False)
"""


def judged(folder, *sources, options=FP32):
    """The status of every cell of a run of some sources."""
    _, printed = conformance(folder, "run", *sources, *options)
    assert "run stored in" in printed, printed
    return {name: v.status for name, v in run_files.read(run_folder(printed)).verdicts.items()}


def test_no_import_changes_the_verdict_of_another_source(tmp_path):
    (tmp_path / "innocent.py").write_text(INNOCENT)
    rude = []
    for number, deed in enumerate(DEEDS.values()):
        (tmp_path / f"rude{number}.py").write_text(RUDE.format(what=deed).replace("rude", f"rude{number}"))
        rude.append(f"rude{number}.py")
    statuses = judged(tmp_path, *rude, "innocent.py")
    assert statuses["innocent[eager-fp32-cpu]"] == "PASS"
    assert len(statuses) == len(rude) + 1


@pytest.mark.parametrize("deed", ["sets the default dtype", "sets the default device", "switches gradients off"])
def test_planning_puts_back_what_an_import_switches(tmp_path, deed):
    (tmp_path / "rude.py").write_text(RUDE.format(what=DEEDS[deed]))
    watching = "import torch\nassert torch.get_default_dtype() == torch.float32\nassert torch.is_grad_enabled()\n"
    watching += "assert torch.ones(2).device.type == 'cpu'\n"
    (tmp_path / "innocent.py").write_text(watching + INNOCENT)
    plan = planned(str(tmp_path / "rude.py"), str(tmp_path / "innocent.py"), modes=("eager",), precisions=("fp32",))
    assert {p.cell.model for p in plan.cells} == {"rude", "innocent"}


def test_two_folders_may_have_files_of_the_same_name_beside_their_sources(tmp_path):
    for name, build in (("one", "torch.nn.Tanh"), ("two", "torch.nn.Sigmoid")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "parts.py").write_text(f"import torch\nBUILD, {name.upper()} = {build}, 1\n")
        (tmp_path / name / f"{name}.py").write_text(OWN_PARTS.format(name=name, constant=name.upper()))
    statuses = judged(tmp_path, "one/one.py", "two/two.py")
    assert statuses == {"one[eager-fp32-cpu]": "PASS", "two[eager-fp32-cpu]": "PASS"}


def test_a_cell_imports_only_what_registers_its_mode(tmp_path):
    (tmp_path / "innocent.py").write_text(INNOCENT)
    (tmp_path / "mine.py").write_text(MODE.format(name="mine"))
    (tmp_path / "other.py").write_text(MODE.format(name="other") + DEEDS["replaces relu"])
    sources = ("innocent.py", "mine.py", "other.py")
    statuses = judged(tmp_path, *sources, options=("--mode=mine", *FP32))
    assert statuses == {"innocent[eager-fp32-cpu]": "PASS", "innocent[mine-fp32-cpu]": "PASS"}


@pytest.mark.parametrize("ending", ["sys.exit(3)", "raise KeyboardInterrupt"])
def test_a_source_that_ends_its_import_is_named(tmp_path, ending):
    (tmp_path / "rude.py").write_text(RUDE.format(what=ending))
    code, printed = conformance(tmp_path, "run", "rude.py", *FP32)
    assert code == 4
    assert (
        f"{tmp_path / 'rude.py'} does not import: {'SystemExit' if 'exit' in ending else 'KeyboardInterrupt'}"
        in printed
    )
    assert "Traceback" not in printed

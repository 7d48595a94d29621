"""Candidates in a plan: cells of their own model alone, chosen by name, refused by name."""

import pytest
from harness.spec_files import complaint, planned

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
    assert [name for name in found if not name.startswith("one")] == [
        f"{n}[{m}" for n in ("two", "three") for m in modes
    ]
    assert [model.candidates for model in plan.models.values()] == [("fused", "plain"), ("on_gpu",), ()]
    assert plan.compiling_modes == ("compiled", "fused")


def test_a_candidate_is_chosen_by_name(source):
    assert cells(source, modes=("fused", "eager"))[0] == ["one[eager", "one[fused", "two[eager", "three[eager"]
    assert cells(source, modes=("plain",))[0] == ["one[plain"]
    assert cells(source, modes=("plain",))[1].compiling_modes == ()


def test_at_the_sizes_of_a_scale_a_candidate_needs_a_builder_for_them(source):
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
        (
            ("(FUSED, PLAIN)", "FUSED"),
            "one: candidates must be a tuple of Candidate records, got Candidate(name='fused'",
        ),
        (("(FUSED, PLAIN)", "(nn.ReLU,)"), "one: candidates must be a tuple of Candidate records, got (<class"),
        (("build_at=at, ", "build_at=3, "), "candidate 'fused': build_at must be callable, got 3"),
    ],
)
def test_a_wrong_candidate_is_refused_by_its_name_and_field(source, tmp_path, change, said):
    path = tmp_path / "wrong.py"
    path.write_text(SPECS.replace(*(f'"{part}"' if change[0] == "plain" else part for part in change)))
    assert said in complaint(str(path))

"""Runs use the references of earlier runs, and make new ones after a change of any kind."""

import json
import os

import pytest
import torch
from harness.command import FP32, ROOT, conformance

SPEC = """
import json
import os
from pathlib import Path

import torch

import helper
from zoo import Case, Spec

HERE = Path(__file__).parent


def build():
    native = torch.jit.load(str(HERE / "weights.pt"))
    model = torch.nn.Linear(3, 2)
    model.weight.data.copy_(native.weight)
    model.bias.data.fill_(json.loads((HERE / "bias.json").read_text()))
    return torch.nn.Sequential(model, helper.Scale())


CASE = Case(name="typical", inputs=lambda g: (torch.randn(4, 3, generator=g),))
NET = Spec(name="net", summary="a net", source="a test", build=build, cases=(CASE,))
"""
HELPER = """
import torch


class Scale(torch.nn.Module):
    def forward(self, x):
        return x * {}
"""
PLAIN = """
import torch

from zoo import Case, Spec


class Net(torch.nn.Linear):
    def forward(self, x):
        return {} * super().forward(x)


CASE = Case(name="typical", inputs=lambda g: (torch.randn(4, 3, generator=g),))
NET = Spec(name="net", summary="a net", source="a test", build=lambda: Net(3, 2), cases=(CASE,))
"""
KEPT = "references of an earlier run: net (--fresh makes new ones)"


def weights(value):
    model = torch.nn.Linear(3, 2)
    torch.nn.init.constant_(model.weight, value)
    return torch.jit.script(model)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "nets.py").write_text(SPEC)
    (tmp_path / "helper.py").write_text(HELPER.format(2))
    (tmp_path / "bias.json").write_text(json.dumps(0.5))
    weights(1.0).save(str(tmp_path / "weights.pt"))
    return tmp_path


def judged(folder, *options):
    code, output = conformance(folder, "run", "nets.py", *FP32, "-n1", *options, XDG_CACHE_HOME=str(folder / "cache"))
    assert code == 0, output
    assert "1 cell: 1 pass" in output
    return KEPT in output


def test_a_change_of_any_kind_makes_a_new_reference(folder):
    assert not judged(folder)
    assert judged(folder)
    assert not judged(folder, "--fresh")
    (folder / "helper.py").write_text(HELPER.format(3))
    assert not judged(folder)
    (folder / "bias.json").write_text(json.dumps(0.25))
    assert not judged(folder)
    weights(2.0).save(str(folder / "weights.pt"))  # which native code reads
    assert not judged(folder)
    (folder / "nets.py").write_text(SPEC.replace("randn(4, 3", "randn(5, 3"))
    assert not judged(folder)
    assert judged(folder)


def test_another_checkout_of_a_package_has_a_reference_of_its_own(tmp_path):
    """Its modules have the same names, its models the same numbers, and the first checkout is still there."""
    for name, factor in (("mine", 2), ("theirs", 3)):
        package = tmp_path / name / "package"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "net.py").write_text(PLAIN.format(factor))
    again = []
    for name in ("mine", "mine", "theirs", "mine"):
        folder, words = tmp_path / name, ("run", "package.net", *FP32, "-n1")
        path = os.pathsep.join([str(ROOT), str(folder)])
        code, output = conformance(folder, *words, XDG_CACHE_HOME=str(tmp_path / "cache"), PYTHONPATH=path)
        assert code == 0, output
        again.append(KEPT in output)
    assert again == [False, True, False, True]

"""The oracle under vmap and in forward mode, and the dtypes that a cell may give there."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from conformance.cell.session import CellSession
from conformance.errors import SelfCheckError
from conformance.evaluate.transforms import check_adjoint
from conformance.float64.wide import Oracle
from conformance.records.cell import Cell
from conformance.records.observation import OUTPUT, TensorName
from zoo import Case, Spec, SpecError

VMAPPED, TANGENT = TensorName("vmapped", "output"), TensorName("tangent", "output")


def spec_of(**fields):
    case = Case(name="typical", inputs=lambda g: (torch.randn(6, 5, generator=g),))
    wanted = {"vmappable": True, "forward_mode": True, "dtypes": "follows", **fields}
    return Spec(name="dense", summary="dense", source="a test", build=lambda: nn.Linear(5, 4), cases=(case,), **wanted)


def answered():
    oracle = Oracle(spec_of(), 0)
    question = oracle.question(oracle.spec.cases[0], 0)
    return oracle, question, oracle.evaluate(question)


def test_the_oracle_loops_over_three_draws_that_differ():
    oracle, question, found = answered()
    (x,) = question.stacked.args
    assert x.shape == (3, 6, 5)
    assert not torch.equal(x[0], x[1])
    torch.testing.assert_close(found.tensors[VMAPPED], oracle.model(x).detach(), rtol=1e-12, atol=1e-12)
    assert torch.equal(found.tensors[VMAPPED][0], found.tensors[OUTPUT])


def test_tangents_are_held_to_the_gradients():
    _, question, found = answered()
    check_adjoint(question, found)
    for name in (TANGENT, TensorName("gradient", "weight")):
        damaged = replace(found, tensors=found.tensors | {name: found.tensors[name] * (1 + 1e-6)})
        with pytest.raises(SelfCheckError, match="forward_mode"):
            check_adjoint(question, damaged)


@pytest.mark.parametrize(
    ("name", "found", "asked"),
    [
        (VMAPPED, torch.bfloat16, "bfloat16"),
        (VMAPPED, torch.float32, "float32"),
        (VMAPPED, torch.float64, "bfloat16"),
        (TANGENT, torch.float32, "bfloat16"),
        (TANGENT, torch.bfloat16, "bfloat16"),
    ],
)
def test_the_dtype_under_autocast_is_the_output_s_and_only_vmap_may_promote(name, found, asked):
    session = CellSession(spec_of(), Cell("dense", "eager", "amp_bf16", "cpu"), 0)
    question = session.question(session.spec.cases[0], nn.Linear(5, 4))
    assert session._dtype(name, question, None, torch.zeros(2, dtype=found)) == asked


@pytest.mark.parametrize("fields", [{"differentiable": False}, {"mutates": ("input",)}])
def test_claims_that_cannot_be_checked_are_refused(fields):
    with pytest.raises(SpecError, match="forward_mode"):
        spec_of(vmappable=False, **fields)

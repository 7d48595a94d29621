"""Sparse tensors as inputs, and results that are no tensors."""

import pytest
import torch
from harness import own_models as nets

import conformance
from conformance.evaluate import inputs
from conformance.evaluate.weights import fingerprint
from conformance.own import spec
from zoo.case import Call
from zoo.spec import Spec

pytestmark = pytest.mark.filterwarnings("ignore:Sparse ")  # torch warns of formats that are new

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
ADJACENCY = torch.tensor([[0.5, 0.3, 0.1, 0.0, 0.0, 0.1]]).mul(torch.arange(1.0, 7.0)[:, None])


def repeated():
    """Return a matrix that is not coalesced: an index is there twice."""
    return torch.sparse_coo_tensor([[0, 0, 3], [1, 1, 2]], [0.25, 0.5, 1.0], (6, 6), check_invariants=True)


LAYOUTS = {
    "coo": ADJACENCY.to_sparse,
    "repeated": repeated,
    "csr": ADJACENCY.to_sparse_csr,
    "csc": ADJACENCY.to_sparse_csc,
    "bsr": lambda: ADJACENCY.to_sparse_bsr((2, 2)),
    "bsc": lambda: ADJACENCY.to_sparse_bsc((2, 2)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_values_of_a_sparse_tensor_are_converted(layout):
    sparse = LAYOUTS[layout]()
    placed = inputs.place(Call((sparse, sparse), {}), lambda values: values.double() * 2).args
    assert placed[0] is placed[1]
    assert (placed[0].layout, placed[0].dtype) == (sparse.layout, torch.float64)
    assert torch.equal(placed[0].to_dense(), sparse.to_dense().double() * 2)


@pytest.mark.parametrize("layout", ["coo", "repeated", "csr"])
def test_a_graph_convolution_is_judged(layout):
    report = conformance.check(nets.Graph(), X, LAYOUTS[layout](), modes=("eager", "scripted"), precisions="fp32")
    assert [cell.status for cell in report.cells] == ["PASS", "ERROR"]  # scripts know no distributions
    assert "results that are no tensors are left aside: " in str(report)
    assert "(Normal)" in str(report)


def test_a_model_that_returns_no_tensor_is_refused():
    with pytest.raises(conformance.UsageError, match=r"of_type: output is of type Normal; a model returns tensors"):
        conformance.check(of_type, X, modes="eager")


def of_type(x):
    """Return a distribution alone."""
    return torch.distributions.Normal(x, 1.0)


def test_the_values_and_places_of_a_sparse_input_tell_references_apart():
    others = [repeated(), repeated() * 2, repeated().t().coalesce().to_sparse()]
    specs = [
        Spec(name="graph", summary="", source="", build=nets.Graph, cases=(spec.case_of(Call((X, matrix), {})),))
        for matrix in others
    ]
    assert len({fingerprint(spec, 0, spec.build().apply(constant)) for spec in specs}) == 3


def constant(module):
    """Fill the parameters of a module with one number."""
    for parameter in module.parameters(recurse=False):
        torch.nn.init.constant_(parameter, 0.5)

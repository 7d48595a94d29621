"""The file of a reference: what is read is what was written, in place, and checked; what is not read costs nothing."""

import pytest
import torch
from harness.references import exact_reference, reference_of

from conformance.axes import PRECISIONS
from conformance.errors import DamagedReferenceError
from conformance.gates.distance import Redraws, Sums, rounded_sums
from conformance.oracle import reference_file
from conformance.oracle.draws import Redraw
from conformance.oracle.reference import CaseReference
from conformance.records.cell import OUTPUT, TensorName

TENSORS = {
    "numbers": torch.arange(12.0).reshape(3, 4),
    "turned": torch.arange(12.0, dtype=torch.float64).reshape(3, 4).t(),
    "whole": torch.arange(5, dtype=torch.int64),
    "flags": torch.tensor([True, False, True]),
    "short": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "complex": torch.tensor([1 + 2j, 3 - 4j]).conj(),
    "one": torch.tensor(2.0).expand(1, 1),
    "scalar": torch.tensor(3),
    "empty": torch.zeros(0, 7),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.reference"


def test_every_kind_of_tensor_comes_back(path):
    tree = {"tensors": TENSORS, "list": [1, 2.5, None, "text", {"inside": (TENSORS["whole"],)}], "inf": float("inf")}
    reference_file.save(path, tree)
    found = reference_file.load(path)
    assert found["list"][:4] == tree["list"][:4]
    assert torch.equal(found["list"][4]["inside"][0], TENSORS["whole"])
    assert found["inf"] == float("inf")
    for name, tensor in TENSORS.items():
        assert (found["tensors"][name].dtype, found["tensors"][name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found["tensors"][name], tensor)


def test_a_tensor_is_mapped_and_to_write_it_leaves_the_file_alone(path):
    reference_file.save(path, TENSORS)
    before, one, other = path.read_bytes(), reference_file.load(path), reference_file.load(path)
    assert all(t.data_ptr() % reference_file.ALIGNED == 0 for t in one.values() if t.numel())
    one["numbers"].fill_(-1.0)
    assert torch.equal(other["numbers"], TENSORS["numbers"])
    assert path.read_bytes() == before


def test_damage_is_found_where_it_is_read_and_nowhere_else(path):
    reference_file.save(path, {"of": {"amp_fp16": TENSORS["numbers"], "fp32": TENSORS["whole"]}})
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    assert torch.equal(reference_file.load(path, "fp32")["of"]["fp32"], TENSORS["whole"])
    with pytest.raises(DamagedReferenceError, match="checksum"):
        reference_file.load(path, "amp_fp16")


def test_a_file_that_cannot_be_written_leaves_nothing_behind(path):
    with pytest.raises(TypeError):
        reference_file.save(path, {"tensor": TENSORS["numbers"], "no JSON": object()})
    assert list(path.parent.iterdir()) == []


COUNT, LOST = TensorName("buffer", "count"), TensorName("gradient", "x")


@pytest.fixture
def cases():
    """The reference of a model with one case, which is judged with other weights and over draws too."""
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    runs = rounded_sums([x.bfloat16()], [x])
    low = reference_of(x)
    sums = {name: Sums(torch.zeros(12), torch.ones(12)) for name in ("amp_fp16", "amp_bf16")}
    low = type(low)(**{**vars(low), "strayed": sums, "redraws": Redraws((x.float(),), {"amp_bf16": runs})})
    fine = reference_of(x + 1)
    only = type(fine)(**{**vars(fine), "spread": {"fp32": fine.spread["fp32"]}})
    changed = ((Redraw(7, weights=0, fine=True), CaseReference(0, 1.0, {OUTPUT: only}, {"output": True})),)
    tensors = {OUTPUT: low, COUNT: exact_reference(torch.arange(6).reshape(2, 3)), LOST: None}
    return {"typical": CaseReference([(0, 1), (2, 3)], 4.0, tensors, {"output": True}, changed=changed)}


@pytest.mark.parametrize("precision", ["", "fp32", "amp_bf16", "amp_fp16"])
def test_a_reference_comes_back_with_what_a_precision_needs(path, cases, precision):
    reference_file.save(path, cases)
    (known, saved) = (reference_file.load(path, precision)["typical"], cases["typical"])
    assert (known.picks, known.scale, list(known.tensors)) == (saved.picks, saved.scale, list(saved.tensors))
    assert known.tensors[LOST] is None
    for name in (OUTPUT, COUNT):
        one, other = known.tensors[name], saved.tensors[name]
        assert torch.equal(one.oracle.raw, other.oracle.raw)
        for figure in ("norm", "rms", "axes"):
            assert getattr(one.oracle, figure) == getattr(other.oracle, figure)
        assert all(map(torch.equal, one.oracle.slice_norms, other.oracle.slice_norms))
        assert set(one.spread) == ({"fp32", precision} if precision else set(PRECISIONS))
        assert all(one.spread[p].absolute == other.spread[p].absolute for p in one.spread)
    low = known.tensors[OUTPUT]
    assert set(low.strayed) == {"": {"amp_fp16", "amp_bf16"}, "fp32": set()}.get(precision, {precision})
    assert (low.redraws is not None) is (precision in ("", "amp_bf16"))
    assert len(known.changed) == (precision in ("", "fp32"))


def test_a_damaged_reference_is_no_fault_of_a_model(path, cases):
    reference_file.save(path, cases)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedReferenceError, match="checksum"):
        reference_file.load(path, "fp32")

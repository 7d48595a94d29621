"""What `check` and `run` cannot do with a model without a spec: one line that names the fault, and no run folder."""

import re
import sys
import threading
import types

import pytest
import torch
from harness import own_models as nets
from harness.command import conformance, stored_runs

import conformance as public
from conformance.errors import UsageError
from conformance.plan import matrix
from conformance.process.child_side import ChildProcess
from conformance.records.plan import OwnModel
from conformance.records.tasks import PlanRequest

X = torch.randn(6, 4)


@pytest.mark.parametrize(
    ("target", "inputs", "message"),
    [
        (nets.Net(), (), "check: no inputs; give those of one call"),
        (lambda x: x, (X,), "check: the model, a function, cannot be sent to another process"),
        (threading.Lock(), (X,), "cannot be sent to another process: TypeError: cannot pickle"),
        (nets.double, (threading.Lock(),), "check: the inputs cannot be sent to another process"),
    ],
)
def test_what_cannot_be_sent(target, inputs, message, monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)  # as if it were not installed
    with pytest.raises(UsageError, match=message):
        public.check(target, *inputs)


def test_a_wrong_argument():
    with pytest.raises(UsageError, match="train must be True, False or None, got 'no'"):
        public.check(nets.double, X, train="no")
    with pytest.raises(UsageError, match="kwargs must map names to arguments"):
        public.check(nets.double, kwargs=[1])


def planned(thing, *inputs):
    request = PlanRequest((thing,), given=OwnModel(inputs=inputs), devices=("cpu",))
    return matrix.make(request, ChildProcess())


def refused(thing, *inputs):
    with pytest.raises(UsageError) as caught:
        planned(thing, *inputs)
    return str(caught.value)


def test_names_and_shapes_that_do_not_fit():
    assert "did you mean NeedsWidth?" in refused("harness.own_models:NeedWidth", "2,4")
    shapes = r"net does not take these inputs: RuntimeError: (addmm: )?mat1 and mat2"
    assert re.match(shapes, refused("harness.own_models:Net", "2,5"))
    assert refused("harness.own_models:NeedsWidth", "2,4").startswith("NeedsWidth cannot be built without arguments")
    assert refused("harness.own_models:Net").startswith("net has no spec, so its inputs must be described")
    assert refused("no_such_module:Net", "2").startswith("no_such_module does not import: ModuleNotFoundError")
    assert refused("harness.own_models:X", "2").endswith("own_models.py has no X")
    assert refused("zoo.models.merge:MERGE", "2,4").startswith(
        "inputs, --train and --eval are for a model without a spec"
    )


def test_files_that_are_no_model(tmp_path, monkeypatch):
    for name, content in {"text.pt": b"no model", "empty.pt": b""}.items():
        (tmp_path / name).write_bytes(content)
        assert "is no model that this torch can read" in refused(str(tmp_path / name), "2,4")
    torch.save(nets.Net().state_dict(), tmp_path / "weights.pt")
    assert "holds the weights of a model (4 tensors) and no model" in refused(str(tmp_path / "weights.pt"), "2,4")
    lost = types.ModuleType("lost")
    lost.double = types.FunctionType(nets.double.__code__, vars(lost), "double")
    lost.double.__module__ = "lost"
    monkeypatch.setitem(sys.modules, "lost", lost)
    torch.save(lost.double, tmp_path / "lost.pt")
    monkeypatch.delitem(sys.modules, "lost")
    assert "needs code that another process cannot import: ModuleNotFoundError" in refused(
        str(tmp_path / "lost.pt"), "2,4"
    )
    torch.save({"a": 1}, tmp_path / "dict.pt")
    assert "holds a dict, no model" in refused(str(tmp_path / "dict.pt"), "2,4")
    assert refused(str(tmp_path / "none.pt"), "2,4") == f"no file {tmp_path / 'none.pt'}"


def test_the_command_ends_with_four_and_no_folder(tmp_path):
    (tmp_path / "net.pt").write_text("no model")
    code, output = conformance(tmp_path, "run", "net.pt", "--input", "2,3")
    assert (code, len(output.splitlines())) == (4, 1)
    assert output.startswith("conformance: ")
    assert stored_runs(tmp_path) == []

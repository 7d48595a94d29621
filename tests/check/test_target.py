"""Specs of models that have none: forms, inputs, assumed contracts."""

import inspect
import re
import sys
import threading
import types

import pytest
import torch
from harness import own_models as nets
from harness.command import conformance, stored_runs
from torch.nn import functional

import conformance as public
from conformance.errors import UsageError
from conformance.evaluate import inputs
from conformance.float64 import wide
from conformance.oracle import reference
from conformance.own import spec
from conformance.own.capture import Definitions, NoSourceError
from conformance.own.forms import wrap
from conformance.own.spec import spec_of, try_model
from conformance.plan import matrix
from conformance.process.child_side import ChildProcess
from conformance.records.cell import TensorName
from conformance.records.plan import OwnModel
from conformance.records.tasks import PlanRequest
from zoo.case import Call


def generator():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("2,3", (2, 3), torch.float32),
        ("4:bool", (4,), torch.bool),
        ("2,3:int64:5..7", (2, 3), torch.int64),
        ("2:float64:0..1", (2,), torch.float64),
        (":int64:0..9", (), torch.int64),
    ],
)
def test_an_input_in_words(text, shape, dtype):
    call = spec.draw_inputs(spec.read_description([text]), generator())
    assert (call.args[0].shape, call.args[0].dtype) == (shape, dtype)
    again = spec.draw_inputs(spec.read_description([text]), generator())
    assert torch.equal(call.args[0], again.args[0])


def test_limits_and_names_of_inputs_in_words():
    call = spec.draw_inputs(spec.read_description(["100:int64:5..7", "x=100:float32:-1..0"]), generator())
    assert set(call.args[0].tolist()) == {5, 6}
    assert -1 <= float(call.kwargs["x"].min()) <= float(call.kwargs["x"].max()) <= 0


@pytest.mark.parametrize("text", ["", "2,,3", "2:int64", "2:floot", "2:float32:1..0", "2:bool:0..1", "two"])
def test_words_that_describe_no_input(text):
    with pytest.raises(UsageError, match="--input"):
        spec.read_description([text])


def test_the_first_draw_is_what_was_given_and_others_come_from_its_distribution():
    x = torch.rand(50, 4, generator=generator())
    index, mask = torch.arange(4), torch.tensor([0.0, 1.0] * 10)
    case = spec.case_of(Call((x, index), {"mask": mask}))
    first = inputs.raw_batch(case, 0, 0)
    assert torch.equal(first.args[0], x)
    other = inputs.raw_batch(case, 0, 1)
    assert not torch.equal(other.args[0], x)
    assert x.min() <= other.args[0].min() <= other.args[0].max() <= x.max()
    assert abs(float(other.args[0].mean() - x.mean())) < 0.1
    assert torch.equal(other.args[1], index)
    assert torch.equal(other.kwargs["mask"], mask)


def contracts(thing, *texts):
    own, words = try_model(OwnModel(name="net", thing=thing, inputs=texts), nets, 0)
    return own, "; ".join(words)


class Limited(torch.nn.Embedding):
    def __init__(self):
        super().__init__(9, 4, max_norm=1.0)


class Averaged(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.average = (torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)) for _ in range(2))
        self.average.requires_grad_(False)

    @torch.no_grad()
    def update(self):
        for average, own in zip(self.average.parameters(), self.own.parameters(), strict=True):
            average.lerp_(own, 0.1)

    def forward(self, x):
        self.update()
        return self.own(x) * self.average(x)


def test_what_a_call_shows_is_the_assumed_contract(monkeypatch):
    assert contracts("Net", "2,4")[1].endswith("the model is in train mode, as it is")
    monkeypatch.setattr(nets, "scores", lambda x: x.argmax(), raising=False)
    own, words = contracts("scores", "2,4")
    assert not own.differentiable
    assert "no gradients" in words
    monkeypatch.setattr(nets, "noisy", lambda x: x + torch.rand(()), raising=False)
    own, words = contracts("noisy", "2,4")
    assert own.changes_state == ("random generator",)
    assert "draws random numbers" in words
    monkeypatch.setattr(nets, "writes", lambda x: x.detach().clone(), raising=False)
    monkeypatch.setattr(nets, "fills", lambda x, out: out.copy_(x.detach()), raising=False)
    assert contracts("fills", "2,4", "2,4")[0].mutates == ("out",)
    monkeypatch.setattr(nets, "Limited", Limited, raising=False)
    monkeypatch.setattr(nets, "Averaged", Averaged, raising=False)
    own, words = contracts("Limited", "2,4:int64:0..9")
    assert own.mutates == ("weight",)
    assert "it changes weight, as eager does" in words
    own, words = contracts("Averaged", "2,3")
    assert own.mutates == ("average.0.bias", "average.0.weight", "average.1.bias", "average.1.weight")
    assert "it changes average.0.bias, average.0.weight and 2 more, as eager does" in words


def strict(x, target):
    if not 0 <= float(target.detach().min()) <= 1:
        raise ValueError("a target is negative")
    return x * target


class Product(torch.autograd.Function):
    @staticmethod
    def forward(c, x, y):
        c.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(c, gradient):
        x, y = c.saved_tensors
        return gradient * y, gradient * x


class ProductSetUpApart(Product):
    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, _):
        ctx.save_for_backward(*inputs)


@pytest.mark.parametrize("function", [Product, ProductSetUpApart])
def test_inputs_of_a_function_have_the_names_of_its_forward_without_the_context(function):
    case = spec.case_of(Call((torch.ones(2), torch.ones(2))))
    assert list(inspect.signature(wrap(function, case)).parameters) == ["x", "y"]


@pytest.mark.parametrize(
    ("function", "constants", "why"),
    [
        (functional.binary_cross_entropy, ("target",), "target gets no gradient: moved a little, it raises Runtime"),
        (strict, ("target",), "moved a little, it raises ValueError: a target is negative"),
        (functional.soft_margin_loss, ("target",), "it raises RuntimeError: The function 'soft_margin_loss' is not"),
        (functional.mse_loss, (), ""),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_an_input_that_can_have_no_gradient_is_a_constant(monkeypatch, tmp_path, function, constants, why):
    torch.save((Call((torch.rand(6), torch.tensor([0.0, 1, 1, 0, 1, 0])), {}), ()), tmp_path / "call.pt")
    monkeypatch.setattr(nets, "loss", function, raising=False)
    own, words = try_model(OwnModel(name="net", thing="loss", call=str(tmp_path / "call.pt")), nets, 0)
    assert (own.constants, own.differentiable) == (constants, True)
    assert why in "; ".join(words)
    spec, _ = spec_of(own, nets)
    (case,) = reference.make(spec, None, 0, []).values()
    assert (TensorName("gradient", "target") in case.tensors) is not bool(constants)


def test_a_function_that_returns_a_module_builds_it_and_an_operator_has_a_source_for_torchscript():
    built, forms = spec_of(OwnModel(name="net", thing="build", inputs=("2,4",)), nets)
    assert isinstance(built.build(), nets.Net)
    assert forms.kind == "the module that build builds"
    case = spec.case_of(Call((torch.randn(3), torch.tensor(2.0)), {}))
    function = wrap(torch.ops.aten.mul, case)
    assert torch.equal(torch.jit.script(function)(torch.ones(3), torch.tensor(2.0)), 2 * torch.ones(3))


def test_a_lazy_module_is_called_once_before_it_is_judged(tmp_path):
    torch.save((Call((torch.randn(5, 4),), {}), ()), tmp_path / "call.pt")
    own = OwnModel(name="lazy", thing="Lazy", training="eval", call=str(tmp_path / "call.pt"))
    spec, _ = spec_of(own, nets)
    models = [wide.prepared_model(spec, seed) for seed in (0, 0, 1)]
    assert [[*p.shape] for p in models[0].parameters()] == [[8, 4], [8], [3, 8], [3]]
    assert not models[0].training
    first, same, other = (model.first.weight for model in models)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


MAIN = """
from __future__ import annotations
import math
from collections import OrderedDict
WIDTH = 3
UNUSED = object()

def helper(x):
    local = x * WIDTH
    return math.sqrt(local)

class Base:
    pass

class Net(Base):
    def call(self, x: OrderedDict):
        return helper(x)

print("executed again")
"""


def test_definitions_are_what_a_name_needs_and_no_more(monkeypatch, tmp_path, capsys):
    path = tmp_path / "main.py"
    path.write_text(MAIN)
    main = types.ModuleType("__main__")
    main.__file__ = str(path)
    exec(compile(MAIN, str(path), "exec"), vars(main))
    monkeypatch.setitem(sys.modules, "__main__", main)
    capsys.readouterr()
    definitions = Definitions()
    definitions.add(["Net"])
    fresh = {"__name__": "__main__"}
    exec(compile(definitions.text(), "definitions", "exec", dont_inherit=True), fresh)
    assert fresh["Net"]().call(12) == 6
    assert "UNUSED" not in fresh
    assert capsys.readouterr().out == ""
    main.Lost = type("Lost", (), {"__module__": "__main__"})
    with pytest.raises(NoSourceError, match="Lost is defined in the main module"):
        definitions.add(["Lost"])


# What `check` and `run` cannot do with a model without a spec: one line that names the fault, and no run folder.

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


def refused(thing, *inputs):
    with pytest.raises(UsageError) as caught:
        matrix.make(
            PlanRequest((thing,), given=OwnModel(inputs=inputs, trusted=True), devices=("cpu",)), ChildProcess()
        )
    return str(caught.value)


def test_names_and_shapes_that_do_not_fit():
    assert "did you mean NeedsWidth?" in refused("harness.own_models:NeedWidth", "2,4")
    shapes = r"net does not take these inputs: RuntimeError: (addmm: )?mat1 and mat2"
    assert re.match(shapes, refused("harness.own_models:Net", "2,5"))
    assert refused("harness.own_models:NeedsWidth", "2,4").startswith("NeedsWidth cannot be built without arguments")
    assert refused("harness.own_models:Net").startswith("net has no spec, so its inputs must be described")
    assert refused("no_such_module:Net", "2").startswith("no_such_module does not import: ModuleNotFoundError")
    assert refused("harness.own_models:X", "2").endswith("own_models.py has no X")
    told = refused("zoo.models.merge:MERGE", "2,4")
    assert told.startswith("inputs, --reference, --train, --eval and --trust are for a model without a spec")


def test_files_that_are_no_model(tmp_path, monkeypatch):
    for name, content in {"text.pt": b"no model", "empty.pt": b""}.items():
        (tmp_path / name).write_bytes(content)
        assert "is no model that this torch can read" in refused(str(tmp_path / name), "2,4")
    lost = types.ModuleType("lost")
    lost.double = types.FunctionType(nets.double.__code__, vars(lost), "double")
    lost.double.__module__ = "lost"
    monkeypatch.setitem(sys.modules, "lost", lost)
    torch.save(lost.double, tmp_path / "lost.pt")
    monkeypatch.delitem(sys.modules, "lost")
    torch.save({"a": 1}, tmp_path / "dict.pt")
    told = {name: refused(str(tmp_path / f"{name}.pt"), "2,4") for name in ("lost", "dict", "none")}
    assert "needs code that another process cannot import: ModuleNotFoundError" in told["lost"]
    assert "holds a dict, no model" in told["dict"]
    assert told["none"] == f"no file {tmp_path / 'none.pt'}"


def test_a_file_of_weights_is_refused_with_its_first_keys_and_what_to_do(tmp_path):
    weights = nets.Net().state_dict()
    files = {"weights": weights, "checkpoint": {"epoch": 3, "model": weights, "optimizer": {}, "seed": 0}}
    for name, content in files.items():
        torch.save(content, tmp_path / f"{name}.pt")
    told = {name: refused(str(tmp_path / f"{name}.pt"), "2,4") for name in files}
    assert f"weights.pt holds weights alone ({', '.join([*weights][:3])} and 1 more) and no model" in told["weights"]
    assert "checkpoint.pt holds weights alone (epoch, model, optimizer and 1 more) and no model" in told["checkpoint"]
    assert all("build the module, load them by load_state_dict, and check the module" in line for line in told.values())


def test_onnx_is_refused_with_what_to_give_instead(tmp_path):
    (tmp_path / "net.onnx").write_bytes(b"\x08\x07")
    told = "net.onnx: a model in ONNX cannot be judged; give the PyTorch module that it was exported from"
    assert refused(str(tmp_path / "net.onnx")).endswith(told)  # before its inputs are asked for
    with pytest.raises(UsageError, match=told):
        public.check(tmp_path / "net.onnx", X)


@pytest.mark.filterwarnings("ignore:You are using `torch.load`:FutureWarning")  # torch 2.4, of what it calls itself
def test_an_exported_program_names_the_sizes_at_which_it_is_fixed(tmp_path):
    torch.export.save(torch.export.export(nets.Net(), (torch.randn(3, 4),)), tmp_path / "net.pt2")
    fixed = r"net does not take these inputs: dimension 0 of \w+ is fixed at 3 and given as 2; give that size, or"
    assert re.match(fixed, refused(str(tmp_path / "net.pt2"), "2,4"))
    free = torch.export.export(nets.Net(), (torch.randn(3, 4),), dynamic_shapes=({0: torch.export.Dim("rows")},))
    torch.export.save(free, tmp_path / "free.pt2")
    fixed = r"free does not take these inputs: dimension 1 of \w+ is fixed at 4 and given as 5; give that size"
    assert re.match(fixed, refused(str(tmp_path / "free.pt2"), "2,5"))


def test_a_lazy_module_that_torch_cannot_copy_is_to_be_called_first():
    with pytest.raises(UsageError, match="it is lazy, and torch does not copy its UninitializedBuffer; call it once"):
        public.check(torch.nn.LazyBatchNorm1d(), X)


def test_the_command_ends_with_four_and_no_folder(tmp_path):
    (tmp_path / "net.pt").write_text("no model")
    code, output = conformance(tmp_path, "run", "net.pt", "--input", "2,3")
    assert (code, len(output.splitlines())) == (4, 1)
    assert output.startswith("conformance: ")
    assert stored_runs(tmp_path) == []

"""A model held to the one that it replaces, and a candidate judged beside a model."""

import pytest
import torch
from harness.command import FP32, conformance
from torch import nn
from torch.nn import functional

import conformance as public
from conformance.errors import UsageError

FAST = {"modes": "eager", "precisions": "fp32"}
X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.left(x) * torch.sigmoid(self.right(x))


class Fused(Plain):
    def forward(self, x):
        weight = torch.cat([self.left.weight, self.right.weight])
        left, right = functional.linear(x, weight, torch.cat([self.left.bias, self.right.bias])).chunk(2, -1)
        return left * torch.sigmoid(right)


class TooLarge(Plain):
    def forward(self, x):
        return 1.001 * super().forward(x)


class Renamed(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.gate = nn.Linear(4, 3), nn.Linear(4, 3)


class Dropped(Plain):
    def forward(self, x):
        return functional.dropout(self.left(x), training=self.training) * self.right(x)


class Times(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return self.factor * x


class Cube(torch.autograd.Function):
    slope = 3.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @classmethod
    def backward(cls, ctx, gradient):
        (x,) = ctx.saved_tensors
        return cls.slope * gradient * x * x


class SteepCube(Cube):
    slope = 3.03


def cube(base):
    return base**3


def cube_without_gradient(x):
    return cube(x).detach()


def cube_and_more(x):
    return cube(x), x + 1


def sum_of_two(x, y):
    return x + y


def cube_in_float32(x):
    if x.dtype == torch.float64:
        raise RuntimeError("no kernel for double")
    return cube(x)


def test_a_new_module_gets_the_formula_of_the_old_one_with_its_own_weights_in_every_mode():
    found = public.check(Fused(), X, precisions="fp32", reference=Plain())
    assert [cell.status for cell in found.cells] == ["PASS"] * 3
    assert (
        "it must give the outputs, dtypes and gradients of its reference plain with the same weights"
        in found.assumed[0]
    )


@pytest.mark.parametrize(
    ("new", "old", "gate", "text"),
    [
        (TooLarge, Plain, "gain", "forward wrong"),
        (SteepCube, cube, "gain", "forward right; backward wrong"),
        (cube_without_gradient, cube, "structure", "requires_grad is False, the oracle's is True"),
        (cube_and_more, cube, "structure", "tuple[Tensor, Tensor], the oracle's is Tensor"),
    ],
)
def test_a_new_model_that_computes_something_else_is_red(new, old, gate, text):
    (cell,) = public.check(new, X, **FAST, reference=old).cells
    assert cell.status == "FAIL"
    assert cell.short.startswith(gate)
    assert text in cell.text


@pytest.mark.parametrize(("new", "old"), [(Cube, cube), (cube, "__main__:cube"), (torch.ops.aten.sin, torch.sin)])
def test_functions_and_operators_whose_inputs_have_other_names(new, old, monkeypatch):
    monkeypatch.setattr("__main__.cube", cube, raising=False)
    assert public.check(new, X, **FAST, reference=old).ok


def test_another_reference_of_the_same_name_makes_another_oracle():
    assert [public.check(Times(2.0), X, **FAST, reference=Times(factor)).ok for factor in (2.0, 3.0)] == [True, False]


def saved(net, folder):
    """The paths of a network that is saved as TorchScript, and as an exported program."""
    torch.jit.save(torch.jit.script(net), folder / "old.pt")
    torch.export.save(torch.export.export(net, (X,)), folder / "new.pt2")
    return folder / "old.pt", folder / "new.pt2"


def test_an_exported_program_that_replaces_torchscript_keeps_its_rows_and_the_old_one_its_mode(tmp_path):
    old, new = saved(Dropped().eval(), tmp_path)
    found = public.check(new, X, **FAST, reference=old, trust=True)
    assert found.ok
    assert "with a row less" in str(found)
    assert found.write(tmp_path / "kept").is_dir()
    code, output = conformance(tmp_path, "run", "new.pt2", "--reference", "old.pt", "--input", "6,4", "--trust", *FP32)
    assert code == 0, output
    assert "gradients of its reference old" in output


def test_a_saved_reference_or_candidate_must_have_the_weights_of_the_model(tmp_path):
    net = Plain()
    old, _ = saved(net, tmp_path)
    assert public.check(net, X, **FAST, reference=torch.jit.load(old), candidate=torch.jit.load(old)).ok
    for role in ("reference", "candidate"):
        with pytest.raises(UsageError, match=f"the {role} old of plain is saved with another left.weight; save both"):
            public.check(Plain(), X, **FAST, **{role: old})
    assert public.check(old, X, precisions="fp32", reference=Plain).ok


@pytest.mark.parametrize("role", ["reference", "candidate"])
def test_other_parameters_are_named_on_both_sides(role):
    told = "lacks right.weight, right.bias and it alone has gate.weight, gate.bias"
    with pytest.raises(UsageError, match=f"the {role} renamed of plain: parameters and buffers must .* {told}"):
        public.check(Plain(), X, **FAST, **{role: Renamed})


@pytest.mark.parametrize(
    ("old", "message"),
    [
        (sum_of_two, "the reference: sum_of_two does not take these inputs: TypeError: .* argument: 'y'"),
        ("none.pt", "the reference: no file"),
        ("harness.own_models:NeedWidth", "the reference: .* did you mean NeedsWidth"),
        ("harness.own_models:NeedsWidth", "the reference: NeedsWidth cannot be built without arguments"),
    ],
)
def test_a_reference_that_cannot_be_called(old, message):
    with pytest.raises(UsageError, match=message):
        public.check(cube, X, **FAST, reference=old)


def test_a_reference_without_float64_makes_no_oracle():
    (cell,) = public.check(cube, X, **FAST, reference=cube_in_float32).cells
    assert cell.status == "INCONCLUSIVE"
    assert "of the reference runs in float32 but not in float64: no kernel for double" in cell.text


def test_a_candidate_has_a_column_of_its_own_whatever_modes_are_asked_for():
    found = public.check(Plain(), X, **FAST, candidate=Fused())
    assert [cell.cell for cell in found.cells] == ["plain[eager-fp32-cpu]", "plain[fused-fp32-cpu]"]
    assert found.ok
    found = public.check(Plain(), X, **FAST, candidate=TooLarge)
    assert [cell.status for cell in found.cells] == ["PASS", "FAIL"]


def test_a_candidate_that_would_lose_its_compiler_is_refused():
    in_place = Fused()
    in_place.compile()
    for compiled in (torch.compile(Fused()), in_place):
        with pytest.raises(UsageError, match=r"the candidate is inside torch\.compile .* would be judged without it"):
            public.check(Plain(), X, **FAST, candidate=compiled)


def test_the_command_takes_no_reference_for_a_model_with_a_spec(tmp_path):
    code, output = conformance(tmp_path, "run", "square", "--reference", "old.pt", *FP32)
    assert code == 4
    assert "inputs, --reference, --train, --eval and --trust are for a model without a spec" in output

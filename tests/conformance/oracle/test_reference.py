"""What a reference holds beside its tensors: what the model keeps, what may change between calls, its transforms."""

import pytest
import torch
from harness.oracles import reference_of
from torch import nn

from conformance.axes import PRECISIONS
from conformance.float64.wide import Oracle
from conformance.oracle import draws, reference
from conformance.oracle.draws import HEADROOM, LEAST, Scale, scale_for
from conformance.records.cell import OUTPUT, TensorName
from zoo import Case, Spec


class Rotary(nn.Module):
    """Keeps the cosines of its rates, or computes them in each call."""

    def __init__(self, *, keeps, persistent=True, parameter=False):
        super().__init__()
        self.layer, self.keeps, self.table = nn.Linear(4, 4), keeps, None
        rates = torch.linspace(0.1, 1.0, 4)
        if parameter:
            self.rates = nn.Parameter(rates, requires_grad=False)
        else:
            self.register_buffer("rates", rates, persistent=persistent)

    def forward(self, x):
        if not self.keeps:
            return self.layer(x) * self.rates.cos()
        if self.table is None:
            self.table = self.rates.cos()
        return self.layer(x) * self.table


class Stale(nn.Linear):
    """Keeps its weight of the first call, which training changes."""

    def __init__(self):
        super().__init__(4, 4)
        self.kept = None

    def forward(self, x):
        if self.kept is None:
            self.kept = self.weight.detach().clone()
        return x @ self.kept.t() + self.bias


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (lambda: Rotary(keeps=True), ("rates",)),
        (lambda: Rotary(keeps=True, parameter=True), ("rates",)),
        (lambda: Rotary(keeps=False), ()),
        (lambda: Rotary(keeps=False, parameter=True), ()),
        (lambda: Rotary(keeps=False, persistent=False), ("rates",)),
        (Stale, ()),
        (lambda: nn.BatchNorm1d(4).eval(), ()),
    ],
)
def test_what_a_model_keeps_a_table_of_is_not_drawn_again_unless_training_changes_it(build, names):
    case = Case(name="typical", inputs=lambda g: (torch.randn(5, 4, generator=g),))
    oracle = Oracle(Spec(name="kept", summary="", source="", build=build, cases=(case,)), 0)
    assert reference.tables_of(oracle, oracle.question(case, 0)) == names


# Which gradients are what cancellation leaves, and which are chaotic

FP32 = PRECISIONS["fp32"]


class Chaotic(nn.Module):
    """Its output is well determined, and so is the gradient of the bias; that of x is not."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.ones(6))

    def forward(self, x):
        y = x.sigmoid()
        for _ in range(25):
            y = 3.9 * y * (1 - y)
        return self.bias + 1e-4 * y


def tensors_of(build):
    case = Case(name="typical", inputs=lambda g: (torch.randn(16, 6, generator=g),))
    spec = Spec(name="net", summary="", source="", build=build, cases=(case,))
    return reference.make_for_timing(spec, 0, [FP32])["typical"].tensors


@pytest.mark.parametrize("weight", [0.75, 1.0, 4.0])
def test_a_gradient_that_cancels_but_for_eps_is_a_remainder(weight):
    def build():
        model = nn.Sequential(nn.BatchNorm1d(6), nn.BatchNorm1d(6), nn.Sigmoid())
        nn.init.constant_(model[0].weight, weight)
        return model

    tensors, weight_of_first = tensors_of(build), TensorName("gradient", "0.weight")
    assert [name for name, known in tensors.items() if known.is_remainder] == [weight_of_first]
    assert tensors[weight_of_first].is_null


@pytest.mark.parametrize(
    ("build", "tensor"),
    [(Chaotic, TensorName("gradient", "x")), (lambda: lambda x: (x + 4e6) - 4e6, OUTPUT)],
    ids=["chaos", "output"],
)
def test_chaos_and_an_output_that_cancels_are_none(build, tensor):
    known = tensors_of(build)[tensor]
    assert known.spread["fp32"].absolute > known.oracle.norm / 4
    assert not known.is_remainder
    assert not known.is_null


# The scale of the cotangents: gradients inside a model may be much larger than those that it returns

GRADIENT = TensorName("gradient", "x")


class Divided(nn.Module):
    """Divides and multiplies by the same number: its backward goes through larger gradients."""

    def __init__(self, number):
        super().__init__()
        self.layer, self.number = nn.Linear(6, 6), number

    def forward(self, x):
        return self.layer(x) / self.number * self.number


class InFloat32(Divided):
    """The same, but in float32 under autocast too."""

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return super().forward(x.float())


def scale(number, precisions=("fp32", "amp_fp16"), model=Divided):
    """The scale of a model."""
    return reference_of(lambda: model(number), precisions).scale


def test_the_scale_is_lowered_if_a_gradient_inside_the_model_overflows():
    usual, lowered = scale(1.0), scale(512.0)
    assert scale(4.0) == usual
    assert LEAST < lowered < usual / 8
    assert scale(512.0, ("fp32", "amp_bf16")) == usual  # nothing else is scaled
    assert scale(1e9) == usual  # gradients overflow with each scale
    assert scale(512.0, model=InFloat32) == scale(1.0, model=InFloat32) > lowered


def test_a_draw_fits_if_its_gradients_do():
    gradients = {GRADIENT: torch.ones(3)}
    factor = scale_for(gradients)
    assert Scale(factor, 10.0).fits(gradients, 9.0)
    assert not Scale(factor, 10.0).fits(gradients, 11.0)
    assert not Scale(factor, 10.0).fits({GRADIENT: torch.tensor([HEADROOM * 8 / factor])}, 1.0)


class Full(Divided):
    """A model for which there is no memory."""

    def forward(self, _):
        raise MemoryError


def test_full_memory_is_not_taken_for_a_finite_gradient(monkeypatch):
    monkeypatch.setattr(draws, "prepared_model", lambda *_: Full(1.0))
    with pytest.raises(MemoryError):
        scale(512.0)


class Settings(nn.Module):
    """A Linear with numbers and flags that a person may set."""

    def __init__(self, *, keeps=False):
        super().__init__()
        self.layer, self.keeps, self.table = nn.Linear(4, 4), "yes" if keeps else "", None
        self.scale, self.shifts, self.calls, self._private, self.unused = 2.0, True, 0, 3.0, 5.0

    def forward(self, x):
        self.calls += 1
        if self.table is None or not self.keeps:
            self.table = self.scale
        return self.layer(x) * self.table + (1.0 if self.shifts else 0.0) + 0.1 * self.training


def changes_of(build, cases=("typical",)):
    cases = tuple(Case(name=name, inputs=lambda g: (torch.randn(4, 4, generator=g),)) for name in cases)
    spec = Spec(name="changed", summary="changed", source="a test", build=build, cases=cases)
    known = reference.make(spec, None, 0, [PRECISIONS["fp32"]])["typical"]
    return {redraw.text: redraw for redraw, _ in known.changed}


def test_between_calls_rows_numbers_flags_and_the_mode_change():
    found = changes_of(Settings)
    words = "with other weights, with a row less, with a row more, with other numbers in its attributes, in eval mode"
    assert ", ".join(found) == words
    assert dict(found["with other numbers in its attributes"].settings) == {
        "scale": 2.25,
        "unused": 5.625,
        "shifts": False,
    }


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Linear(4, 4),  # nothing to set, and no mode
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval(),  # which draws random numbers in train mode
        lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)),  # whose eps is torch's own
    ],
)
def test_what_shows_nothing_does_not_change(build):
    assert [*changes_of(build, ("typical", "another"))] == ["with other weights"]


def test_a_number_of_which_the_model_makes_a_table_is_not_set_after_the_first_call():
    assert "with other numbers in its attributes" not in changes_of(lambda: Settings(keeps=True))


def own_function(**rules):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return 2 * x

        @staticmethod
        def setup_context(*_):
            pass

        @staticmethod
        def backward(_, gradient):
            return 2 * gradient

    return type("Own", (Double,), rules)


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({}, {"vmap": "raises an error", "forward mode": "raises an error"}),
        (
            {"generate_vmap_rule": True, "jvp": staticmethod(lambda _, tangent: 2 * tangent)},
            {"vmap": "holds", "forward mode": "holds"},
        ),
        (
            {
                "vmap": staticmethod(lambda _, dims, x: (3 * x, dims[0])),
                "jvp": staticmethod(lambda _, tangent: 3 * tangent),
            },
            {"vmap": "gives other numbers", "forward mode": "gives other numbers"},
        ),
    ],
)
def test_transforms_that_nobody_claims_are_tried_in_float64(rules, told):
    function = own_function(**rules)
    case = Case(name="typical", inputs=lambda g: (torch.randn(4, 4, generator=g),))
    spec = Spec(name="own", summary="own", source="a test", build=lambda: function.apply, cases=(case,))
    assert reference.make(spec, None, 0, [PRECISIONS["fp32"]])["typical"].unclaimed == told


def test_torch_knows_the_transforms_of_its_own_ops():
    case = Case(name="typical", inputs=lambda g: (torch.randn(4, 4, generator=g),))
    spec = Spec(name="own", summary="own", source="a test", build=lambda: nn.Linear(4, 4), cases=(case,))
    assert reference.make(spec, None, 0, [PRECISIONS["fp32"]])["typical"].unclaimed == {}


class Casting(Settings):
    """A flag, or eval mode, makes it compute in bfloat16."""

    def forward(self, x):
        return self.layer(x) if self.shifts and self.training else self.layer(x).bfloat16().float()


def test_a_change_that_eager_does_not_hold_either_is_left_out():
    assert not {"with other numbers in its attributes", "in eval mode"} & {*changes_of(Casting)}

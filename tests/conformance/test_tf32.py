"""TF32: the budgets of its cells, tried with products whose operands are rounded here, and the proof of the switch."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance import evaluation, reference, tf32
from conformance.axes import PRECISIONS, NotProvenError
from conformance.cell import Phases, Run
from conformance.inputs import seeded
from conformance.judge import judge
from conformance.probes import PRODUCTS, Rounding
from conformance.records import Cell
from conformance.sources import Home

FP32, TF32 = PRECISIONS["fp32"], PRECISIONS["tf32"]
DROPPED = 13  # bits of a float32 that TF32 has not


def nearest(x):
    bits = x.contiguous().view(torch.int32)
    half = (1 << (DROPPED - 1)) - 1 + ((bits >> DROPPED) & 1)
    return ((bits + half) & -(1 << DROPPED)).view(torch.float32)


def truncated(x, dropped=DROPPED):
    return (x.contiguous().view(torch.int32) & -(1 << dropped)).view(torch.float32)


class Operands(TorchDispatchMode):
    """A device that rounds what goes into products."""

    def __init__(self, rounded):
        super().__init__()
        self.rounded = rounded

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        positions = PRODUCTS.get(func.overloadpacket.__name__, ())
        args = [self.rounded(x) if i in positions and x.dtype == torch.float32 else x for i, x in enumerate(args)]
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    """By model, what is known of its cases at both precisions."""
    threads = torch.get_num_threads()
    known = {}
    for model in ("three_products", "merge", "conv_bn"):
        path = tmp_path_factory.mktemp("references") / model
        home = Home(file=__file__) if model == "three_products" else Home(module="zoo.models.merge")
        task = {"home": vars(home), "model": model, "seed": 0, "precisions": ["fp32", "tf32"], "path": str(path)}
        assert reference.make(task, lambda _: None)["ending"] == "ok"
        known[model] = (home.spec(model), reference.load(path))
    yield known
    torch.set_num_threads(threads)


def three_products(x, y, z):
    """Its second and third product are of numbers that TF32 does not hold, as its gradients are."""
    return ((x @ y) @ z) @ x


def _spec():
    from zoo import Case, Spec  # noqa: PLC0415 -- the file is a source too, found by its SPEC

    def squares(generator):
        return tuple(torch.randn(16, 16, generator=generator) for _ in range(3))

    return Spec(
        name="three_products",
        summary="x y z x",
        source="here",
        build=lambda: three_products,
        cases=(Case(name="typical", inputs=squares),),
        dtypes="follows",
    )


SPEC = _spec()


def verdict(references, model, precision, rounded):
    """Of an eager cell on a device that rounds the operands of products."""
    spec, known = references[model]
    run = Run(spec, Cell(model, "eager", precision, "cpu"), 0, Phases(lambda _: None))
    with Operands(rounded):
        return judge("cell", run.observe(known))


@pytest.mark.parametrize("rounded", [nearest, truncated])
@pytest.mark.parametrize("model", ["three_products", "merge", "conv_bn"])
def test_a_device_that_rounds_to_tf32_passes_with_room(references, model, rounded):
    found = verdict(references, model, "tf32", rounded)
    assert found.status == "PASS", found.text
    assert found.margin < 0.8


@pytest.mark.parametrize("rounded", [nearest, truncated])
def test_float32_that_was_rounded_to_tf32_is_red(references, rounded):
    found = verdict(references, "three_products", "fp32", rounded)
    assert (found.status, found.text.split()[0]) == ("FAIL", "norm")


def test_what_is_coarser_than_tf32_is_red(references):
    found = verdict(references, "three_products", "tf32", lambda x: truncated(x, DROPPED + 3))
    assert found.status == "FAIL"  # that is bfloat16, cut


def test_sums_are_held_to_float32(references):
    """Only products may be rounded more coarsely: a sum under tf32 has the budget it has under fp32."""
    x = torch.rand(64, 64, generator=seeded("x"), dtype=torch.float64) + 1
    strays = {}
    for name, function in {"sum": lambda: x.sum(0), "product": lambda: x @ x}.items():
        for precision in (FP32, TF32):
            with Rounding(precision, seeded("noise")):
                found = function()
            strays[name, precision.name] = float((found / function() - 1).abs().max())
    assert strays["sum", "tf32"] == strays["sum", "fp32"] > 0
    assert strays["product", "tf32"] > 100 * strays["product", "fp32"]


def test_the_proof_sees_what_a_device_does():
    for rounds in (tf32._product_rounds, tf32._convolution_rounds):
        assert not rounds("cpu")
        with Operands(nearest):
            assert rounds("cpu")


@pytest.mark.parametrize("products", [True, False])
@pytest.mark.parametrize("convolutions", [True, False])
def test_the_proof_objects_where_the_device_does_another_thing(monkeypatch, products, convolutions):
    monkeypatch.setattr(tf32, "_product_rounds", lambda _: products)
    monkeypatch.setattr(tf32, "_convolution_rounds", lambda _: convolutions)
    for precision, asked in ((FP32, False), (PRECISIONS["amp_bf16"], False), (TF32, True)):
        if products == convolutions == asked:
            assert tf32.prove(precision, "cuda") == {"tf32": "on" if asked else "off"}
            continue
        wrong = "matrix products" if products != asked else "convolutions"
        with pytest.raises(NotProvenError, match=f"{wrong} are {'not ' if asked else ''}rounded to TF32"):
            tf32.prove(precision, "cuda")


def test_the_switch_is_on_for_tf32_alone():
    switches = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [s.allow_tf32 for s in switches]
    try:
        for precision in (TF32, *PRECISIONS.values()):
            tf32.switch(precision)
            assert [s.allow_tf32 for s in switches] == [precision is TF32] * 2
    finally:
        for s, allowed in zip(switches, before, strict=True):
            s.allow_tf32 = allowed


def test_a_training_is_told_fp32():
    assert TF32.for_training == "fp32"
    assert evaluation.Question(None, None, {}, (), precision=TF32).precision.for_training == "fp32"

"""What the process of a cell is bound to: TF32, whose products are rounded here, random numbers, and a GPU's memory."""

from types import SimpleNamespace

import pytest
import torch
from harness.plans import SPECS
from harness.timed import timed_cell

from benchmarks import tf32_device as device
from conformance.axes import PRECISIONS
from conformance.cell import policy
from conformance.cell.observe import make_reference
from conformance.cell.policy import draw_in_float32
from conformance.errors import NotMeasuredError, NotProvenError
from conformance.evaluate import evaluation
from conformance.evaluate.inputs import seed_generator
from conformance.measure.side_by_side import TimedCell
from conformance.oracle import reference_file
from conformance.perturb.rounding import Rounding
from conformance.plan.find import spec_at
from conformance.process import environment
from conformance.process.child_side import ChildProcess
from conformance.records.cell import Cell
from conformance.records.plan import SpecLocation
from conformance.records.tasks import ReferenceTask

FP32, TF32 = PRECISIONS["fp32"], PRECISIONS["tf32"]


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    """By model, what is known of its cases at both precisions."""
    threads = torch.get_num_threads()
    known = {}
    for model in ("three_products", "merge", "conv_bn"):
        path = tmp_path_factory.mktemp("references") / model
        location = SpecLocation(file=str(SPECS / "three_products.py"))
        task = ReferenceTask(model, location, seed=0, precisions=("fp32", "tf32"), path=str(path))
        assert make_reference(task, ChildProcess()).ending == "ok"
        known[model] = (spec_at(location, model), reference_file.load(path))
    yield known
    torch.set_num_threads(threads)


@pytest.mark.parametrize("rounded", [device.nearest, device.cut])
def test_a_device_that_rounds_to_tf32_passes_with_room_and_is_red_at_float32(references, rounded):
    for known in references.values():
        found = device.verdict(*known, "tf32", rounded)
        assert found.status == "PASS", found.text
        assert found.margin < 0.8
    found = device.verdict(*references["three_products"], "fp32", rounded)
    assert (found.status, found.text.split()[0]) == ("FAIL", "slice" if rounded is device.nearest else "gain")


def test_what_is_coarser_than_tf32_is_red(references):
    found = device.verdict(*references["three_products"], "tf32", lambda x: device.cut(x, device.DROPPED + 3))
    assert found.status == "FAIL"  # that is bfloat16, cut


@pytest.mark.parametrize(
    ("x", "near", "below"),
    [
        (1.0, 1.0, 1.0),
        (1 + 2**-12, 1.0, 1.0),
        (1 + 2**-11, 1.0, 1.0),
        (1 + 3 * 2**-11, 1 + 2**-9, 1 + 2**-10),
        (-1 - 2**-11 - 2**-20, -1 - 2**-10, -1.0),
        (0.0, 0.0, 0.0),
    ],
)
def test_the_device_rounds_as_it_should(x, near, below):
    assert device.nearest(torch.tensor(x)).item() == near
    assert device.cut(torch.tensor(x)).item() == below


def test_sums_are_held_to_float32(references):
    """Only products may be rounded more coarsely: a sum under tf32 has the budget it has under fp32."""
    x = torch.rand(64, 64, generator=seed_generator("x"), dtype=torch.float64) + 1
    strays = {}
    for name, function in {"sum": lambda: x.sum(0), "product": lambda: x @ x}.items():
        for precision in (FP32, TF32):
            with Rounding(precision, seed_generator("noise")):
                found = function()
            strays[name, precision.name] = float((found / function() - 1).abs().max())
    assert strays["sum", "tf32"] == strays["sum", "fp32"] > 0
    assert strays["product", "tf32"] > 100 * strays["product", "fp32"]


def test_the_proof_sees_what_a_device_does():
    for rounds in (policy._product_rounds, policy._convolution_rounds):
        assert not rounds("cpu")
        with device.Operands(device.nearest):
            assert rounds("cpu")


@pytest.mark.parametrize("products", [True, False])
@pytest.mark.parametrize("convolutions", [True, False])
def test_the_proof_fails_where_the_device_does_another_thing(monkeypatch, products, convolutions):
    monkeypatch.setattr(policy, "_product_rounds", lambda _: products)
    monkeypatch.setattr(policy, "_convolution_rounds", lambda _: convolutions)
    for precision, asked in ((FP32, False), (PRECISIONS["amp_bf16"], False), (TF32, True)):
        if products == convolutions == asked:
            assert policy.prove_tf32(precision, "cuda") == {"tf32": "on" if asked else "off"}
            continue
        wrong = "matrix products" if products != asked else "convolutions"
        with pytest.raises(NotProvenError, match=f"{wrong} are {'not ' if asked else ''}rounded to TF32"):
            policy.prove_tf32(precision, "cuda")


def test_the_switch_is_on_for_tf32_alone():
    switches = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [s.allow_tf32 for s in switches]
    try:
        for precision in (TF32, *PRECISIONS.values()):
            policy.switch_tf32(precision)
            assert [s.allow_tf32 for s in switches] == [precision is TF32] * 2
    finally:
        for s, allowed in zip(switches, before, strict=True):
            s.allow_tf32 = allowed


def test_a_training_is_told_fp32():
    assert TF32.for_training == "fp32"
    assert evaluation.Question(None, None, {}, (), precision=TF32).precision.for_training == "fp32"


def test_each_timed_call_on_cuda_has_its_own_switch(monkeypatch):
    done = []
    monkeypatch.setattr(policy, "switch_tf32", lambda precision: done.append(precision.name))
    for put_back in (None, lambda: done.append("put back")):
        session = SimpleNamespace(cell=Cell("net", "eager", "tf32", "cuda"), precision=TF32)
        TimedCell._before(SimpleNamespace(session=session, _put_back=lambda put_back=put_back: put_back))()
    assert done == ["tf32", "tf32", "put back"]


# Random numbers

DRAWING = {
    "randn_like": torch.randn_like,
    "rand_like": torch.rand_like,
    "in place": lambda x: x.clone().normal_(0.5, 2.0),
    "between": lambda x: x.clone().uniform_(-3.0, 5.0),
}

NOISY = """
import torch
from torch import nn
from zoo import Case, Spec

class Noisy(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y + torch.randn_like(y)

SPEC = Spec(
    name="noisy",
    summary="noise on what a Linear gives",
    source="a test",
    build=lambda: Noisy(5, 4),
    cases=(Case(name="typical", inputs=lambda g: (torch.randn(6, 5, generator=g),)),),
    changes_state=("random generator",),
)
"""

needs_kernels = pytest.mark.skipif(not policy.can_draw_in_float32(), reason="this torch hands out no kernels")


def drawn(draw, x, dtype):
    """What is drawn from one seed, and the state of the generator afterwards."""
    torch.manual_seed(3)
    return draw(x.to(dtype)), torch.get_rng_state()


@needs_kernels
@pytest.mark.parametrize("shape", [(5,), (24,), (7, 9)], ids=str)
@pytest.mark.parametrize("dtype", policy.HALF, ids=str)
@pytest.mark.parametrize("name", DRAWING)
def test_half_precision_gets_the_numbers_of_float32(name, dtype, shape):
    x = torch.zeros(shape).t()
    wanted, state = drawn(DRAWING[name], x, torch.float32)
    with draw_in_float32() as drew:
        same, _ = drawn(DRAWING[name], x, torch.float32)
        assert drew == set()
        found, after = drawn(DRAWING[name], x, dtype)
        assert len(drew) == 1
    assert torch.equal(found, wanted.to(dtype))
    assert torch.equal(after, state)
    assert torch.equal(same, wanted)


@needs_kernels
def test_afterwards_torch_draws_as_before_even_if_it_hands_out_one_kernel_alone(monkeypatch):
    hand_out = torch.library.get_kernel

    def get_kernel(name, key):
        if name.endswith(policy.DRAWING[-1]):
            raise RuntimeError("there is no such kernel")
        return hand_out(name, key)

    x = torch.zeros(24)
    before, _ = drawn(torch.randn_like, x, torch.bfloat16)
    with draw_in_float32():
        assert not torch.equal(before, drawn(torch.randn_like, x, torch.bfloat16)[0])
    assert torch.equal(before, drawn(torch.randn_like, x, torch.bfloat16)[0])
    monkeypatch.setattr(torch.library, "get_kernel", get_kernel)
    assert not policy.can_draw_in_float32.__wrapped__()
    assert torch.equal(before, drawn(torch.randn_like, x, torch.bfloat16)[0])


@needs_kernels
def test_a_call_that_draws_what_the_oracle_has_not_drawn_is_not_timed(tmp_path):
    assert timed_cell(tmp_path, NOISY, "noisy", "fp32").wrong_result() == ""
    with pytest.raises(NotMeasuredError, match="other draws: its timed calls draw other numbers than the oracle"):
        timed_cell(tmp_path, NOISY, "noisy", "amp_bf16")


@pytest.mark.parametrize(("at_once", "share"), [(None, 0.9), ("1", 0.9), ("9", 0.1)])
def test_each_of_several_processes_keeps_to_its_share_of_the_gpu(monkeypatch, at_once, share):
    told = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", told.append)
    monkeypatch.delenv(environment.AT_ONCE, raising=False)
    if at_once:
        monkeypatch.setenv(environment.AT_ONCE, at_once)
    policy.leave_room("cpu")
    assert told == []
    policy.leave_room("cuda")
    assert told == pytest.approx([share])

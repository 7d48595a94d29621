"""What only a GPU can show of the parts: that processes, clock, switches and counts do what they say.

Nothing here touches CUDA in pytest's own process: every test asks a child of the fork server, as cells are.
"""

import pytest
import torch
from test_preload import python
from torch import nn

from conformance.measure import timing
from conformance.run import child, machine_lock
from conformance.axes import PRECISIONS
from conformance.cell.observe import set_policy
from zoo.memory import held_bytes, kept_bytes, peak_bytes, saved_bytes
from zoo.training.step import train_step

pytestmark = pytest.mark.skipif(torch.cuda.device_count() == 0, reason="torch sees no CUDA device")

PATIENCE = 120.0
MEBIBYTE = 2**20
FINE = 1 + 2**-12  # TF32 has ten bits behind the point
SERVE = """
import json
from conformance.run import child

ending = child.run("test_cuda:multiply", {}, deadline=120.0)
print(json.dumps([ending.kind, ending.answer, ending.message]))
"""


def answer(function, deadline=PATIENCE):
    """What one of the targets below answers from a child."""
    ending = child.run(f"test_cuda:{function.__name__}", {}, deadline=deadline)
    assert ending.kind == "answered", f"in phase {ending.phase}: {ending.message}"
    return ending.answer


# Targets


def multiply(task, enter_phase):
    x = torch.arange(6.0, device="cuda").view(2, 3)
    return [torch.cuda.is_available(), (x @ x.T).tolist()]


def hold_most_of_the_memory(task, enter_phase):
    """Two thirds of it, under a kernel of a minute or so."""
    enter_phase(child.WAITING)
    with machine_lock.alone():
        enter_phase("holding")
        held = torch.empty(torch.cuda.mem_get_info()[1] * 2 // 3, dtype=torch.uint8, device="cuda")
        torch.cuda._sleep(10**11)
        enter_phase("working")
        torch.cuda.synchronize()
    return held.numel()


def take_most_of_the_memory(task, enter_phase):
    return torch.empty(torch.cuda.mem_get_info()[1] * 2 // 3, dtype=torch.uint8, device="cuda").numel()


def product_and_convolution(task, enter_phase):
    """Farthest that a product with one strays from its other factor, as the policy has it, and with TF32 allowed."""
    set_policy(PRECISIONS["fp32"])
    held = _strays()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    return [held, _strays()]


@torch.no_grad()
def _strays():
    square = torch.full((512, 512), FINE, device="cuda")
    images = torch.full((16, 128, 32, 32), FINE, device="cuda")
    kernel = torch.zeros(128, 128, 3, 3, device="cuda")
    kernel[range(128), range(128), 1, 1] = 1.0
    found = square @ torch.eye(512, device="cuda"), nn.functional.conv2d(images, kernel, padding=1)
    return [float((y - FINE).abs().max()) for y in found]


def two_steps(task, enter_phase):
    """The scale, whether the step was skipped and whether a weight moved: at an overflow, and after it."""
    model = nn.Linear(4, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    batch = torch.ones(8, 4, device="cuda"), torch.zeros(8, 1, device="cuda")
    told = []
    for steepness in (1e38, 1.0):
        before = model.weight.detach().clone()
        step = train_step(
            model, lambda y, t, by=steepness: ((y.float() - t) * by).sum(), batch, optimizer, "amp_fp16", scaler
        )
        told.append([scaler.get_scale(), bool(step.skipped), not torch.equal(before, model.weight)])
    return told


def chain(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(torch.sigmoid(x * 0.5 + x.sin()) * x.exp())


def fused_chain(task, enter_phase):
    scripted = torch.jit.script(chain)
    x = torch.linspace(-2, 2, 10_000, device="cuda")
    with torch.no_grad():
        for _ in range(3):
            y = scripted(x)
    wanted = chain(x.cpu().double())
    error = ((y.cpu().double() - wanted).abs() / wanted.abs().clamp_min(0.01)).max()
    return ["prim::TensorExprGroup" in str(torch.jit.last_executed_optimized_graph()), float(error)]


def sleeping(task, enter_phase):
    """Nanoseconds of nothing, of a nap and of one twice as long."""

    def quickest(call):
        return min(clock.sample(call)[0].ns for _ in range(5))

    enter_phase(child.WAITING)
    nap = 10_000_000
    with machine_lock.alone():
        clock = timing.DeviceClock("cuda")
        calls = (lambda: None, lambda: torch.cuda._sleep(nap), lambda: torch.cuda._sleep(2 * nap))
        return [quickest(call) for call in calls]


def bytes_counted(task, enter_phase):
    """Of a pattern of 3, 5 and 4 MiB, of 1025 numbers through two functions, and of three bytes."""
    x = torch.ones(1025, device="cuda", requires_grad=True)
    torch.empty(3 * MEBIBYTE + MEBIBYTE // 2, dtype=torch.uint8, device="cuda")  # a block in the cache that nearly fits

    def empty(size):
        return torch.empty(size, dtype=torch.uint8, device="cuda")

    def planted():
        first = empty(3 * MEBIBYTE)
        second = empty(2 * MEBIBYTE)
        del second
        return first, empty(MEBIBYTE)

    def both():
        return torch.autograd.grad(x.exp().sin(), x, torch.ones_like(x))

    def forward(x):
        return x.exp().sin()

    return {
        "peak": [peak_bytes(planted), peak_bytes(forward, x), peak_bytes(lambda: empty(3))],
        "peak with backward": peak_bytes(both),
        "kept": [kept_bytes(planted), kept_bytes(forward, x)],
        "held": held_bytes(forward, x),
        "saved": saved_bytes(forward, x).saved,
    }


# Tests


def test_a_child_of_the_fork_server_uses_cuda_though_the_compiler_was_imported_before():
    kind, told, message = python(SERVE, CONFORMANCE_PRELOAD="compiler")
    assert (kind, message) == ("answered", "")
    assert told == [True, [[5.0, 14.0], [14.0, 50.0]]]


def test_a_cell_killed_at_its_deadline_gives_the_memory_back():
    ending = child.run("test_cuda:hold_most_of_the_memory", {}, deadline=15.0)
    assert (ending.kind, ending.phase) == ("timed out", "working"), ending.message
    assert answer(take_most_of_the_memory) > 0


def test_float32_products_keep_what_tf32_would_round():
    (product, convolution), with_tf32 = answer(product_and_convolution)
    assert product == 0.0
    assert convolution < 2**-16  # not zero: an algorithm may go through sums of its own
    assert with_tf32 == pytest.approx([2**-12, 2**-12], rel=0.01)


def test_an_overflow_halves_the_scale_and_skips_the_step():
    assert answer(two_steps) == [[2.0**9, True, False], [2.0**9, False, True]]


def test_torchscript_fuses_a_chain_on_cuda_and_rounds_like_float32():
    fused, error = answer(fused_chain)
    assert fused
    assert error < 64 * 2**-24


def test_the_device_clock_sees_how_long_the_device_slept():
    empty, nap, longer = answer(sleeping)
    assert empty < nap
    assert 1.5 < longer / nap < 2.5


def test_bytes_on_cuda_are_those_asked_for():
    counted, numbers = answer(bytes_counted), 4 * 1025
    assert 4 * numbers <= counted.pop("peak with backward")["cuda"] <= 6 * numbers  # on the CPU it is 5
    assert counted == {
        "peak": [{"cuda": 5 * MEBIBYTE}, {"cuda": 2 * numbers}, {"cuda": 3}],
        "kept": [{}, {"cuda": numbers}],
        "held": {"cuda": numbers},
        "saved": numbers,
    }

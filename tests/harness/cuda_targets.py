"""Functions that child processes call to show what only a GPU can show."""

from typing import Any

import torch
from torch import nn

from conformance.axes import PRECISIONS
from conformance.cell.policy import set_policy
from conformance.measure.side_by_side import DeviceClock
from conformance.records.tasks import Target
from zoo.memory import held_bytes, kept_bytes, peak_bytes, saved_bytes
from zoo.training.step import train_step

MEBIBYTE = 2**20
FINE = 1 + 2**-12  # TF32 has ten bits behind the point


def target_of(function):
    """The target of a function of this file; its result is any JSON value."""
    return Target(f"{__name__}:{function.__name__}", dict, Any)


def multiply(task, process):
    x = torch.arange(6.0, device="cuda").view(2, 3)
    return [torch.cuda.is_available(), (x @ x.T).tolist()]


def hold_most_of_the_memory(task, process):
    """Two thirds of it, under a kernel of a minute or so."""
    with process.alone():
        process.enter("holding")
        held = torch.empty(torch.cuda.mem_get_info()[1] * 2 // 3, dtype=torch.uint8, device="cuda")
        torch.cuda._sleep(10**11)
        process.enter("working")
        torch.cuda.synchronize()
    return held.numel()


def take_most_of_the_memory(task, process):
    return torch.empty(torch.cuda.mem_get_info()[1] * 2 // 3, dtype=torch.uint8, device="cuda").numel()


def product_and_convolution(task, process):
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


def two_steps(task, process):
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


def fused_chain(task, process):
    scripted = torch.jit.script(chain)
    x = torch.linspace(-2, 2, 10_000, device="cuda")
    with torch.no_grad():
        for _ in range(3):
            y = scripted(x)
    wanted = chain(x.cpu().double())
    error = ((y.cpu().double() - wanted).abs() / wanted.abs().clamp_min(0.01)).max()
    return ["prim::TensorExprGroup" in str(torch.jit.last_executed_optimized_graph()), float(error)]


def sleeping(task, process):
    """Nanoseconds of nothing, of a nap and of one twice as long."""

    def quickest(call):
        return min(clock.sample(call)[0].ns for _ in range(5))

    nap = 10_000_000
    with process.alone():
        clock = DeviceClock("cuda")
        calls = (lambda: None, lambda: torch.cuda._sleep(nap), lambda: torch.cuda._sleep(2 * nap))
        return [quickest(call) for call in calls]


def bytes_counted(task, process):
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

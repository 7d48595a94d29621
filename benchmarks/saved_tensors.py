"""Measures what each way of saving fewer tensors gains and costs, and what a compiler does to a fused layer.

    python -m benchmarks.saved_tensors [--rounds 80] [--device cpu] [--write]

It prints a Markdown page after some two minutes; `--write` puts it into docs/memory.md. Times are ratios to the plain
network, measured side by side: each round runs every variant once, in random order, and compares it with the plain step
of the same round.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from tabulate import tabulate
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 -- its usual name

from conformance.plan.matrix import environment
from zoo import internals
from zoo.functions.fused_conv_bn2d import fused_conv_bn2d, fused_conv_bn2d_op
from zoo.memory import compress, held_bytes, offload_to_cpu, recompute, saved_bytes

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "memory.md"
BLOCKS, BATCH, WIDTH, HIDDEN = 6, 256, 256, 1024
IMAGES, FILTERS = (8, 3, 32, 32), (16, 3, 3, 3)

TEXT = """# What is saved for backward

Written by `python -m benchmarks.saved_tensors --write`. {environment}

## Four ways to run one network

The network has {blocks} residual blocks x + W₂ gelu(W₁ layer_norm(x)), of width {width}, with {hidden} hidden units.
The batch has {batch} rows.

{tools}

- *held*: bytes on the device that the forward pass allocates and that are still allocated after it, without the result.
  `zoo.memory.held_bytes` counts them. Inputs and parameters are not counted, because they exist in any case.
- *gradient error*: ‖g − g\\*‖ / ‖g\\*‖ over the gradients of all parameters and of the input. g\\* are the gradients of
  the same network in float64.
- *time*: forward and backward, relative to the plain network. The figure is the median of {rounds} rounds; each round
  runs all four networks. The brackets show the middle half of the rounds.
- {offload}
- `recompute` wraps each block, and keeps only the input of the block. The forward pass of each block runs twice.
- `compress` stores each number as bfloat16. This halves the bytes. The error is at most 2⁻⁸ in each number, and about
  2⁻⁹ in the gradient.

## A fused layer, and what torch.compile makes of it

The layer is a convolution of {images} images with {filters}, and a batch norm. As two functions, they
save the output of the convolution. The fused Function `zoo.functions.fused_conv_bn2d` saves only the input and the
weight of the convolution, and convolves again in backward. The images need no gradient; the weight needs one.

{fused}

- `zoo.memory.saved_bytes` counts the bytes. Each storage counts once. *arguments* are the storages of images and
  weight, which exist in any case. Inductor's code saves copies of them in the layout channels last, because its kernels
  need it. These copies are new memory, and count as *new*.
- The compiled Function loses its advantage. Its forward and backward become one graph, and the compiler merges common
  subexpressions. So the convolution in backward is replaced by the one in forward, and its result is saved.
- Three ways keep the advantage. The first is an operator that the compiler does not look into. The second is a setting
  of the compiler: `activation_memory_budget`, where 1 is no limit, or `cse = False`. Both are in
  `torch._functorch.config`, and must be set when the function is called for the first time. The third is a checkpoint.
"""

MOVED = "`offload_to_cpu` keeps the same tensors in the memory of the CPU. The gradients have the same bits."
UNMOVED = "`offload_to_cpu` has nothing to move if the network is on the CPU. The row shows what its hooks cost."


class Block(nn.Module):
    """x + W₂ gelu(W₁ layer_norm(x))."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, width) to (batch, width)."""
        return x + self.inner(x)


class Problem:
    """The plain network, an input, a cotangent and the true gradients.

    Args:
        device: of everything.
    """

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.device = torch.device(device)
        self.network = nn.Sequential(*(Block() for _ in range(BLOCKS))).to(device)
        self.x = torch.randn(BATCH, WIDTH).to(device).requires_grad_()
        self.cotangent = torch.randn(BATCH, WIDTH).to(device)
        self.truth = self._in_float64()

    def _in_float64(self) -> Tensor:
        exact = nn.Sequential(*(Block() for _ in range(BLOCKS))).to(self.device, torch.float64)
        exact.load_state_dict(self.network.state_dict())
        x = self.x.detach().double().requires_grad_()
        return _flat(torch.autograd.grad(exact(x), [x, *exact.parameters()], self.cotangent.double()))

    def plain(self, x: Tensor) -> Tensor:
        """Run the network as it is."""
        result: Tensor = self.network(x)
        return result

    def offloaded(self, x: Tensor) -> Tensor:
        """Run it under `offload_to_cpu`."""
        with offload_to_cpu():
            return self.plain(x)

    def recomputed(self, x: Tensor) -> Tensor:
        """Run each block in `recompute`."""
        for block in self.network:
            x = recompute(block, x)
        return x

    def compressed(self, x: Tensor) -> Tensor:
        """Run it under `compress`."""
        with compress():
            return self.plain(x)

    def gradients(self, variant: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        """The gradients of one step, forward and backward."""
        return torch.autograd.grad(variant(self.x), [self.x, *self.network.parameters()], self.cotangent)

    def error(self, variant: Callable[[Tensor], Tensor]) -> float:
        """The relative error of the gradients."""
        found = _flat(self.gradients(variant)).double()
        return ((found - self.truth).norm() / self.truth.norm()).item()

    def seconds(self, variant: Callable[[Tensor], Tensor]) -> float:
        """The seconds of one step."""
        synchronize = torch.get_device_module(self.device).synchronize
        synchronize()
        started = time.perf_counter()
        self.gradients(variant)
        synchronize()
        return time.perf_counter() - started


def _flat(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def main() -> None:
    """Measure, and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=80, help="of the timed networks (default: 80)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--write", action="store_true", help=f"write to {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tools = _table_of_tools(Problem(options.device), options.rounds)
    text = page(options.device, options.rounds, tools=tools, fused=_table_of_fusion(options.device))
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


def page(device: str, rounds: int, *, tools: str, fused: str) -> str:
    """The page as Markdown.

    Args:
        device: of the networks.
        rounds: of the timed networks.
        tools: table of the four ways.
        fused: table of the fused layer.
    """
    return TEXT.format(
        environment=_environment(device),
        tools=tools,
        fused=fused,
        offload=UNMOVED if device == "cpu" else MOVED,
        blocks=BLOCKS,
        width=WIDTH,
        hidden=HIDDEN,
        batch=BATCH,
        rounds=rounds,
        images="×".join(map(str, IMAGES)),
        filters=f"{FILTERS[0]} filters of 3×3",
    )


def _environment(device: str) -> str:
    here = environment()
    where = here.cpu if device == "cpu" else torch.cuda.get_device_name(device)
    return f"Measured with torch {here.torch} on one thread of: {where}."


def _table_of_tools(problem: Problem, rounds: int) -> str:
    variants = {
        "plain": problem.plain,
        "`offload_to_cpu`": problem.offloaded,
        "`recompute`": problem.recomputed,
        "`compress`": problem.compressed,
    }
    ratios = _ratios(problem, variants, rounds)
    plain = held_bytes(problem.plain, problem.x)[problem.device.type]
    rows = []
    for name, variant in variants.items():
        held = held_bytes(variant, problem.x)[problem.device.type]
        low, middle, high = statistics.quantiles(ratios[name], n=4)
        spread = "1" if name == "plain" else f"{middle:.2f} ({low:.2f} to {high:.2f})"
        rows.append([name, _grouped(held), f"{held / plain:.0%}", f"{problem.error(variant):.1e}", spread])
    header = ["network", "held, bytes", "of plain", "gradient error", "time"]
    return _table(rows, header, ("left", "right", "right", "right", "left"))


def _ratios(
    problem: Problem, variants: Mapping[str, Callable[[Tensor], Tensor]], rounds: int
) -> dict[str, list[float]]:
    """The time of each variant over the time of the plain network in the same round."""
    names = list(variants)
    ratios: dict[str, list[float]] = {name: [] for name in names}
    order = random.Random(0)  # noqa: S311 -- an order, no secret
    for turn in range(rounds + 1):
        seconds = {name: problem.seconds(variants[name]) for name in order.sample(names, len(names))}
        for name in names if turn else []:  # the first round warms up
            ratios[name].append(seconds[name] / seconds["plain"])
    return ratios


def _unfused(x: Tensor, weight: Tensor) -> Tensor:
    return F.batch_norm(F.conv2d(x, weight), None, None, training=True, eps=1e-3)


def _table_of_fusion(device: str) -> str:
    images = torch.randn(IMAGES).to(device)
    weight = torch.randn(FILTERS).to(device).requires_grad_()
    patch = internals.functorch_config.patch
    rows = []

    def add(name: str, fn: Callable[..., Tensor]) -> None:
        torch.compiler.reset()
        seen = saved_bytes(fn, images, weight)
        rows.append([name, *map(_grouped, (seen.saved, seen.inputs, seen.total))])

    add("`F.conv2d`, `F.batch_norm`", _unfused)
    add("fused", fused_conv_bn2d)
    add("fused, scripted", _scripted(fused_conv_bn2d))
    add("fused, compiled", torch.compile(fused_conv_bn2d))
    add("its operator twin, compiled", torch.compile(fused_conv_bn2d_op))
    with patch(activation_memory_budget=0.0):
        add("fused, compiled, `activation_memory_budget = 0`", torch.compile(fused_conv_bn2d))
    with patch(cse=False):
        add("fused, compiled, `cse = False`", torch.compile(fused_conv_bn2d))
    add("fused in `recompute`, compiled", torch.compile(lambda x, w: recompute(fused_conv_bn2d, x, w)))
    compiled = torch.compile(fused_conv_bn2d)
    add("fused, compiled, in `recompute`", lambda x, w: recompute(compiled, x, w))
    return _table(rows, ["layer", "new", "arguments", "bytes saved"], ("left", "right", "right", "right"))


def _scripted(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces the end of TorchScript
        scripted: Callable[..., Tensor] = torch.jit.script(fn)
    return scripted


def _grouped(count: int) -> str:
    return f"{count:,}".replace(",", " ")


def _table(rows: list[list[str]], header: list[str], align: tuple[str, ...]) -> str:
    return tabulate(rows, header, tablefmt="github", colalign=align, disable_numparse=True)


if __name__ == "__main__":
    main()

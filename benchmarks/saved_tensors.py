"""What each way of saving fewer tensors gives and costs, and what becomes of a fused layer's saving.

`python benchmarks/saved_tensors.py [--rounds 80] [--device cpu]` prints a Markdown page, some two minutes
later; with `--write` it goes to docs/memory.md. Times are ratios to the plain network, measured side by side:
each round runs every variant once, in random order, and a variant is compared with the plain step of its own
round.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402 -- the imports below need the path above
import torch._functorch.config  # noqa: E402
from tabulate import tabulate  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from conformance.plan import environment  # noqa: E402
from zoo.functions.fused_conv_bn2d import fused_conv_bn2d, fused_conv_bn2d_op  # noqa: E402
from zoo.memory import compress, held_bytes, offload_to_cpu, recompute, saved_bytes  # noqa: E402

PAGE = ROOT / "docs" / "memory.md"
BLOCKS, BATCH, WIDTH, HIDDEN = 6, 256, 256, 1024
IMAGES, FILTERS = (8, 3, 32, 32), (16, 3, 3, 3)

TEXT = """# What is saved for backward

Written by `python benchmarks/saved_tensors.py --write`. {environment}

## Four ways to run one network

{blocks} residual blocks x + W₂ gelu(W₁ layer_norm(x)), of width {width}, with {hidden} hidden units, on a batch
of {batch}.

{tools}

- *held* is what `zoo.memory.held_bytes` counts on the device: allocated by the forward pass and alive after it,
  the result apart. Inputs and parameters live anyway and are not in it.
- *gradient error* is ‖g − g\\*‖ / ‖g\\*‖ over the gradients of all parameters and of the input; g\\* are those of the
  same network in float64.
- *time* is that of forward and backward over that of the plain network: the median of {rounds} rounds in which
  all four run side by side, and the middle half of the rounds in brackets.
- {offload}
- `recompute` goes around each block, and keeps the blocks' inputs; each block's forward pass runs twice.
- `compress` holds each number as bfloat16: half the bytes, an error of up to 2⁻⁸ in each, about 2⁻⁹ in the gradient.

## A fused layer, and what torch.compile makes of it

Convolution and batch norm of {images} images with {filters}. The pair saves the convolution's output; the
fused Function `zoo.functions.fused_conv_bn2d` saves only the convolution's input and weight, and convolves again in
backward. The images need no gradient, the weight does.

{fused}

- Bytes by `zoo.memory.saved_bytes`; each storage counts once. *arguments* are the storages of images and weight, which
  live anyway. Code from Inductor holds copies of them, channels last, as its kernels want them: these are new memory,
  and stand under *new*.
- Compiled, the Function loses what it is for. Its forward and backward become one graph, in which common
  subexpressions are merged: the convolution of backward is the one of forward, so its result is saved.
- Three ways keep the saving: an operator that the compiler does not look into, an instruction to the compiler
  (`activation_memory_budget`, where 1 is no limit, or `cse = False`, both in `torch._functorch.config`, set while
  the function is first called), and a checkpoint.
"""

MOVED = "`offload_to_cpu` holds the same tensors in the CPU's memory: the gradients have the same bits."
UNMOVED = "`offload_to_cpu` has nothing to move where the network is on the CPU; the row shows what its hooks cost."


class Block(nn.Module):
    """x + W₂ gelu(W₁ layer_norm(x))."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, width) to (batch, width)."""
        return x + self.inner(x)


class Problem:
    """The reference network, an input and a cotangent."""

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
        """The network as it is."""
        result: Tensor = self.network(x)
        return result

    def offloaded(self, x: Tensor) -> Tensor:
        """Under `offload_to_cpu`."""
        with offload_to_cpu():
            return self.plain(x)

    def recomputed(self, x: Tensor) -> Tensor:
        """Each block by `recompute`."""
        for block in self.network:
            x = recompute(block, x)
        return x

    def compressed(self, x: Tensor) -> Tensor:
        """Under `compress`."""
        with compress():
            return self.plain(x)

    def gradients(self, variant: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        """One step: forward and backward."""
        return torch.autograd.grad(variant(self.x), [self.x, *self.network.parameters()], self.cotangent)

    def error(self, variant: Callable[[Tensor], Tensor]) -> float:
        """Of the gradients, against float64."""
        found = _flat(self.gradients(variant)).double()
        return ((found - self.truth).norm() / self.truth.norm()).item()

    def seconds(self, variant: Callable[[Tensor], Tensor]) -> float:
        """Of one step."""
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
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--write", action="store_true", help=f"to {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    page = TEXT.format(
        environment=_environment(options.device),
        tools=_table_of_tools(Problem(options.device), options.rounds),
        fused=_table_of_fusion(options.device),
        offload=UNMOVED if options.device == "cpu" else MOVED,
        blocks=BLOCKS,
        width=WIDTH,
        hidden=HIDDEN,
        batch=BATCH,
        rounds=options.rounds,
        images="×".join(map(str, IMAGES)),
        filters=f"{FILTERS[0]} filters of 3×3",
    )
    if options.write:
        PAGE.write_text(page, encoding="utf-8")
    else:
        print(page, end="")


def _environment(device: str) -> str:
    seen = environment()
    where = seen["cpu"] if device == "cpu" else torch.cuda.get_device_name(device)
    return f"Measured with torch {seen['torch']} on one thread of: {where}."


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


def _ratios(problem: Problem, variants: dict[str, Any], rounds: int) -> dict[str, list[float]]:
    """Time over that of plain in the same round."""
    names = list(variants)
    ratios: dict[str, list[float]] = {name: [] for name in names}
    order = random.Random(0)  # noqa: S311
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
    patch = torch._functorch.config.patch  # noqa: SLF001
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
        warnings.simplefilter("ignore")  # every torch announces the end of TorchScript
        scripted: Callable[..., Tensor] = torch.jit.script(fn)
    return scripted


def _grouped(count: int) -> str:
    return f"{count:,}".replace(",", " ")


def _table(rows: list[list[str]], header: list[str], align: tuple[str, ...]) -> str:
    return tabulate(rows, header, tablefmt="github", colalign=align, disable_numparse=True)


if __name__ == "__main__":
    main()

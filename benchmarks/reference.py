"""Measures what the reference of a model costs, at real sizes.

    python -m benchmarks.reference [--models transformer resnet18 gpt2 layers_4 layers_8 …]
        [--precisions fp32 amp_fp16 amp_bf16] [--cores 2] [--before FOLDER]

It prints one row for each model: its parameters, wall time, CPU time, and the peak memory of one process. With
`--before`, a checkout of another revision makes each reference first, so that both are measured side by side. The
models are written in plain torch: a transformer of 6 layers and width 256, a residual network of 18 layers, a
transformer of the size of GPT-2 with 124 million parameters, one of 355 million, and for the growth with the size, the
first with 4 to 16 layers. Each reference is made in a process of its own.
`conformance run benchmarks/reference.py -k gpt2` judges one of them.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from tabulate import tabulate
from torch import nn
from torch.nn import functional

from conformance.axes import PRECISIONS
from conformance.oracle import reference
from zoo.case import Case
from zoo.spec import Spec

HERE = Path(__file__).resolve()
THREE = ("fp32", "amp_fp16", "amp_bf16")
GIB = 2**20  # in the unit of ru_maxrss on Linux


class Block(nn.Module):
    """A block of a transformer decoder, with the norm before each part: (batch, tokens, width) to the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the attention of the tokens to those before them, then the MLP."""
        batch, tokens, width = x.shape
        parts = self.attention(self.before_attention(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind()
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(functional.gelu(self.up(self.before_mlp(x))))


class Decoder(nn.Module):
    """A language model whose output layer shares its weight with the embedding: (batch, tokens) to logits."""

    def __init__(self, vocabulary: int, positions: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """The logits of the next token at every position."""
        x = self.tokens(words) + self.positions(torch.arange(words.shape[1]))
        return functional.linear(self.norm(self.blocks(x)), self.tokens.weight)


class Residual(nn.Module):
    """Two convolutions with batch norms, added to their input: (batch, channels, height, width) to the same."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer)
        self.second, self.second_norm = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add both."""
        y = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(y)) + self.shortcut(x))


def resnet18() -> nn.Module:
    """A residual network of 18 layers with 1000 classes."""
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    sizes = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
    blocks = [Residual(*size) for size in [*sizes, (512, 512, 1)]]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def transformer(layers: int = 6) -> nn.Module:
    """Layers of width 256, with a final norm and an output of 1000 numbers for each token."""
    return nn.Sequential(*(Block(256, 4) for _ in range(layers)), nn.LayerNorm(256), nn.Linear(256, 1000))


def gpt2(width: int = 768, layers: int = 12) -> nn.Module:
    """A transformer of the size of GPT-2."""
    return Decoder(50257, 1024, width, layers, width // 64)


def spec_of(name: str) -> Spec:
    """The spec of one of the models, with one case."""
    build, inputs = MODELS[name]
    case = Case(name="typical", inputs=lambda g: (inputs(g),))
    return Spec(name=name, summary=f"{name} of a real size", source="its paper", build=build, cases=(case,))


def tokens(generator: torch.Generator) -> torch.Tensor:
    """Two sequences of 32 tokens of width 256."""
    return torch.randn(2, 32, 256, generator=generator)


def words(generator: torch.Generator) -> torch.Tensor:
    """A sequence of 128 tokens of GPT-2."""
    return torch.randint(50257, (1, 128), generator=generator)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Generator], torch.Tensor]]] = {
    "transformer": (transformer, tokens),
    "resnet18": (resnet18, lambda g: torch.randn(2, 3, 64, 64, generator=g)),
    "gpt2": (gpt2, words),
    "gpt2_medium": (partial(gpt2, 1024, 24), words),
    **{f"layers_{count}": (partial(transformer, count), tokens) for count in (4, 8, 12, 16)},
}
SPECS = tuple(map(spec_of, MODELS))


def measure(name: str, precisions: list[str], cores: int) -> None:
    """Make one reference in this process and its forks, and print what it cost as JSON."""
    torch.set_num_threads(1)
    importlib.import_module("torch._dynamo")  # a run makes references in processes that have imported it
    further = []
    child_side = importlib.import_module("conformance.process.child_side")
    if hasattr(child_side, "keep_freed_memory"):  # older revisions have it elsewhere, or not at all
        child_side.keep_freed_memory()
    if importlib.util.find_spec("conformance.process.forks"):
        forks = importlib.import_module("conformance.process.forks").Forks
        further = [forks(lambda most: contextlib.nullcontext(max(0, min(most, cores - 1))))]
    wall, cpu = time.perf_counter(), _cpu_seconds()
    reference.make(spec_of(name), None, 0, [PRECISIONS[word] for word in precisions], *further)
    wall, cpu = time.perf_counter() - wall, _cpu_seconds() - cpu
    print(json.dumps([wall, cpu, max(one.ru_maxrss for one in _used()) / GIB]))


def _used() -> list[resource.struct_rusage]:
    """What this process and its ended children have used."""
    return [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]


def _cpu_seconds() -> float:
    return sum(one.ru_utime + one.ru_stime for one in _used())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", nargs="*", default=["transformer", "resnet18", "gpt2"], choices=MODELS, help="models to measure"
    )
    parser.add_argument("--precisions", nargs="*", default=[*THREE], choices=PRECISIONS, help="of the reference")
    parser.add_argument("--cores", type=int, default=os.cpu_count(), help="to use (default: all)")
    parser.add_argument("--before", type=Path, help="a checkout of the revision to compare with")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        measure(options.models[0], options.precisions, options.cores)
        return
    rows = []
    for name in options.models:
        count = sum(p.numel() for p in MODELS[name][0]().parameters()) / 1e6
        for what, root in (("before", options.before), ("here", HERE.parent.parent)):
            if root is not None:
                rows.append([name, count, what, *_measured(root, name, options)])
                print(tabulate(rows[-1:], tablefmt="plain", floatfmt=".2f"), flush=True)
    header = ["model", "10⁶ parameters", "revision", "wall s", "CPU s", "peak GiB"]
    print(tabulate(rows, header, tablefmt="github", floatfmt=".1f"))


def _measured(root: Path, name: str, options: argparse.Namespace) -> list[float]:
    """What `measure` prints in a process that imports the project from a checkout."""
    command = [sys.executable, str(HERE), "--here", "--models", name, "--cores", str(options.cores)]
    done = subprocess.run(  # noqa: S603 -- our own code
        [*command, "--precisions", *options.precisions],
        env={**os.environ, "PYTHONPATH": str(root.resolve()), "OPENBLAS_NUM_THREADS": "1"},  # threads prevent forks
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()

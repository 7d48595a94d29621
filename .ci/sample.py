"""Judges a live module, and an architecture of each library that is installed, as a script of a person would.

It ends with an error if a cell is red or has no verdict.
"""

from __future__ import annotations

import importlib.util

import torch

import conformance

LIBRARIES = {"timm": "timm:test_vit", "torchvision": "torchvision:resnet18?size=32"}
FP32 = {"modes": "eager", "precisions": "fp32"}


class Gate(torch.nn.Module):
    """Two layers, one of which gates the other."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the gated numbers."""
        return torch.nn.functional.gelu(self.left(x)) * torch.sigmoid(self.right(x))


def main() -> None:
    """Judge them, and print a line for each."""
    reports = {"a live module": conformance.check(Gate(), torch.randn(6, 4), precisions="fp32")}
    for library, name in LIBRARIES.items():
        if importlib.util.find_spec(library):
            reports[name] = conformance.check(name, **FP32)
        else:
            print(f"{name}: not judged, because {library} could not be installed")  # noqa: T201
    for name, report in reports.items():
        report.raise_if_failed()
        print(f"{name}: {len(report.cells)} cells, none is red")  # noqa: T201


if __name__ == "__main__":
    main()

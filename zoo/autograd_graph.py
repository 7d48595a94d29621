"""The autograd graph of a result as Graphviz text, and as SVG if Graphviz is installed.

Source: "Double backward with custom functions", which uses such pictures to see where the graph of a gradient ends.
The arrows show the way of backward: from the result through the functions to the leaves.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

FUNCTION, LEAF, RESULT = "ellipse", "box", "plaintext"


def draw_graph(output: Any, params: Mapping[str, Tensor]) -> str:
    r"""Describe the graph of a backward from `output` in the DOT language.

    A function is an ellipse with the name of its `grad_fn`, a leaf is a box with name and shape, and a result is
    plain text with its shape. A result without an arrow has no graph. Each node is drawn once, even if several
    paths lead to it.

    Args:
        output: a tensor, or tensors inside tuples, lists and dicts.
        params: the leaves by name, such as `dict(model.named_parameters())`. Tensors that the graph does not
            reach are not drawn. Leaves without a name are drawn with their shape only.

    Returns:
        DOT text, the same for equal graphs.

    Raises:
        TypeError: `output` holds no tensor, or `params` holds a value that is not a tensor.

    >>> x = torch.ones(3, requires_grad=True)
    >>> print(draw_graph(x * x, {"x": x}))
    digraph autograd {
        n0 [shape=plaintext, label="output\n(3)"];
        n1 [shape=ellipse, label="MulBackward0"];
        n2 [shape=box, label="x\n(3)"];
        n0 -> n1;
        n1 -> n2;
        n1 -> n2;
    }
    <BLANKLINE>
    """
    results = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
    if not results:
        raise TypeError(f"draw_graph: output must hold a tensor, got {type(output).__name__}")
    for name, tensor in params.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"draw_graph: params[{name!r}] must be a tensor, got {type(tensor).__name__}")
    drawing = _Drawing({id(tensor): name for name, tensor in params.items()})
    for position, result in enumerate(results):
        drawing.add_result("output" if len(results) == 1 else f"output {position}", result)
    return drawing.text()


class _Drawing:
    """The lines of the DOT text, and the number of each node."""

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names
        self._numbers: dict[torch.autograd.graph.Node, int] = {}  # keeps the nodes alive, so no address is used twice
        self._nodes: list[str] = []
        self._arrows: list[str] = []

    def add_result(self, title: str, result: Tensor) -> None:
        number = self._add(RESULT, title, result)
        if not result.requires_grad:
            return
        first = torch.autograd.graph.get_gradient_edge(result).node
        pending = [] if first in self._numbers else [first]
        self._arrows.append(f"n{number} -> n{self._number(first)}")
        while pending:  # no recursion: a graph can be deeper than Python's stack
            node = pending.pop()
            for target, _ in node.next_functions:
                if target is None:
                    continue
                if target not in self._numbers:
                    pending.append(target)
                self._arrows.append(f"n{self._numbers[node]} -> n{self._number(target)}")

    def text(self) -> str:
        lines = "".join(f"    {line};\n" for line in (*self._nodes, *self._arrows))
        return f"digraph autograd {{\n{lines}}}\n"

    def _number(self, node: torch.autograd.graph.Node) -> int:
        if node not in self._numbers:
            if type(node).__name__ == "AccumulateGrad":
                leaf = node.variable  # type: ignore[attr-defined]
                self._numbers[node] = self._add(LEAF, self._names.get(id(leaf), ""), leaf)
            else:
                self._numbers[node] = self._add(FUNCTION, node.name().split("::")[-1])
        return self._numbers[node]

    def _add(self, shape: str, title: str, tensor: Tensor | None = None) -> int:
        sizes = "" if tensor is None else f"({', '.join(map(str, tensor.shape))})"
        label = "\\n".join(_escaped(line) for line in (title, sizes) if line)
        self._nodes.append(f'n{len(self._nodes)} [shape={shape}, label="{label}"]')
        return len(self._nodes) - 1


def _escaped(text: str) -> str:
    """Escape the backslashes, quotes and HTML entities that Graphviz would interpret."""
    for sign, written in (("&", "&amp;"), ("\\", "\\\\"), ('"', '\\"'), ("\r", "\\n"), ("\n", "\\n")):
        text = text.replace(sign, written)
    return text


def write_graph(path: str | Path, output: Any, params: Mapping[str, Tensor]) -> Path:
    """Write the picture of `draw_graph` to a file: SVG if Graphviz is installed, DOT text if it is not.

    Args:
        path: path of the SVG file, with the suffix ".svg". DOT text is written with the suffix ".dot" instead.
        output: as in `draw_graph`.
        params: as in `draw_graph`.

    Returns:
        The path of the written file, with the suffix ".svg" or ".dot".

    Raises:
        ValueError: `path` does not end in ".svg".
        TypeError: as in `draw_graph`.
        RuntimeError: Graphviz is installed and fails; the message quotes it. No file is written.

    >>> import tempfile
    >>> x = torch.ones(3, requires_grad=True)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_graph(f"{folder}/graph.svg", x.exp(), {"x": x}).stem
    'graph'
    """
    path = Path(path)
    if path.suffix != ".svg":
        raise ValueError(f"write_graph: path must end in '.svg', got {str(path)!r}")
    text = draw_graph(output, params)
    program = shutil.which("dot")
    if program is None:
        path = path.with_suffix(".dot")
        path.write_text(text, encoding="utf-8")
        return path
    drawn = subprocess.run([program, "-Tsvg"], input=text.encode(), capture_output=True, check=False)  # noqa: S603
    if drawn.returncode != 0:
        problem = drawn.stderr.decode(errors="replace").strip()
        raise RuntimeError(f"write_graph: {program} ended with exit code {drawn.returncode}: {problem}")
    path.write_bytes(drawn.stdout)
    return path

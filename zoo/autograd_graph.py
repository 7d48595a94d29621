"""The autograd graph of a result as Graphviz text, and as SVG if Graphviz is installed.

Source: "Double backward with custom functions", which uses such pictures to see where the graph of a gradient ends.
The arrows show the way of backward: from the result through the functions to the leaves.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from zoo import internals
from zoo.arguments import want_instances, want_paths

FUNCTION, LEAF, TENSOR, SAVED = "ellipse", "box", "plaintext", "note"
NO_NAMES: Mapping[str, Tensor] = MappingProxyType({})
Node = torch.autograd.graph.Node
Place = tuple[Any, int]  # the function that a gradient of the tensor goes to, and the number of the function's output


def draw_graph(output: Any, params: Mapping[str, Tensor] = NO_NAMES, *, show_saved: bool = False) -> str:
    r"""Describe the graph of a backward from `output` in the DOT language.

    A function is an ellipse with the name of its `grad_fn`. A leaf is a box, and any other tensor is plain text; both
    show name and shape. The tensors shown are the results, the leaves and every tensor on the way that has a name. A
    result in plain text without an arrow has no graph. Each node is drawn once, even if several paths lead to it. No
    gradient is computed, and neither tensors nor graph are changed.

    Args:
        output: a tensor, or tensors inside tuples, lists and dicts.
        params: tensors by name, such as `dict(model.named_parameters())`: leaves, results and intermediate tensors.
            A tensor with two names shows both. Tensors that the graph does not reach are not drawn. A leaf without a
            name shows its shape only, and a result without a name is called "output", or "output 0", "output 1" ...
        show_saved: show also the tensors that each function saves for backward. A dotted arrow leads from the function
            to the tensor, which is a note unless it is drawn anyway. The note shows the name that the function has for
            it and its shape.

    Returns:
        DOT text, the same for equal graphs.

    Raises:
        TypeError: `output` holds no tensor, or `params` is not a mapping of names to tensors.
        RuntimeError: with `show_saved`, saved tensors were freed by a backward or changed in place.

    >>> x = torch.ones(3, requires_grad=True)
    >>> y = x.exp()
    >>> print(draw_graph(y * y, {"x": x, "y": y}))
    digraph autograd {
        n0 [shape=plaintext, label="output\n(3)"];
        n1 [shape=ellipse, label="MulBackward0"];
        n2 [shape=plaintext, label="y\n(3)"];
        n3 [shape=ellipse, label="ExpBackward0"];
        n4 [shape=box, label="x\n(3)"];
        n0 -> n1;
        n2 -> n3;
        n1 -> n2;
        n1 -> n2;
        n3 -> n4;
    }
    <BLANKLINE>
    """
    results = [leaf for leaf in internals.tree_leaves(output) if isinstance(leaf, Tensor)]
    if not results:
        raise TypeError(f"draw_graph: output must hold a tensor, got {type(output).__name__}")
    if not isinstance(params, Mapping):
        raise TypeError(f"draw_graph: params must map names to tensors, got {type(params).__name__}")
    drawing = _Drawing(show_saved=show_saved)
    for name, tensor in params.items():
        if not isinstance(name, str):
            raise TypeError(f"draw_graph: the keys of params must be names, got {type(name).__name__}")
        if not isinstance(tensor, Tensor):
            raise TypeError(f"draw_graph: params[{name!r}] must be a tensor, got {type(tensor).__name__}")
        drawing.name(tensor, name)
    drawing.name_results(results)
    for result in results:
        drawing.draw(result)
    return drawing.text()


class _Drawing:
    """The lines of the DOT text, and the number of each node."""

    def __init__(self, *, show_saved: bool) -> None:
        self._show_saved = show_saved
        self._names: dict[Place, list[str]] = {}
        self._tensors: dict[Place, Tensor] = {}  # shown wherever they are met
        self._numbers: dict[Node | Place, int] = {}  # keeps the nodes alive, so no address is used twice
        self._pending: list[Node] = []
        self._nodes: list[str] = []
        self._arrows: list[str] = []
        self._kept: list[Tensor] = []  # saved tensors, so no address is used twice

    def name(self, tensor: Tensor, name: str) -> None:
        place = _place(tensor)
        self._names.setdefault(place, []).append(name)
        self._tensors.setdefault(place, tensor)

    def name_results(self, results: list[Tensor]) -> None:
        named = set(self._names)
        for position, result in enumerate(results):
            if _place(result) not in named:
                self.name(result, "output" if len(results) == 1 else f"output {position}")

    def draw(self, result: Tensor) -> None:
        self._number(_place(result))
        while self._pending:  # no recursion: a graph can be deeper than Python's stack
            node = self._pending.pop()
            for target, position in node.next_functions:
                if target is not None:
                    self._arrows.append(f"n{self._numbers[node]} -> n{self._number((target, position))}")
            for name, tensor in _saved(node) if self._show_saved else ():
                self._arrows.append(f"n{self._numbers[node]} -> n{self._saved_number(name, tensor)} [style=dotted]")

    def text(self) -> str:
        lines = "".join(f"    {line};\n" for line in (*self._nodes, *self._arrows))
        return f"digraph autograd {{\n{lines}}}\n"

    def _number(self, place: Place) -> int:
        """Return the number of the tensor that is shown at a place, or else that of the function."""
        if type(place[0]).__name__ == "AccumulateGrad":
            self._tensors.setdefault(place, place[0].variable)
        if place not in self._tensors:
            return self._function_number(place[0])
        if place not in self._numbers:
            tensor = self._tensors[place]
            leaf = tensor.is_leaf and tensor.requires_grad
            number = self._add(LEAF if leaf else TENSOR, ", ".join(self._names.get(place, [])), tensor)
            self._numbers[place] = number
            if not tensor.is_leaf:
                self._arrows.append(f"n{number} -> n{self._function_number(place[0])}")
        return self._numbers[place]

    def _function_number(self, node: Node) -> int:
        if node not in self._numbers:
            self._numbers[node] = self._add(FUNCTION, node.name().split("::")[-1])
            self._pending.append(node)
        return self._numbers[node]

    def _saved_number(self, name: str, tensor: Tensor) -> int:
        place = _place(tensor)
        if place in self._tensors:
            return self._number(place)
        note: Place = (("saved", *place), 0)  # no place of the way: arrows of backward pass by it
        if note not in self._numbers:
            self._kept.append(tensor)
            self._numbers[note] = self._add(SAVED, name, tensor)
        return self._numbers[note]

    def _add(self, shape: str, title: str, tensor: Tensor | None = None) -> int:
        sizes = "" if tensor is None else f"({', '.join(map(str, tensor.shape))})"
        label = "\\n".join(_escaped(line) for line in (title, sizes) if line)
        self._nodes.append(f'n{len(self._nodes)} [shape={shape}, label="{label}"]')
        return len(self._nodes) - 1


def _place(tensor: Tensor) -> Place:
    if not tensor.requires_grad:
        return id(tensor), 0
    edge = torch.autograd.graph.get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def _saved(node: Node) -> Iterator[tuple[str, Tensor]]:
    """Yield name and content of each tensor that a function saves; a Function in Python has no names for them."""
    try:
        if hasattr(node, "saved_tensors"):
            found = [("", node.saved_tensors)]
        else:
            names = [name for name in dir(node) if name.startswith(internals.SAVED)]
            found = [(name.removeprefix(internals.SAVED), getattr(node, name)) for name in names]
    except RuntimeError as problem:
        raise RuntimeError(f"draw_graph: show_saved cannot read what {node.name()} saved: {problem}") from problem
    for name, value in found:
        yield from ((name, tensor) for tensor in internals.tree_leaves(value) if isinstance(tensor, Tensor))


def _escaped(text: str) -> str:
    """Escape the backslashes, quotes and HTML entities that Graphviz would interpret."""
    for sign, written in (("&", "&amp;"), ("\\", "\\\\"), ('"', '\\"'), ("\r", "\\n"), ("\n", "\\n")):
        text = text.replace(sign, written)
    return text


def write_graph(
    path: str | os.PathLike[str], output: Any, params: Mapping[str, Tensor] = NO_NAMES, *, show_saved: bool = False
) -> Path:
    """Write the picture of `draw_graph` to a file: SVG if Graphviz is installed, DOT text if it is not.

    Args:
        path: path of the SVG file, with the suffix ".svg". DOT text is written with the suffix ".dot" instead.
        output: as in `draw_graph`.
        params: as in `draw_graph`.
        show_saved: as in `draw_graph`.

    Returns:
        The path of the written file, with the suffix ".svg" or ".dot".

    Raises:
        ValueError: `path` does not end in ".svg".
        TypeError: `path` is not a path, or as in `draw_graph`.
        RuntimeError: Graphviz is installed and fails; the message quotes it. No file is written. Or as in `draw_graph`.

    >>> import tempfile
    >>> x = torch.ones(3, requires_grad=True)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_graph(f"{folder}/graph.svg", x.exp(), {"x": x}).stem
    'graph'
    """
    want_paths("write_graph", path=path)
    want_instances("write_graph", Mapping, params=params)
    path = Path(path)
    if path.suffix != ".svg":
        raise ValueError(f"write_graph: path must end in '.svg', got {str(path)!r}")
    text = draw_graph(output, params, show_saved=show_saved)
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

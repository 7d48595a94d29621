"""Applies the conventions that a spec declares, and torch's own for padding rows, to the check of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.errors import SelfCheckError
from conformance.evaluate.custom_ops import OpMode
from conformance.evaluate.evaluation import Evaluation
from zoo.case import SpecError
from zoo.convention import Convention

Tensors = dict[str, torch.Tensor]


class Conventions:
    """The conventions of one spec.

    Args:
        declared: the conventions.
        names: names of the inputs, parameters and outputs that they may be about.

    Raises:
        SpecError: a convention names none of them.
    """

    def __init__(self, declared: tuple[Convention, ...], names: set[str]) -> None:
        self._declared = declared
        for convention in declared:
            if not any(convention.concerns(name) for name in names):
                known = ", ".join(sorted(names))
                raise SpecError(f"convention on {convention.tensor!r}: no such input, parameter or output; got {known}")

    def exempt(self, name: str) -> bool:
        """Whether a whole tensor is left out of the comparison with finite differences."""
        return any(c.is_whole and c.concerns(name) for c in self._declared)

    def concern(self, name: str) -> bool:
        """Whether any convention is about a tensor."""
        return any(c.concerns(name) for c in self._declared)

    def rows_of(self, name: str, leaf: torch.Tensor) -> torch.Tensor:
        """Mask of the elements of a tensor that are left out.

        Raises:
            SpecError: a row is not there.
        """
        mask = torch.zeros(leaf.shape, dtype=torch.bool)
        for convention in self._declared:
            if convention.concerns(name):
                if convention.rows and max(convention.rows) >= (leaf.shape[0] if leaf.dim() else 0):
                    raise SpecError(f"convention on {name}: no row {max(convention.rows)} in shape {tuple(leaf.shape)}")
                mask[list(convention.rows) if convention.rows else ...] = True
        return mask

    def check_zeros(self, first: Evaluation) -> None:
        """Raise an error if a gradient that is declared zero is not.

        Args:
            first: what the oracle returned.

        Raises:
            SelfCheckError: it is not zero.
        """
        for name, gradient in first.tensors.items():
            for convention in self._declared if name.kind == "gradient" else ():
                if gradient is None or not convention.zero or not convention.concerns(name.leaf):
                    continue
                part = gradient[list(convention.rows)] if convention.rows else gradient
                if part.count_nonzero():
                    raise SelfCheckError(f"{name} is declared zero ({convention.why}), but it is not; remove that")

    def padding_rows(self, forward: Callable[[], Any], leaves: Tensors) -> Tensors:
        """Masks of the rows that torch's `embedding` takes as padding and gives no gradient.

        Args:
            forward: runs the model once.
            leaves: the inputs and parameters by name.
        """
        with _PaddingWatch() as watch:
            forward()
        masks = {name: torch.zeros(leaf.shape, dtype=torch.bool) for name, leaf in leaves.items()}
        for name, leaf in leaves.items():
            for row in watch.rows.get(leaf.data_ptr(), ()):
                masks[name][row] = True
        return masks


class _PaddingWatch(OpMode):
    """Notes the padding row of each table that is looked up, by the address of the table."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[int, set[int]] = {}

    def run_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is torch.ops.aten.embedding.default:
            table = args[0]
            padding = args[2] if len(args) > 2 else kwargs.get("padding_idx", -1)  # noqa: PLR2004 -- its third argument
            if padding >= 0:
                self.rows.setdefault(table.data_ptr(), set()).add(padding)
        return func(*args, **kwargs)

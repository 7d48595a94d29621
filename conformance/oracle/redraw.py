"""Draws a case again with other weights: to judge over many draws, and to see what a mode has kept from the first.

Parameters and buffers are changed in place, as an optimiser does. A mode that kept their old values is wrong then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from conformance.evaluate import inputs
from conformance.evaluate.evaluation import Question
from zoo import internals
from zoo.case import Call, Case

FIRST_NUMBER = 64  # of the draws; the numbers below are those from which the first inputs of a case are chosen
SMALLEST_FACTOR = 0.5  # of a weight; all factors are below 1, so that no error of the old weights averages out
SMALLEST_COARSE_FACTOR = 0.875  # where float16 has to hold what forty layers of such weights leave


@dataclass(frozen=True)
class Redraw:
    """A further draw of a case.

    Attributes:
        picks: the draw of the inputs, or the rows of several draws.
        weights: seed of the factors of the weights.
        fine: inputs and weights are any numbers of float32, not only those that low precisions represent.
        fewer: the last row of every input is left out.
        reordered: the inputs lie in memory with their first axis as the fastest.
        kept: names of buffers and frozen parameters that stay, because the model keeps what it computes of them.
    """

    picks: inputs.Picks
    weights: int
    fine: bool = False
    fewer: bool = False
    reordered: bool = False
    kept: tuple[str, ...] = ()

    def inputs(self, case: Case, seed: int) -> Call:
        """The inputs, on the CPU.

        Raises:
            SpecError: see `Case.draw`.
        """
        call = inputs.draw(case, seed, self.picks, coarse=not self.fine)
        call = inputs.fewer_rows(call) if self.fewer else call
        return inputs.reorder(call) if self.reordered else call

    def state(self, state: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
        """The parameters and buffers for this draw.

        Args:
            state: its first state, from `weights.state_of`; values that float32 represents.
            seed: seed of the cell.
        """
        drawn = {n: t for n, t in state.items() if inputs.is_rounded(t) and n not in self.kept}
        reals = {n: torch.view_as_real(t) if t.is_complex() else t for n, t in drawn.items()}
        if not reals:
            return state
        flat = torch.cat([self._times_factors(name, tensor, seed) for name, tensor in reals.items()]).float()
        flat = flat if self.fine else inputs.representable(flat)  # all at once, for the sake of time
        changed = dict(state)
        for name, part in zip(reals, flat.split([tensor.numel() for tensor in reals.values()]), strict=True):
            real = part.view(reals[name].shape).to(reals[name].dtype)
            changed[name] = torch.view_as_complex(real.clone()) if state[name].is_complex() else real
        return changed

    def _times_factors(self, name: str, tensor: torch.Tensor, seed: int) -> torch.Tensor:
        generator = inputs.seed_generator("weights", seed, self.weights, name)
        factors = torch.rand(tensor.numel(), generator=generator).to(tensor.device)
        least = SMALLEST_FACTOR if self.fine else SMALLEST_COARSE_FACTOR
        return tensor.reshape(-1).double() * (least + (1.0 - least) * factors)

    def question(self, first: Question, call: Call, model: Any) -> Question:
        """The question of this draw.

        Args:
            first: the question of the case.
            call: the inputs on the device and in the dtypes of the run.
            model: the model; its signature names the inputs.
        """
        names = inputs.named_inputs(model, call)
        pristine = inputs.place(call, convert=lambda t: t) if first.mutates else call
        again = (*first.seed, repr(self.picks), self.weights, self.fewer)
        first = replace(first, stacked=None, forward_mode=False)  # the first draw checks these
        return replace(first, call=call, pristine=pristine, names=names, seed=again)


def alike(one: Call, other: Call) -> bool:
    """Whether two calls differ only in the content of their tensors, so that a compiled call fits both."""
    (mine, how), (theirs, as_well) = (internals.tree_flatten((c.args, dict(c.kwargs))) for c in (one, other))
    return how == as_well and all(map(_alike, mine, theirs))


def _alike(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return type(a) is type(b) and bool(a == b)
    if (a.shape, a.dtype, a.layout) != (b.shape, b.dtype, b.layout):
        return False
    return a.layout != torch.strided or a.stride() == b.stride()

"""Ways to damage a correct tensor that a judge should notice. They run in the process of a cell.

Each damage takes a `Victim` and returns the damaged tensor, or None if it does not apply. If every number stays as it
was, the damage is not counted.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from conformance.evaluate.inputs import is_rounded, seed_generator
from conformance.gates.budget import TensorCriteria
from conformance.gates.distance import same_bytes
from conformance.records.cell import TensorName

JUDGED = ("rounded", "float32", "exact")  # kinds of tensor; structurally zero and empty ones are left alone


@dataclass
class Victim:
    """A correct tensor, and what the damages need to know besides.

    Attributes:
        y: the tensor that the cell found.
        criteria: what the judge holds it to.
        seed: of random choices.
        rows: along the first axis of the case's first output.
        before: the buffer's content before the call; None for anything else.
        others: the tensors of the same case, itself included.
        draws: the tensor in further draws of the case; empty if it is not judged over draws.
    """

    y: torch.Tensor
    criteria: TensorCriteria
    seed: int
    rows: int = 1
    before: torch.Tensor | None = None
    others: list[Victim] = field(default_factory=list)
    draws: list[Victim] = field(default_factory=list)

    @property
    def name(self) -> TensorName:
        """The name of the tensor."""
        return self.criteria.tensor

    def random(self, below: int, what: str = "") -> int:
        """Draw a number, the same in every process."""
        generator = seed_generator(self.seed, self.criteria.case, self.name, what)
        return int(torch.randint(below, (1,), generator=generator))


Damage = Callable[[Victim], torch.Tensor | None]
DAMAGES: dict[str, Damage] = {}
FACTORS = ("gradient times 1.01", "gradient times 1.05", "gradient times 2", "mean instead of sum")


def damaged(victim: Victim) -> Iterator[tuple[str, torch.Tensor]]:
    """Every damage that applies and changes something: its name and the damaged tensor."""
    for name, damage in DAMAGES.items():
        z = _quietly(damage, victim)
        if z is not None and not _same_values(z, victim.y):
            yield name, z


def damaged_draws(victim: Victim, name: str) -> list[torch.Tensor]:
    """The tensor in further draws with the same damage. Where the damage does not apply, the tensor is as it was.

    Of complex and of large tensors, the judge keeps another shape; only a wrong factor is the same there.
    """
    drawn = []
    for there in victim.draws:
        applies = there.y.shape == victim.y.shape or name in FACTORS
        z = _quietly(DAMAGES[name], there) if applies else None
        drawn.append(there.y if z is None else z)
    return drawn


def _quietly(damage: Damage, victim: Victim) -> torch.Tensor | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return damage(victim)


def _same_values(z: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether nothing differs, except perhaps the sign of a zero."""
    return z.shape == y.shape and z.dtype == y.dtype and (torch.equal(z, y) or same_bytes(z, y))


def _damage(name: str) -> Callable[[Damage], Damage]:
    def register(function: Damage) -> Damage:
        DAMAGES[name] = function
        return function

    return register


def _of_gradients(name: str, change: Callable[[Victim], torch.Tensor]) -> None:
    DAMAGES[name] = lambda v: change(v).to(v.y.dtype) if v.name.is_gradient and is_rounded(v.y) else None


_of_gradients("gradient times 1.01", lambda v: v.y * 1.01)
_of_gradients("gradient times 1.05", lambda v: v.y * 1.05)
_of_gradients("gradient times 2", lambda v: v.y * 2)
_of_gradients("mean instead of sum", lambda v: v.y / v.rows)


@_damage("one row zeroed")
def _row_zeroed(v: Victim) -> torch.Tensor | None:
    return None if not _has_rows(v) else _zeroed(v.y, 0, v.random(len(v.y), "row"))


@_damage("smallest row zeroed")
def _smallest_row_zeroed(v: Victim) -> torch.Tensor | None:
    reference, oracle = v.criteria.reference, v.criteria.reference.oracle
    if not _has_rows(v) or 0 not in oracle.axes:
        return None
    axis = oracle.axes.index(0)
    order = oracle.slice_norms[axis].argsort()
    has_spread = oracle.is_rounded and not reference.exact
    live = order[~reference.null_slices(axis)[order]] if has_spread else order
    return _zeroed(v.y, 0, int(live[0])) if len(live) else None


@_damage("tail column unwritten")
def _tail_unwritten(v: Victim) -> torch.Tensor | None:
    return _zeroed(v.y, -1, -1) if v.y.dim() >= 2 and v.y.shape[-1] >= 2 else None


@_damage("rows 0 and 1 swapped")
def _rows_swapped(v: Victim) -> torch.Tensor | None:
    return v.y[[1, 0, *range(2, len(v.y))]] if _has_rows(v) else None


@_damage("row 1 a copy of row 0")
def _row_copied(v: Victim) -> torch.Tensor | None:
    return v.y[[0, 0, *range(2, len(v.y))]] if _has_rows(v) else None


@_damage("rolled by one along an axis")
def _rolled(v: Victim) -> torch.Tensor | None:
    axes = [axis for axis, size in enumerate(v.y.shape) if size >= 2]
    return v.y.roll(1, axes[v.random(len(axes), "axis")]) if axes else None


@_damage("read with transposed strides")
def _misread(v: Victim) -> torch.Tensor | None:
    wide = v.y.dim() >= 2 and v.y.shape[-1] != v.y.shape[-2]
    return v.y.transpose(-1, -2).reshape(v.y.shape) if wide else None


@_damage("square gradient transposed")
def _transposed(v: Victim) -> torch.Tensor | None:
    square = v.name.is_gradient and v.y.dim() == 2 and v.y.shape[0] == v.y.shape[1]
    return v.y.t() if square else None


@_damage("two gradients swapped")
def _gradients_swapped(v: Victim) -> torch.Tensor | None:
    """Swap two whose oracles differ; the biases of two summands have the same gradient."""
    here = v.criteria.reference.oracle
    for other in v.others if v.name.is_gradient else ():
        there = other.criteria.reference.oracle
        alike = other.name.is_gradient and other.y.shape == v.y.shape and other.y.dtype == v.y.dtype
        if alike and float((here.values - there.values).norm()) > 1e-6 * here.norm:
            return other.y
    return None


@_damage("smallest gradient negated")
def _smallest_negated(v: Victim) -> torch.Tensor | None:
    norms = {
        id(o): o.criteria.reference.oracle.norm for o in v.others if o.name.is_gradient and o.criteria.kind in JUDGED
    }
    live = {key: norm for key, norm in norms.items() if norm > 0.0}
    return -v.y if live and min(live, key=live.__getitem__) == id(v) else None


@_damage("stale buffer")
def _stale(v: Victim) -> torch.Tensor | None:
    return v.before


@_damage("column means removed")
def _bias_dropped(v: Victim) -> torch.Tensor | None:
    """Damage an output as a lost bias would."""
    return v.y - v.y.mean(0) if v.name.kind == "output" and is_rounded(v.y) and _has_rows(v) else None


@_damage("2 % noise")
def _noisy(v: Victim) -> torch.Tensor | None:
    if not is_rounded(v.y):
        return None
    noise = torch.rand(v.y.shape, generator=seed_generator(v.seed, v.criteria.case, v.name, "noise")) * 0.04 + 0.98
    return (v.y * noise).to(v.y.dtype)


@_damage("one element off by 4 budgets")
def _one_off(v: Victim) -> torch.Tensor | None:
    point = v.criteria.budget.point
    if not is_rounded(v.y) or not math.isfinite(point) or not point:
        return None
    at = v.random(v.y.numel(), "element")
    size = abs(complex(v.y.flatten()[at].item())) + v.criteria.reference.oracle.rms
    return _with_element(v.y, at, v.y.flatten()[at].item() + 4.0 * point * size)


@_damage("one element another's")
def _wrong_element(v: Victim) -> torch.Tensor | None:
    """Read an element from a wrong place: of ten random pairs, the one that differs most."""
    if v.y.numel() < 2:
        return None
    flat = v.y.flatten()
    pairs = [(v.random(len(flat), f"to {i}"), v.random(len(flat), f"from {i}")) for i in range(10)]
    gaps = ((float((flat[a].to(torch.cfloat) - flat[b].to(torch.cfloat)).abs().nan_to_num()), a, b) for a, b in pairs)
    gap, at, source = max(gaps)
    return _with_element(v.y, at, flat[source].item()) if gap else None


@_damage("last element unwritten")
def _last_unwritten(v: Victim) -> torch.Tensor | None:
    """Zero it if it is large enough to matter: half of the tensor's rms or more."""
    large = v.y.numel() >= 2 and abs(complex(v.y.flatten()[-1].item())) >= 0.5 * v.criteria.reference.oracle.rms
    return _with_element(v.y, v.y.numel() - 1, 0) if large else None


@_damage("one NaN")
def _one_nan(v: Victim) -> torch.Tensor | None:
    return _with_element(v.y, v.random(v.y.numel(), "nan"), math.nan) if is_rounded(v.y) else None


@_damage("one inf")
def _one_inf(v: Victim) -> torch.Tensor | None:
    return _with_element(v.y, v.random(v.y.numel(), "inf"), math.inf) if is_rounded(v.y) else None


@_damage("an axis more")
def _axis_more(v: Victim) -> torch.Tensor:
    """Give it a shape that broadcasts to the right one."""
    return v.y.unsqueeze(0)


@_damage("wrong dtype")
def _wrong_dtype(v: Victim) -> torch.Tensor:
    """Keep the values, in another dtype that holds them."""
    wider = {torch.float32: torch.float64, torch.complex64: torch.complex128, torch.int64: torch.int32}
    return v.y.to(wider.get(v.y.dtype, torch.float32))


@_damage("float32 through bfloat16")
def _through_bfloat16(v: Victim) -> torch.Tensor | None:
    """Round if the contract forbids it. A bfloat16 cell allows it for tensors of low precision."""
    allowed = not v.criteria.uses_float32_budget and v.criteria.cell_precision.autocast == "bfloat16"
    return None if allowed or v.y.dtype != torch.float32 else v.y.bfloat16().float()


@_damage("float32 through float16")
def _through_float16(v: Victim) -> torch.Tensor | None:
    """Round if float32 is asked for."""
    asked = v.criteria.uses_float32_budget and v.y.dtype == torch.float32
    return v.y.half().float() if asked else None


def _has_rows(v: Victim) -> bool:
    return v.y.dim() >= 2 and v.y.shape[0] >= 2


def _zeroed(y: torch.Tensor, axis: int, index: int) -> torch.Tensor:
    z = y.clone(memory_format=torch.contiguous_format)
    z.select(axis, index).zero_()
    return z


def _with_element(y: torch.Tensor, at: int, value: complex) -> torch.Tensor:
    z = y.clone(memory_format=torch.contiguous_format)
    z.view(-1)[at] = value
    return z

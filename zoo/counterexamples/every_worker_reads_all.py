"""An iterable dataset that does not ask which worker it is in: two workers yield every item twice.

A `DataLoader` gives each worker a copy of the dataset. The sampler divides a map-style dataset among the workers. An
iterable dataset must divide itself, with `torch.utils.data.get_worker_info()`. Source: "Effective PyTorch". Its
dataset of tar archives divides itself only if there are as many archives as workers, and refuses any other number. Its
dataset of a folder has two more faults, which this file also shows: a method without `self`, and `__item__` instead of
`__getitem__`. `zoo.data` is right.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from zoo.case import Case
from zoo.expect import Expect
from zoo.spec import Spec

WORKERS = 2


class EveryWorkerReadsAll(IterableDataset[Tensor]):
    """A dataset that yields all of its items in every worker.

    Args:
        items: (n, ...), one item per row.

    >>> [int(item) for item in EveryWorkerReadsAll(torch.arange(3))]
    [0, 1, 2]
    """

    def __init__(self, items: Tensor) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Tensor]:
        """Iterate over all items, whatever the worker is."""
        return iter(self.items.unbind())


class WithoutSelf(Dataset[Tensor]):
    """A dataset that cannot be created: its constructor has no `self`, so `paths` is the dataset.

    >>> WithoutSelf(["a.tar"])
    Traceback (most recent call last):
    TypeError: WithoutSelf.__init__() takes 1 positional argument but 2 were given
    """

    def __init__(paths) -> None:  # noqa: N805
        paths.paths = paths


class ItemForGetitem(Dataset[Tensor]):
    """A dataset that cannot be indexed: Python looks for `__getitem__` and finds that of the base class.

    >>> ItemForGetitem()[0]
    Traceback (most recent call last):
    NotImplementedError: Subclasses of Dataset should implement __getitem__.
    """

    def __item__(self, index: int) -> Tensor:
        """Return the item; Python never calls a method of this name."""
        return torch.tensor(index)


def every_worker_reads_all(items: Tensor) -> Tensor:
    """Return everything that two workers yield: first the items of one worker, then those of the other.

    Args:
        items: (n, ...), one item per row.

    Returns:
        (2 n, ...), dtype of `items`: every item twice.

    >>> every_worker_reads_all(torch.arange(3))
    tensor([0, 1, 2, 0, 1, 2])
    """
    copies = [EveryWorkerReadsAll(items) for _ in range(WORKERS)]
    return torch.stack([item for dataset in copies for item in dataset])


SPEC = Spec(
    name="every_worker_reads_all",
    summary="iterable dataset that every worker yields completely",
    source="Effective PyTorch, dataset of tar archives",
    formula="the union of all workers' items, each item once",
    shapes="(n,) → (n,)",
    build=lambda: every_worker_reads_all,
    cases=(Case(name="six-items", inputs=lambda _: (torch.arange(6),)),),
    dtypes="int64",
    differentiable=False,
    reference=lambda _, items: items.clone(),
    expectations=(
        Expect(
            outcome="INVALID",
            match=r"^output: the spec's reference gives shape \(6,\), the float64 oracle shape \(12,\);",
            reason="each of the two workers yields all six items, but they should share them",
            link="https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset",
        ),
    ),
)

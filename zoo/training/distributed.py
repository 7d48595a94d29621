"""Training on several processes: each has its share of the data, and all take the same step.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020,
arXiv:2006.15704. `zoo.training.epochs.train` takes a `DistributedDataParallel` model: it sends the gradients once for
each step, also if the step accumulates several batches, and all ranks stop at a NaN on any of them. The spec below
computes in one process what two ranks compute.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import SGD
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from zoo.arguments import want_instances, want_integers, want_sizes, want_string
from zoo.case import Case
from zoo.models.mlp import mlp
from zoo.spec import Spec
from zoo.training.epochs import train
from zoo.training.step import backward_by_hand, squared_error, taught


def process_group(
    rank: int, world_size: int, store: Any, backend: str = "gloo"
) -> contextlib.AbstractContextManager[None]:
    """Join the default process group, and leave it at the end.

    Args:
        rank: number of this process, from 0.
        world_size: number of processes.
        store: where the processes meet, such as `torch.distributed.FileStore(path, world_size)`.
        backend: "gloo" for the CPU, "nccl" for CUDA.

    Raises:
        TypeError, ValueError: a number is no integer, `rank` is not below `world_size`, or `backend` is no string.
        RuntimeError: this build of torch has no torch.distributed.

    >>> with process_group(0, 1, torch.distributed.HashStore()):
    ...     torch.distributed.get_world_size()
    1
    """
    _want_rank("process_group", rank, world_size)
    want_string("process_group", backend=backend)
    if not torch.distributed.is_available():
        raise RuntimeError("process_group: this build of torch has no torch.distributed")
    return _joined(rank, world_size, store, backend)


@contextlib.contextmanager
def _joined(rank: int, world_size: int, store: Any, backend: str) -> Iterator[None]:
    torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def share_of(  # noqa: PLR0913 -- a loader and its place among the ranks
    dataset: Dataset[Any], batch_size: int, *, rank: int, world_size: int, seed: int = 0, shuffle: bool = True
) -> DataLoader[Any]:
    """Return a loader over the share of one rank: in an epoch, no sample comes twice, on one rank or on two.

    All shares have the same size, or a rank would wait for another for ever. If the data set cannot be divided, the
    last few samples of the epoch's order are left out; the default of `DistributedSampler` repeats some instead.

    Args:
        dataset: the whole data set, the same on each rank.
        batch_size: number of samples in each batch of this rank.
        rank: number of this process, from 0.
        world_size: number of processes.
        seed: seed of the order, the same on each rank. `train` draws another order for each epoch.
        shuffle: whether to shuffle.

    Raises:
        TypeError, ValueError: `dataset` is no Dataset, a size is not a positive integer, `rank` is not below
            `world_size`, or there are fewer samples than ranks.

    >>> dataset = TensorDataset(torch.arange(5))
    >>> shares = [share_of(dataset, batch_size=2, rank=rank, world_size=2, shuffle=False) for rank in (0, 1)]
    >>> [[batch.tolist() for (batch,) in share] for share in shares]
    [[[0, 2]], [[1, 3]]]
    """
    want_instances("share_of", Dataset, dataset=dataset)
    want_sizes("share_of", batch_size=batch_size)
    want_integers("share_of", seed=seed)
    _want_rank("share_of", rank, world_size)
    samples = len(dataset)  # type: ignore[arg-type]
    if samples < world_size:
        raise ValueError(f"share_of: dataset must have a sample for each of {world_size} ranks, got {samples}")
    sampler: DistributedSampler[Any] = DistributedSampler(
        dataset, num_replicas=world_size, rank=rank, shuffle=shuffle, seed=seed, drop_last=True
    )
    generator = torch.Generator()  # for the seeds of workers; the order is the sampler's
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler, generator=generator)


def _want_rank(function: str, rank: int, world_size: int) -> None:
    want_sizes(function, world_size=world_size)
    want_integers(function, rank=rank)
    if not 0 <= rank < world_size:
        raise ValueError(f"{function}: rank must be at least 0 and below {world_size}, got {rank}")


def _two_shares(call: Callable[..., Tensor], model: nn.Module, precision: str, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss before each of 12 steps that two ranks take together, computed in one process."""
    optimizer = SGD(model.parameters(), lr=0.4, momentum=0.5)
    scaler = GradScaler(x.device.type, init_scale=2.0**10, enabled=precision == "amp_fp16")
    data = TensorDataset(x, y)
    shares = [share_of(data, batch_size=16, rank=rank, world_size=2, shuffle=False) for rank in (0, 1)]
    in_turn = [batch for of_all_ranks in zip(*shares, strict=True) for batch in of_all_ranks]
    options: dict[str, Any] = {"precision": precision, "scaler": scaler, "accumulate": 2}
    return train(call, squared_error, in_turn, optimizer, epochs=12, **options).losses.to(x.device)


def _by_hand(model: nn.Sequential, x: Tensor, y: Tensor) -> Tensor:
    """Compute the same losses on the whole batch."""
    parameters = [p.detach().clone() for p in model.parameters()]
    speeds = [torch.zeros_like(p) for p in parameters]
    losses = []
    for _ in range(12):
        loss, gradients = backward_by_hand(parameters, x, y)
        losses.append(loss)
        for parameter, speed, gradient in zip(parameters, speeds, gradients, strict=True):
            speed.mul_(0.5).add_(gradient)
            parameter.sub_(0.4 * speed)
    return torch.stack(losses)


SPEC = Spec(
    name="train_distributed",
    summary="12 steps of SGD on `mlp` that two ranks take together, in one process; the loss before each",
    formula="v ← v/2 + ∇L, w ← w − 0.4 v, L = mean over the ranks of the mean loss of their samples",
    shapes="(batch, 64), (batch, 10) → (12,)",
    source='Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", arXiv:2006.15704',
    build=mlp,
    cases=(Case(name="typical", inputs=taught),),
    dtypes="float32",
    differentiable=False,
    reference=_by_hand,
    fit=_two_shares,
)

"""Two processes with DistributedDataParallel on gloo compute what one process computes on the whole batch."""

import contextlib

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import TensorDataset

from zoo.training.distributed import process_group, share_of
from zoo.training.epochs import train
from zoo.training.step import squared_error

DEADLINE = 120.0
GLOO = torch.distributed.is_available() and torch.distributed.is_gloo_available()
two_processes = pytest.mark.skipif(
    not GLOO, reason="this build of torch has no torch.distributed with gloo: NOT TESTED"
)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def data():
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(24, 8, generator=generator), torch.randn(24, 4, generator=generator))


def trained(model, loader, precision, accumulate):
    """Return the losses of 3 epochs, the last gradients and the weights."""
    done = train(
        model, squared_error, loader, SGD(model.parameters(), lr=0.1), epochs=3, precision=precision,
        accumulate=accumulate, clip=1.0,
    )  # fmt: skip
    return [done.losses, [p.grad for p in model.parameters()], [p.detach() for p in model.parameters()]]


def rank_of_two(rank, folder, work):
    """What one process does; it leaves its result in the folder."""
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(f"{folder}/store", 2)
    with process_group(rank, 2, store):
        torch.save(work(rank), f"{folder}/{rank}.pt")


def on_two_ranks(folder, work):
    """Run the work on two ranks; return both results. Two processes that wait for each other are ended."""
    running = torch.multiprocessing.spawn(rank_of_two, (str(folder), work), nprocs=2, join=False)
    try:
        ended = running.join(timeout=DEADLINE) or running.join(timeout=DEADLINE)  # it joins one process at a time
    finally:
        for process in running.processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    assert ended, f"the ranks had not ended after {DEADLINE} seconds"
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


def trained_in_parallel(rank):
    """Train in all precisions with two batches for each step; note how often the gradients were sent."""
    results = {}
    for precision in ("fp32", "amp_fp16", "amp_bf16"):
        sent = [0]

        def count(_, bucket, sent=sent):
            sent[0] += 1
            work = torch.distributed.all_reduce(bucket.buffer(), async_op=True)
            return work.get_future().then(lambda done: done.value()[0] / 2)

        parallel = nn.parallel.DistributedDataParallel(net())
        parallel.register_comm_hook(None, count)
        loader = share_of(data(), batch_size=6, rank=rank, world_size=2, shuffle=False)
        results[precision] = [trained(parallel, loader, precision, 2), sent[0]]
    return results


def refused_with_nan(rank):
    """Train on a NaN in the data of rank 1 alone."""
    rows = data()
    rows.tensors[0][1] = float("nan")
    loader = share_of(rows, batch_size=6, rank=rank, world_size=2, shuffle=False)
    try:
        trained(nn.parallel.DistributedDataParallel(net()), loader, "fp32", 1)
    except FloatingPointError as problem:
        return str(problem)
    return ""


def both(rank):
    return [trained_in_parallel(rank), refused_with_nan(rank)]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two processes, started once, do: the results of both works, each of both ranks."""
    return list(zip(*on_two_ranks(tmp_path_factory.mktemp("ranks"), both), strict=True))


@two_processes
def test_two_ranks_take_the_steps_of_the_whole_batch(found):
    one, two = found[0]
    wide = TensorDataset(*(t.double() for t in data().tensors))
    true = trained(net().double(), [wide[:24]], "fp32", 1)
    for precision, bound in (("fp32", 1e-5), ("amp_fp16", 5e-3), ("amp_bf16", 4e-2)):
        (result, sent), (other, _) = one[precision], two[precision]
        assert sent == 3, "the gradients are sent once for each step, and not for each batch"
        for mine, theirs, truth in zip(flat(result), flat(other), flat(true), strict=True):
            assert torch.equal(mine, theirs)
            assert (mine - truth).norm() < bound * truth.norm()
            assert precision == "fp32" or (mine - truth).norm() > 1e-5 * truth.norm()  # autocast was on


def flat(result):
    """Losses, gradients and weights, each as one vector."""
    losses, gradients, weights = result
    return [losses, torch.cat([g.flatten() for g in gradients]), torch.cat([w.flatten() for w in weights])]


@two_processes
def test_a_nan_on_one_rank_ends_both(found):
    assert list(found[1]) == ["train: epoch 1, step 1: the loss is nan"] * 2


@pytest.mark.parametrize("samples", [24, 25])
def test_no_sample_comes_twice_and_each_epoch_has_its_own_order(samples):
    shares = [share_of(TensorDataset(torch.arange(samples)), 5, rank=rank, world_size=2) for rank in (0, 1)]
    orders = []
    for epoch in range(3):
        seen = []
        for share in shares:
            share.sampler.set_epoch(epoch)
            seen.append([i for (batch,) in share for i in batch.tolist()])
        assert [len(one) for one in seen] == [12, 12]
        assert len({*seen[0], *seen[1]}) == 24
        orders.append(seen)
    assert orders[0] != orders[1] != orders[2]


def test_train_tells_the_sampler_the_epoch():
    share = share_of(data(), 6, rank=0, world_size=2)
    trained(net(), share, "fp32", 1)
    assert share.sampler.epoch == 2

"""False claims about operators, indices, stable formulas and data: docs/where-the-sources-are-wrong/."""

import io
import itertools
import random
import tarfile

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it
from torch.utils.data import DataLoader, IterableDataset

from zoo.data.pixels import decode_rgb
from zoo.data.tar_files import tar_files
from zoo.functions.batch_norm2d import batch_norm2d
from zoo.models.checkerboard import checker
from zoo.ops.batch_gather import batch_gather_vectorised
from zoo.ops.cross_entropy import softmax_cross_entropy
from zoo.ops.ratio import ratio_naive, ratio_safe
from zoo.ops.softmax import softmax

NO_CUDA = not torch.cuda.is_available()


def test_the_operators_of_bits_are_bitwise_not_logical():
    x, y = torch.tensor([5, 3]), torch.tensor([1, 2])
    assert (x ^ y).tolist() == [4, 1]
    assert torch.logical_xor(x, y).tolist() == [False, False]
    assert (~x).tolist() == [-6, -4]
    assert torch.logical_not(x).tolist() == [False, False]
    assert (torch.tensor([True, True]) ^ torch.tensor([True, False])).tolist() == [False, True]
    with pytest.raises(RuntimeError, match="\"bitwise_xor_cpu\" not implemented for 'Float'"):
        torch.ones(2) ^ torch.ones(2)


def test_and_or_not_ask_for_one_truth_value():
    x, y = torch.tensor([True, False]), torch.tensor([True, True])
    for operation in (lambda: x and y, lambda: x or y, lambda: not x):
        with pytest.raises(RuntimeError, match="more than one value is ambiguous"):
            operation()
    assert (torch.tensor([2]) and torch.tensor([3])).tolist() == [3]
    assert torch.logical_and(torch.tensor([2]), torch.tensor([3])).tolist() == [True]


def test_squeeze_without_a_dim_also_removes_a_batch_of_one():
    assert torch.ones(4, 5, 1).squeeze().shape == (4, 5)
    assert torch.ones(1, 5, 1).squeeze().shape == (5,)
    assert torch.ones(1, 5, 1).squeeze(2).shape == (1, 5)


def test_a_slice_is_clamped_and_narrow_is_not():
    x = torch.arange(3)
    assert x[1:9].tolist() == [1, 2]
    with pytest.raises(RuntimeError, match=r"start \(1\) \+ length \(8\) exceeds dimension size \(3\)"):
        torch.narrow(x, 0, 1, 8)


def flattened_gather(tensor, index):
    """Gather without a check, with every index offset into the flattened batch."""
    offset = torch.arange(tensor.size(0)).unsqueeze(1) * tensor.size(1)
    return tensor.flatten(0, 1)[index + offset]


def test_an_index_out_of_range_reads_another_sample():
    tensor = torch.tensor([[10, 11, 12], [20, 21, 22]])
    index = torch.tensor([[3, -1], [0, 1]])
    assert flattened_gather(tensor, index).tolist() == [[20, 22], [20, 21]]
    with pytest.raises(IndexError, match=r"index must lie in \[0, 3\)"):
        batch_gather_vectorised(tensor, index)


@pytest.mark.skipif(not NO_CUDA, reason="needs a machine without CUDA")
def test_an_offset_that_calls_cuda_needs_cuda():
    with pytest.raises((AssertionError, RuntimeError), match=r"(?i)cuda|nvidia"):
        torch.arange(2).cuda()
    assert batch_gather_vectorised(torch.tensor([[1, 2]]), torch.tensor([[1]])).tolist() == [[2]]


@pytest.mark.skipif(NO_CUDA, reason="needs a CUDA device")
def test_an_offset_that_calls_cuda_mixes_devices():
    tensor, index = torch.tensor([[1, 2]]), torch.tensor([[1]])
    with pytest.raises(RuntimeError, match="same device"):
        index + torch.arange(1).cuda().unsqueeze(1)
    assert batch_gather_vectorised(tensor, index).tolist() == [[2]]
    assert batch_gather_vectorised(tensor.cuda(), index.cuda()).tolist() == [[2]]


def test_numbers_at_the_limits_of_float32_are_rounded_to_the_nearest():
    smallest, largest = 2.0**-149, torch.finfo(torch.float32).max
    assert torch.tensor(0.8e-45).item() == smallest
    assert torch.tensor(0.6e-45).item() == 0
    assert torch.tensor(3.40282354e38).item() == largest
    assert torch.tensor(3.4028236e38).item() == torch.inf


def test_a_product_divided_by_its_factor_breaks_before_the_factor_does():
    x, y = torch.tensor([1.0, 1.0, 4.0, 1e-20]), torch.tensor([1e39, 0.0, 3e38, 1e-30])
    naive = ratio_naive(x, y)
    assert naive[:2].isnan().all()
    assert naive[2:].tolist() == [torch.inf, 0]
    assert ratio_safe(x, y, floor=1e-37).tolist() == pytest.approx([1, 0, 4, 1e-20], rel=1e-6, abs=0)


def test_the_naive_softmax_breaks_below_its_largest_logit():
    logits = torch.tensor([88.5, 88.5])
    assert logits.exp().isfinite().all()
    assert (logits.exp() / logits.exp().sum()).tolist() == [0, 0]
    assert softmax(logits).tolist() == [0.5, 0.5]


def test_softmax_shifted_by_the_maximum_of_the_whole_tensor_gives_nan():
    assert not hasattr(torch, "reduce_max")
    logits = torch.tensor([[1000.0, 0.0], [0.0, 0.0]])
    exponentials = (logits - logits.max()).exp()
    assert (exponentials / exponentials.sum(1, keepdim=True))[1].isnan().all()
    assert (exponentials / exponentials.sum()).tolist() == [[1, 0], [0, 0]]
    assert softmax(logits).tolist() == [[1, 0], [0.5, 0.5]]


def test_cross_entropy_shifted_by_the_maximum_of_the_whole_tensor_forgets_a_row():
    logits = torch.tensor([[1e9, 0.0], [0.0, -1.0]])
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    shifted = logits - logits.max()
    whole = -(labels * (shifted - shifted.logsumexp(1, keepdim=True))).sum(1)
    true = F.cross_entropy(logits.double(), labels.double(), reduction="none").float()
    assert true.tolist() == pytest.approx([0, 1.3132617])
    assert whole.tolist() == pytest.approx([0, 0], abs=1e-6)
    assert softmax_cross_entropy(logits, labels).tolist() == pytest.approx([0, 1.3132617])


def test_cross_entropy_without_keepdim_subtracts_across_rows():
    logits, labels = torch.tensor([[4.0, 0.0], [0.0, 0.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    crossed = -(labels * (logits - logits.logsumexp(-1))).sum(1)
    assert crossed.tolist() == pytest.approx([0.0181499, 4.0181499], abs=1e-6)
    assert softmax_cross_entropy(logits, labels).tolist() == pytest.approx([0.0181499, 0.6931472], abs=1e-6)
    with pytest.raises(RuntimeError, match="must match"):
        torch.zeros(3, 2) - torch.zeros(3, 2).logsumexp(-1)


def test_noise_that_is_never_negative_moves_the_offset():
    generator = torch.Generator().manual_seed(0)
    x = torch.arange(10000, dtype=torch.float64) / 10000
    noise = torch.rand(10000, generator=generator, dtype=torch.float64) * 0.3
    design = torch.stack([x, torch.ones_like(x)], 1)
    slope, offset = torch.linalg.lstsq(design, 5 * x + 3 + noise).solution.tolist()
    assert slope == pytest.approx(5, abs=0.02)
    assert offset == pytest.approx(3.15, abs=0.01)


def unit_norm(x, eps=1e-3):
    """Normalise each channel by its mean and its standard deviation plus eps; autograd differentiates it."""
    dims = (0, 2, 3)
    return (x - x.mean(dims, keepdim=True)) / (x.var(dims, keepdim=True).sqrt() + eps)


@pytest.mark.parametrize(
    ("half_width", "count", "outside", "inside"),
    [(1.0, 10000, 0.99895, 0.99950), (1.0, 8, 0.93454, 0.99950), (0.01, 10000, 0.90905, 0.30151)],
    ids=["unit", "eight-values", "narrow-channel"],
)
def test_eps_outside_the_root_is_another_normalisation(half_width, count, outside, inside):
    x = torch.tensor([-half_width, half_width], dtype=torch.float64).repeat(count // 2).reshape(1, 1, 2, -1)
    assert batch_norm2d(x).max().item() == pytest.approx(outside, abs=1e-5)
    assert unit_norm(x).max().item() == pytest.approx(outside, abs=1e-5)
    theirs = F.batch_norm(x, None, None, training=True, eps=1e-3)
    assert theirs.max().item() == pytest.approx(inside, abs=1e-5)


def test_a_constant_channel_has_nan_gradients_where_the_root_is_bare():
    x, cotangent = torch.ones(1, 1, 2, 2, requires_grad=True), torch.tensor([[[[1.0, -2.0], [3.0, 0.5]]]])
    assert torch.autograd.grad(unit_norm(x), x, cotangent)[0].isnan().all()
    assert torch.autograd.grad(batch_norm2d(x), x, cotangent)[0].isfinite().all()


class Unshared(IterableDataset):
    """A data set that yields every item in every worker."""

    def __iter__(self):
        yield from (0, 1, 2)


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on a machine with one processor
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # from Python 3.12 on
def test_workers_that_share_nothing_repeat_every_item():
    items = list(DataLoader(Unshared(), batch_size=None, num_workers=2))
    assert sorted(items) == [0, 0, 1, 1, 2, 2]


class Misspelt:
    def __len__(self):
        return 3

    def __item__(self, index):
        return index


def test_a_data_set_is_indexed_by_getitem():
    with pytest.raises(TypeError, match="not subscriptable"):
        Misspelt()[0]


# data, data sets and the fits of a line and a parabola


def test_a_module_without_parameters_cannot_be_optimised():
    with pytest.raises(ValueError, match="empty parameter list"):
        torch.optim.Adam(nn.ReLU().parameters())


def test_the_first_argument_of_numpy_normal_is_the_mean():
    numpy = pytest.importorskip("numpy")
    assert numpy.random.normal([3, 5]).shape == (2,)
    assert numpy.random.normal(size=[3, 5]).shape == (3, 5)


def test_torch_tensor_of_a_tensor_warns():
    source = torch.ones(2)
    with pytest.warns(UserWarning, match="copy construct from a tensor"):
        torch.tensor(source, requires_grad=True)
    leaf = source.clone().detach().requires_grad_()
    assert leaf.is_leaf


def parabola(generator):
    """Draw 100 points of 5x² + 3 with x in [-10, 10): the features (x², x, 1), and y."""
    x = torch.rand(100, generator=generator) * 20 - 10
    return torch.stack([x * x, x, torch.ones_like(x)], 1), 5 * x * x + 3


def test_1000_steps_of_adam_do_not_find_the_offset_of_the_parabola():
    generator = torch.Generator().manual_seed(0)
    w = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.Adam([w], lr=0.1)
    for _ in range(1000):
        features, y = parabola(generator)
        optimizer.zero_grad()
        F.mse_loss(features @ w, y).backward()
        optimizer.step()
    assert w[:2].tolist() == pytest.approx([5, 0], abs=0.02)
    assert 3.3 < w[2].item() < 3.6


def test_least_squares_find_the_offset_of_the_parabola():
    features, y = parabola(torch.Generator().manual_seed(0))
    assert torch.linalg.lstsq(features, y.unsqueeze(1)).solution[2].item() == pytest.approx(3, abs=1e-3)


def board(width, height, freq, white):
    """Return the board of the source, with `white` as its comparison with one half."""
    columns, rows = (white(torch.arange(n).mul(freq / n / 2.0).fmod(1.0), 0.5) for n in (width, height))
    return columns.logical_xor(rows.unsqueeze(1)).float().unsqueeze(0)


def test_a_board_by_greater_than_one_half_has_squares_of_two_sizes():
    wrong = board(512, 512, 8, torch.gt)
    sizes = [len(list(square)) for _, square in itertools.groupby(wrong[0, 0].tolist())]
    assert sizes == [65, 63] * 4
    assert (wrong != checker(512, 512, 8)).sum() == 4064
    assert torch.equal(board(512, 512, 8, torch.ge), checker(512, 512, 8))


def test_a_board_by_greater_than_one_half_is_blank_if_a_square_is_a_pixel():
    assert board(8, 8, 8, torch.gt).eq(0).all()
    assert torch.equal(board(8, 8, 8, torch.ge), checker(8, 8, 8))
    assert checker(8, 8, 8).sum() == 32


def test_float32_misplaces_an_edge_of_a_board_of_other_sizes():
    assert not torch.equal(board(44, 1, 26, torch.ge), checker(44, 1, 26)[:, :1])


class RandomChoice:
    """A data set of 100 items that ignores the index, with the other faults of the source mended."""

    def __init__(self):
        self.paths = range(100)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return random.choice(self.paths)


def test_a_random_choice_loses_items_and_repeats_others():
    random.seed(0)
    images = RandomChoice()
    epoch = [images[index] for index in range(len(images))]
    assert len(set(epoch)) < 80


class WithoutSelf:
    def __init__(self):
        self.paths = ["a.jpg"]

    def __getitem__(self, index):
        return paths[index]  # noqa: F821 - the fault


def test_an_attribute_is_not_a_name():
    with pytest.raises(NameError, match="'paths' is not defined"):
        WithoutSelf()[0]


def tar_image_iterator(path):
    tar = tarfile.open(self.path, "r")  # noqa: F821, SIM115 - the fault
    yield from tar


def test_a_function_has_no_self():
    with pytest.raises(NameError, match="'self' is not defined"):
        next(tar_image_iterator("a.tar"))


def test_a_folder_in_an_archive_has_no_file_to_read(tmp_path):
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as tar:
        folder = tarfile.TarInfo("images")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    with tarfile.open(archive) as tar:
        assert tar.extractfile(tar.next()) is None
    assert list(tar_files(archive)) == []


GREY = b"P5 2 1 255 \x00\xff"  # an image of two pixels, as a file holds it


def test_imdecode_of_opencv_takes_no_bytes():
    cv2, numpy = pytest.importorskip("cv2"), pytest.importorskip("numpy")
    with pytest.raises(cv2.error, match="missing required argument 'flags'"):
        cv2.imdecode(GREY)
    with pytest.raises(cv2.error, match="buf is not a numpy array"):
        cv2.imdecode(GREY, cv2.IMREAD_COLOR)
    assert cv2.imdecode(numpy.frombuffer(GREY, numpy.uint8), cv2.IMREAD_COLOR).shape == (1, 2, 3)


def test_the_bytes_of_a_member_of_an_archive_are_an_image(tmp_path):
    pytest.importorskip("PIL")
    archive, member = tmp_path / "a.tar", tarfile.TarInfo("a.pgm")
    member.size = len(GREY)
    with tarfile.open(archive, "w") as tar:
        tar.addfile(member, io.BytesIO(GREY))
    with tarfile.open(archive) as tar:
        data = tar.extractfile("a.pgm").read()
    assert decode_rgb(data, "a.pgm").tolist() == [[[0, 255]]] * 3
